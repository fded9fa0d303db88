"""What the audit sees of kernels with a break put in: operator by operator, over kernels that are emitted.

    python bench/audit_mutants.py [--mutants 200] [--seed 0] [--workers 2] [--write] [--missed FILE]

Each configuration is compiled with NVRTC; each of its mutants (mutants.py) is audited. A mutant is
    caught        an error that the kernel itself has not
    warned        a warning more than the kernel itself has, of a rule that the break violates, and no error
    not decided   neither, but the audit says that it does not know of what is broken: of a rule that the break
                  violates, at that barrier, or one that it could decide in the whole kernel
    missed        the audit says nothing of it
Where a kernel has more mutants than asked for, each operator keeps its share by a seeded draw.
`--write` puts the tables between the markers of docs/audit_mutants.md, `--missed` lists what was missed.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mutants import Mutant, Subject, load_operators, make_mutants

from tilewright.audit.kernel import Kernel, Options
from tilewright.audit.run import audit_module
from tilewright.device import load
from tilewright.kernels.config import GemmConfig
from tilewright.kernels.source import assemble
from tilewright.problem import OUT_BYTES
from tilewright.ptx import parse_ptx
from tilewright.run.compiler import compile_source
from tilewright.tile_map import Raster
from tilewright.tiling import make_tiling

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tilewright.audit.run import Report

DOC = Path(__file__).parent.parent / "docs" / "audit_mutants.md"
MARKER = "mutants"
Verdict = Literal["caught", "warned", "not decided", "missed"]
VERDICTS: tuple[Verdict, ...] = ("caught", "warned", "not decided", "missed")


class Case(NamedTuple):
    """One emitted GEMM kernel."""

    device: str
    arch: str
    scheduler: str
    tile: tuple[int, int]
    cluster: tuple[int, int]
    group: int = 1
    dtype: str = "bf16"
    out: str = "bf16"
    more: tuple[tuple[str, Any], ...] = ()
    num_stages: int | None = None

    def __str__(self) -> str:
        words = [self.arch, self.scheduler, f"{self.tile[0]}x{self.tile[1]}"]
        words += [f"cluster {self.cluster[0]}x{self.cluster[1]}", f"{self.dtype} to {self.out}"]
        words += ["pair"] if self.group == 2 else []
        return ", ".join([*words, *(f"{name} {value}" for name, value in self.more)])

    @property
    def options(self) -> Options:
        """The launch fact that the PTX does not carry."""
        return Options(cluster=(self.cluster[0] * self.cluster[1], 1, 1))

    @property
    def config(self) -> GemmConfig:
        """What it is emitted from."""
        tiling = make_tiling(
            self.dtype, OUT_BYTES[self.out], load(self.device), cta_tile=self.tile,
            cluster_shape=(*self.cluster, 1), cta_group=self.group, num_stages=self.num_stages,
        )  # fmt: skip
        return GemmConfig(
            tiling, Raster("m", 8), self.scheduler, out_dtype=self.out, **dict(self.more)
        )


CASES = (
    Case("h200", "sm_90a", "static", (128, 256), (2, 1)),
    Case("h200", "sm_90a", "dynamic_atomic", (128, 192), (2, 2)),
    Case("h200", "sm_90a", "single_tile", (64, 160), (1, 1)),
    Case(
        "h200", "sm_90a", "dynamic_atomic", (256, 128), (1, 2), 1, "fp8_e4m3", "fp32",
        (("ragged", "m"), ("max_groups", 64)),
    ),
    Case("b200", "sm_100a", "clc", (128, 256), (2, 1), 2),
    Case("b200", "sm_100a", "clc", (128, 256), (1, 1)),
    Case("b200", "sm_100a", "dynamic_atomic", (128, 192), (2, 2)),
    Case("b200", "sm_100a", "clc", (128, 192), (4, 1), 2, more=(("schedule_depth", 2),)),
)  # fmt: skip


@cache
def ptx_of(case: Case) -> str:
    """The kernel's PTX."""
    config = case.config
    return compile_source(assemble(config.kernel, config.render()), config.kernel, case.arch).ptx


