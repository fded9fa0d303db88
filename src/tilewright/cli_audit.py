"""`tilewright audit`: read kernels and say where they break the contract."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli_options import HtmlOption, JsonOption, parse_triple, print_blocks, write_text
from tilewright.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from tilewright.audit.kernel import Options
    from tilewright.audit.locate import Baseline
    from tilewright.audit.run import Audited
    from tilewright.run.inputs import SassFacts


def audit(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help=".ptx, .cu, .cubin or .fatbin files, folders of these, or - for standard input."
        ),
    ] = None,
    arch: Annotated[
        str | None, typer.Option(help="To compile .cu files for, like sm_100a.")
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help="NVRTC option; repeatable.")] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", help="x,y,z of the launch, where the kernel does not say."),
    ] = None,
    block: Annotated[
        str | None, typer.Option("--block", help="Threads x,y,z of the launch.")
    ] = None,
    ptx_isa: Annotated[
        str,
        typer.Option(
            "--ptx-isa", help="Text of the ISA to judge by where versions differ: 9.0 or 9.1."
        ),
    ] = "9.1",
    strict: Annotated[
        bool,
        typer.Option("--strict", help="What shipping code does against the letter is an error."),
    ] = False,
    contract: Annotated[
        bool,
        typer.Option("--contract", help="Print the barrier ledger and CLC loop of each kernel."),
    ] = False,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", help="Hold the kernels against this plan (plan --json)."),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option("--baseline", help="Findings of an earlier --json that are no news."),
    ] = None,
    as_json: JsonOption = False,
    sarif: Annotated[Path | None, typer.Option(help="Write SARIF 2.1.0 to this file.")] = None,
    html: HtmlOption = None,
    github: Annotated[bool, typer.Option("--github", help="Print GitHub annotations.")] = False,
    explain: Annotated[
        str | None,
        typer.Option("--explain", help="A rule's id: what it says, a violation, its twin."),
    ] = None,
) -> None:
    """Find where kernels break the contract of CLC, barriers, clusters, TMA and tcgen05; no GPU needed.

    Exit code 1 on errors, or on differences from --plan.
    """
    from tilewright.audit.locate import Baseline
    from tilewright.audit.outputs import (
        as_json as to_json,
        as_sarif,
        dump,
        render_github,
        render_text,
    )

    if explain is not None:
        _explain(explain)
        return
    if not files:
        raise BadInput(
            "name what to audit: .ptx, .cu, .cubin, .fatbin, a folder, or - for standard input"
        )
    options = _options(cluster, block, ptx_isa, strict)
    audits, binaries = _audit_all(files, arch, option or [], options, Baseline(baseline), plan)
    if sarif is not None:
        write_text(sarif, dump(as_sarif(audits)) + "\n")
    if html is not None:
        from tilewright.report.audit_page import render_audit_page

        write_text(html, render_audit_page(audits))
    if as_json:
        typer.echo(dump(to_json(audits)))
    else:
        for line in render_github(audits) if github else render_text(audits):
            typer.echo(line)
        _print_more(audits, binaries, contract)
    broken = any(f.finding.severity == "error" for audit in audits for f in audit.findings)
    if broken or any(audit.differences for audit in audits):
        raise typer.Exit(1)


def _options(cluster: str | None, block: str | None, ptx_isa: str, strict: bool) -> Options:
    from tilewright.audit.kernel import Options

    versions = {"9.0": (9, 0), "9.1": (9, 1)}
    if ptx_isa not in versions:
        raise UnknownName("text of the PTX ISA", ptx_isa, versions)
    return Options(
        parse_triple("--cluster", cluster),
        parse_triple("--block", block),
        versions[ptx_isa],
        strict,
    )


def _audit_all(
    files: list[str],
    arch: str | None,
    compile_options: list[str],
    options: Options,
    baseline: Baseline,
    plan: Path | None,
) -> tuple[list[Audited], list[SassFacts]]:
    from rich.console import Console
    from rich.progress import track

    from tilewright.audit.run import audit_text
    from tilewright.ptx import parse_ptx
    from tilewright.run.inputs import SassFacts, find_inputs, read_input

    wanted = _read_plan(plan)
    inputs = find_inputs(files)
    console = Console(stderr=True)
    audits: list[Audited] = []
    binaries: list[SassFacts] = []
    empty: list[str] = []
    quiet = len(inputs) < 2 or not console.is_terminal
    for given in track(inputs, "audit", console=console, disable=quiet, transient=True):
        found = read_input(given, arch, compile_options)
        if isinstance(found, SassFacts):
            binaries.append(found)
            continue
        module = parse_ptx(found.ptx, found.name)
        audits.append(audit_text(module, found.sources, options, baseline, wanted))
        if not audits[-1].contracts:
            empty.append(found.name)
    if empty and len(empty) == len(inputs):
        raise BadInput(f"{', '.join(empty)}: no function with a body, so there is nothing to audit")
    for name in empty:
        console.print(f"{name}: no function with a body", highlight=False)
    return audits, binaries


def _read_plan(path: Path | None) -> dict[str, object] | None:
    if path is None:
        return None
    try:
        found: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
        _ = found["contract"], found["conclusion"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{path} is not the output of tilewright plan --json ({error})", given=path
        ) from None
    return found


def _print_more(audits: list[Audited], binaries: list[SassFacts], contract: bool) -> None:
    from tilewright.audit.document import contract_document

    for audit in audits:
        for difference in audit.differences:
            typer.echo(f"differs from the plan: {difference}")
        if contract:
            for each in audit.contracts:
                print_blocks(contract_document(each))
    for facts in binaries:
        listed = ", ".join(f"{name} x{count}" for name, count in facts.instructions.items())
        typer.echo(
            f"{facts.name}: no PTX in it, so no rule applies; its machine code has {listed or 'none'}"
        )


def _explain(id_: str) -> None:
    from tilewright.audit.catalogue import catalogue, explain
    from tilewright.audit.rules import RULES
    from tilewright.audit.run import load_rules

    load_rules()
    known = catalogue()
    if id_.upper() not in known:
        raise UnknownName("rule", id_, known)
    for line in explain(known[id_.upper()], RULES.get(id_.upper())):
        typer.echo(line)
