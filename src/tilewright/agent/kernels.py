"""Tools over kernels: audit, compile, explain."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from tilewright.agent.planning import Shape
from tilewright.agent.tool import Answer, Arguments, Call
from tilewright.audit.catalogue import catalogue, explain as explain_entry
from tilewright.audit.json_model import FindingRow, NotDecidedRow
from tilewright.audit.kernel import Options
from tilewright.audit.outputs import as_json, render_text
from tilewright.audit.rules import RULES
from tilewright.audit.run import Audited, audit_text, load_rules
from tilewright.errors import BadInput, UnknownName
from tilewright.ptx import parse_ptx
from tilewright.run.compiler import compile_source
from tilewright.run.inputs import PtxText

MAX_FILES = 64
"""Files in one audit."""

Arch = Annotated[str, Field(pattern=r"^sm_\d{2,3}[af]?$", description="Like sm_90a or sm_100a.")]


class AuditArguments(Arguments):
    """PTX as text, or files in allowed folders, and what the text does not say about the launch."""

    ptx: Annotated[str | None, Field(description="PTX text.")] = None
    files: Annotated[
        tuple[str, ...],
        Field(max_length=MAX_FILES, description=".ptx or .cu files in an allowed folder."),
    ] = ()
    arch: Annotated[Arch | None, Field(description="To compile .cu files for.")] = None
    cluster_shape: Shape | None = None
    block: Annotated[Shape | None, Field(description="Threads x, y, z of the launch.")] = None
    ptx_isa: Literal["9.0", "9.1"] = "9.1"
    strict: bool = Field(
        default=False, description="What shipping code does against the letter is an error."
    )
    contract: bool = Field(
        default=False, description="Return each kernel's barrier ledger and CLC loop."
    )
    plan: Annotated[
        str | None,
        Field(
            description="plan.json of an emitted folder, or plan --json, to hold the kernels against."
        ),
    ] = None

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.ptx is None and not self.files:
            raise ValueError("give ptx or files")
        return self


class AuditAnswer(Answer):
    """What the audit says; `contract` is empty unless asked for."""

    summary: str
    findings: tuple[FindingRow, ...]
    not_decided: tuple[NotDecidedRow, ...]
    differences: tuple[str, ...]
    contract: tuple[dict[str, Any], ...]


def audit(given: AuditArguments, call: Call) -> AuditAnswer:
    """Find where kernels break the contract."""
    versions = {"9.0": (9, 0), "9.1": (9, 1)}
    options = Options(given.cluster_shape, given.block, versions[given.ptx_isa], given.strict)
    plan = None if given.plan is None else _plan(given.plan, call)
    audits: list[Audited] = []
    if given.ptx is not None:
        audits.append(
            audit_text(parse_ptx(given.ptx, "<ptx>"), {"<ptx>": given.ptx}, options, plan=plan)
        )
    for number, name in enumerate(given.files, 1):
        call.report(f"{number} of {len(given.files)}: {name}")
        found = ptx_of(name, given.arch, call)
        module = parse_ptx(found.ptx, found.name)
        audits.append(audit_text(module, found.sources, options, plan=plan))
    *_, summary = render_text(audits)
    rows = as_json(audits)
    return AuditAnswer(
        summary=summary,
        findings=tuple(FindingRow.model_validate(row) for row in rows["findings"]),
        not_decided=tuple(NotDecidedRow.model_validate(row) for row in rows["not_decided"]),
        differences=tuple(rows["differences"]),
        contract=tuple(rows["contract"]) if given.contract else (),
    )


def _plan(name: str, call: Call) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(call.folders.read_text(name))
        _ = found["contract"], found["conclusion"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(f"{name} is not the output of plan --json ({error})", given=name) from None
    return found


def ptx_of(name: str, arch: str | None, call: Call) -> PtxText:
    """The PTX of a file in an allowed folder.

    Raises:
        BadInput, MissingCuda, CompileFailed
    """
    if name.endswith(".ptx"):
        text = call.folders.read_text(name)
        return PtxText(name, text, {name: text})
    if not name.endswith(".cu"):
        raise BadInput(f"{name} is neither .ptx nor .cu", given=name, allowed=".ptx, .cu")
    if arch is None:
        raise BadInput(f"{name}: name what to compile for with arch", nearest="sm_100a")
    source = call.folders.read_text(name)
    check_includes_nothing(source)
    line_info = ["--generate-line-info"]
    ptx = compile_source(source, name, arch, line_info, use_cache=False).ptx
    ptx_name = f"{name}.{arch}.ptx"
    return PtxText(ptx_name, ptx, {name: source, ptx_name: ptx})


class CompileArguments(Arguments):
    """CUDA C++ that includes no file, as text or as a file in an allowed folder."""

    source: Annotated[str | None, Field(description="CUDA C++ text.")] = None
    file: Annotated[str | None, Field(description="A .cu file in an allowed folder.")] = None
    arch: Annotated[tuple[Arch, ...], Field(min_length=1, max_length=8)]
    options: Annotated[
        tuple[str, ...],
        Field(
            max_length=32,
            description="--maxrregcount=N, -DNAME=VALUE, --std=c++20, --use_fast_math, …",
        ),
    ] = ()
    out: Annotated[
        str | None,
        Field(description="Folder in an allowed folder, for NAME.ARCH.cubin and NAME.ARCH.ptx."),
    ] = None
    return_ptx: bool = False

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.source is None) == (self.file is None):
            raise ValueError("give exactly one of source and file")
        return self


class FunctionRow(Answer):
    """What one function uses, in the words of ptxas."""

    name: str
    is_kernel: bool
    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    static_smem_bytes: int


class CompiledRow(Answer):
    """One architecture's result; `ptx` when asked for."""

    arch: str
    toolkit: str
    seconds: float
    functions: tuple[FunctionRow, ...]
    ptx: str | None