def mutants_of(case: Case) -> list[Mutant]:
    """Every mutant of the kernel."""
    module = parse_ptx(ptx_of(case))
    (function,) = (each for each in module.functions if each.body is not None)
    return make_mutants(Subject(Kernel(module, function, case.options)))


def sample(mutants: Sequence[Mutant], most: int, seed: int) -> list[Mutant]:
    """At most `most` of them: each operator in turn gives one of its own, drawn by `seed`."""
    by_operator: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in random.Random(seed).sample(mutants, len(mutants)):  # noqa: S311
        by_operator[mutant.operator].append(mutant)
    chosen: list[Mutant] = []
    while len(chosen) < most and any(by_operator.values()):
        for rest in by_operator.values():
            if rest and len(chosen) < most:
                chosen.append(rest.pop())
    return sorted(chosen, key=lambda mutant: (mutant.line, mutant.operator, mutant.what))


# --- verdicts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What the audit said of one mutant.

    Attributes:
        rules: that report it; those that cannot decide, where none does.
    """

    case: Case
    mutant: Mutant
    verdict: Verdict
    rules: tuple[str, ...]


def audit_text(text: str, options: Options) -> Report:
    """The report on a PTX text."""
    return audit_module(parse_ptx(text), options)


@cache
def clean_report(case: Case) -> Report:
    """What the audit says of the kernel as it is."""
    return audit_text(ptx_of(case), case.options)


def judge(case: Case, mutant: Mutant) -> Outcome:
    """Audit one mutant, beside what is said of the kernel itself."""
    clean = clean_report(case)
    report = audit_text(mutant.text, case.options)
    known = {(f.rule, f.span.line) for f in clean.errors}
    errors = sorted({f.rule for f in report.errors if (f.rule, f.span.line) not in known})
    if errors:
        return Outcome(case, mutant, "caught", tuple(errors))
    violated = load_operators()[mutant.operator].rules
    warnings = sorted(set(_warnings(report) - _warnings(clean)) & set(violated))
    if warnings:
        return Outcome(case, mutant, "warned", tuple(warnings))
    open_before = {(n.rule, n.span.line) for n in clean.not_decided}
    undecided = sorted(
        {
            n.rule
            for n in report.not_decided
            if n.rule in violated
            and ((n.rule, n.span.line) not in open_before or n.span.line in mutant.near)
        }
    )
    return Outcome(case, mutant, "not decided" if undecided else "missed", tuple(undecided))


def _warnings(report: Report) -> Counter[str]:
    """How often each rule warns; not where, since a rule that names one place of many may name another."""
    return Counter(f.rule for f in report.findings if f.severity == "warning")


def judge_all(work: Sequence[tuple[Case, Mutant]], workers: int) -> list[Outcome]:
    """The outcomes in the order of the mutants, which processes share in bundles."""
    cases, mutants = [case for case, _ in work], [mutant for _, mutant in work]
    if workers < 2:
        return [*map(judge, cases, mutants)]
    with ProcessPoolExecutor(workers) as pool:
        return [*pool.map(judge, cases, mutants, chunksize=16)]


# --- tables -----------------------------------------------------------------------------------------------------------


def share(outcomes: Sequence[Outcome]) -> float:
    """Caught or warned, of all."""
    return sum(o.verdict in {"caught", "warned"} for o in outcomes) / max(len(outcomes), 1)


def by_operator(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Outcomes of each operator that made any."""
    groups: dict[str, list[Outcome]] = {name: [] for name in load_operators()}
    for outcome in outcomes:
        groups[outcome.mutant.operator].append(outcome)
    return {name: found for name, found in groups.items() if found}


def table(outcomes: Sequence[Outcome]) -> str:
    """Operator by operator, as Markdown."""
    head = ("operator", "mutants", *VERDICTS, "by")
    rows = [head, ("---", *["---:"] * 5, "---")]
    for name, found in by_operator(outcomes).items():
        rows.append((name, *_numbers(found), _rules(found)))
    rows.append(("**all**", *_numbers(outcomes), f"**{share(outcomes):.1%}** caught or warned"))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _numbers(outcomes: Sequence[Outcome]) -> list[str]:
    count = Counter(outcome.verdict for outcome in outcomes)
    return [str(len(outcomes)), *(str(count[verdict]) for verdict in VERDICTS)]