class CompileAnswer(Answer):
    """Results in the order asked for, and the files written."""

    results: tuple[CompiledRow, ...]
    written: tuple[str, ...]


def compile_(given: CompileArguments, call: Call) -> CompileAnswer:
    """Compile with NVRTC; no GPU needed."""
    check_options(given.options)
    source = given.source if given.file is None else call.folders.read_text(given.file)
    assert source is not None  # noqa: S101  (exactly one was given)
    check_includes_nothing(source)
    name = given.file or "source.cu"
    stem = name.replace("\\", "/").rpartition("/")[2].removesuffix(".cu")
    results, written = [], []
    for arch in dict.fromkeys(given.arch):
        call.report(f"compiling for {arch}")
        done = compile_source(source, name, arch, given.options, use_cache=False)
        if given.out is not None:
            target = f"{given.out}/{stem}.{arch}"
            written.append(call.folders.write(f"{target}.cubin", done.cubin))
            written.append(call.folders.write(f"{target}.ptx", done.ptx.encode()))
        functions = tuple(
            FunctionRow(**{name: getattr(use, name) for name in FunctionRow.model_fields})
            for use in done.functions
        )
        results.append(
            CompiledRow(
                arch=arch,
                toolkit=done.toolkit,
                seconds=round(done.seconds, 3),
                functions=functions,
                ptx=done.ptx if given.return_ptx else None,
            )
        )
    return CompileAnswer(results=tuple(results), written=tuple(written))


_OPTION = re.compile(
    r"--?maxrregcount=\d+|(-D|--define-macro=)\w+(=[\w.+-]*)?|(-U|--undefine-macro=)\w+|--?std=c\+\+\d\d|"
    r"--?use_fast_math|--?(fmad|ftz|prec-div|prec-sqrt|extra-device-vectorization)(=(true|false))?|"
    r"--?(generate-line-info|lineinfo|device-debug|G|default-device|device-int128|disable-warnings|w|restrict)"
)
_SPLICE = re.compile(r"\\[ \t\f\v\r]*(\r\n|\n|\r)")
_DIRECTIVE = r"(#|%:|\?\?=)(\s|/\*.*?\*/)*"
_READS = re.compile(rf"{_DIRECTIVE}(include|import|embed|\\)|__has_(include|embed)", re.DOTALL)


def check_options(options: tuple[str, ...]) -> None:
    """Refuse every option of NVRTC that could name a file.

    Raises:
        BadInput: names the option.
    """
    for option in options:
        if not _OPTION.fullmatch(option):
            raise BadInput(
                f'option "{option}" is not among those that an agent may give',
                given=option,
                allowed="--maxrregcount=N, -DNAME=VALUE, -UNAME, --std=c++NN, --use_fast_math, --fmad=…, --ftz=…, "
                "--prec-div=…, --prec-sqrt=…, --generate-line-info, --device-debug, --restrict, …",
            )


def check_includes_nothing(source: str) -> None:
    """Refuse a source that could make the compiler read a file: its messages would quote that file.

    Strict on purpose: a directive is refused in comments and strings too, since telling them apart needs the compiler.
    Raises:
        BadInput: quotes the directive.
    """
    found = _READS.search(_SPLICE.sub("", source))
    if found:
        raise BadInput(
            f'"{found[0]}": a source that is compiled for an agent includes no file; write it without headers, as '
            "tilewright emit does, or compile it on the command line",
            given=found[0],
            allowed="sources without #include",
        )


class ExplainArguments(Arguments):
    """A rule's id."""

    rule: Annotated[str, Field(description="Like CLC-07, as findings carry it.")]


class RuleAnswer(Answer):
    """What `audit --explain` prints: the rule, what to do, its section of the PTX ISA, a violation and its twin."""

    id: str
    severity: str
    explanation: str


def explain(given: ExplainArguments, _call: Call) -> RuleAnswer:
    """One rule of the audit."""
    return explain_rule(given.rule)


def explain_rule(id_: str) -> RuleAnswer:
    """A rule by its id, in whatever case.

    Raises:
        UnknownName: no such rule.
    """
    load_rules()
    known = catalogue()
    entry = known.get(id_.upper())
    if entry is None:
        raise UnknownName("rule", id_, known)
    lines = explain_entry(entry, RULES.get(entry.id))
    return RuleAnswer(id=entry.id, severity=entry.severity, explanation="\n".join(lines))