def _rules(outcomes: Sequence[Outcome]) -> str:
    count = Counter(rule for o in outcomes if o.verdict in {"caught", "warned"} for rule in o.rules)
    return ", ".join(rule for rule, _ in count.most_common(4))


def kernel_table(outcomes: Sequence[Outcome]) -> str:
    """Kernel by kernel, as Markdown."""
    rows: list[tuple[str, ...]] = [
        ("kernel", "mutants", *VERDICTS, "share"),
        ("---", *["---:"] * 6),
    ]
    for case in dict.fromkeys(outcome.case for outcome in outcomes):
        found = [outcome for outcome in outcomes if outcome.case == case]
        rows.append((str(case), *_numbers(found), f"{share(found):.1%}"))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def missed_list(outcomes: Sequence[Outcome]) -> str:
    """What was not caught, the largest groups first: operator, rules, places."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.verdict in {"missed", "not decided"}:
            groups[outcome.mutant.operator].append(outcome)
    parts = []
    for name, found in sorted(groups.items(), key=lambda item: -len(item[1])):
        made = load_operators()[name]
        total = sum(o.mutant.operator == name for o in outcomes)
        parts.append(
            f"## {name}: {len(found)} of {total} not caught\n\n{made.breaks}. "
            f"Rules: {', '.join(made.rules)}.\n"
        )
        parts += [
            f"- {o.verdict} {', '.join(o.rules)}: {o.case}, line {o.mutant.line}: {o.mutant.what} "
            f"-> `{o.mutant.changed[:160]}`"
            for o in found
        ]
        parts.append("")
    return "\n".join(parts)


def reasons() -> str:
    """Why each operator's mutants are wrong, as Markdown."""
    rows: list[tuple[str, ...]] = [("operator", "does", "why it is wrong", "rules"), ("---",) * 4]
    for name, made in load_operators().items():
        does = (made.make.__doc__ or "").strip().rstrip(".")
        rows.append((name, does, made.breaks, ", ".join(made.rules)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def write_tables(document: Path, *parts: str) -> None:
    """Put generated parts between the markers of a document.

    Raises:
        ValueError: a marker is missing.
    """
    body, text = "\n\n".join(parts), document.read_text(encoding="utf-8")
    pattern = rf"(<!-- generated: {MARKER} -->\n).*?(<!-- end: {MARKER} -->)"
    if not re.search(pattern, text, re.DOTALL):
        raise ValueError(f"{document.name} has no part between the markers of {MARKER!r}")
    made = re.sub(pattern, lambda m: f"{m[1]}{body}\n{m[2]}", text, flags=re.DOTALL)
    document.write_text(made, encoding="utf-8")


def main() -> None:
    """Audit the mutants and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--mutants", type=int, default=200, help="of each kernel, at most")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--write", action="store_true")
    options.add_argument("--missed", type=Path)
    given = options.parse_args()
    for case in CASES:
        if errors := clean_report(case).errors:
            sys.exit(f"{case}: the kernel itself has {len(errors)} errors, the first {errors[0]}")
    work = [
        (case, m) for case in CASES for m in sample(mutants_of(case), given.mutants, given.seed)
    ]
    outcomes = judge_all(work, given.workers)
    print(f"{kernel_table(outcomes)}\n\n{table(outcomes)}")
    if given.missed:
        given.missed.write_text(missed_list(outcomes), encoding="utf-8")
    if given.write:
        made = f"{len(outcomes)} mutants, at most {given.mutants} a kernel, seed {given.seed}."
        write_tables(
            DOC, made, "## By kernel", kernel_table(outcomes), "## By operator", table(outcomes),
            "## The operators", reasons(),
        )  # fmt: skip


if __name__ == "__main__":
    main()
