"""What the emulator sees of kernels with a break put in, and what audit and emulator see together.

    python bench/emulate_mutants.py [--kernel TEXT] [--mutants 100] [--schedules 3] [--most 48] [--seed 0] [--workers 1]
                                    [--write | --tables]

The mutants are those of audit_mutants.py (mutants*.py), of the same kernels with small tiles and rings of two. Each is
audited, and run on small problems (`problem_of`) until a schedule fails:
    found      an error of the emulator, or a result that is wrong
    warned     no error in any schedule, but a warning that the kernel itself has not
    passed     neither: the break needs a rarer order, or the mutant is no break on this problem
A mutant that nobody has said anything of then is run on, up to `--most`; the kernel itself passes each that counts.
`--write` puts the tables into docs/emulate_mutants.md and a row a mutant into tests/data/emulate_mutants.csv, which
tests/toolkit/test_emulate_mutants.py replays.
"""

from __future__ import annotations

import argparse
import csv
import gc
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import audit_mutants
from audit_mutants import Case, mutants_of, ptx_of, sample, write_tables
from mutants import load_operators

from tilewright.emulate import CheckFailed, NotModelled, Options
from tilewright.emulate.explore import vary
from tilewright.run.check import GemmCase, GemmRun
from tilewright.run.emulated import EmulatedGpu
from tilewright.run.gemm import GemmKernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mutants import Mutant

ROOT = Path(__file__).parent.parent
DOC = ROOT / "docs" / "emulate_mutants.md"
DATA = ROOT / "tests" / "data" / "emulate_mutants.csv"
STAGES, LONG_EVERY = 2, 5


class Problem(NamedTuple):
    """Cluster tiles along M, K blocks of each, and the clusters that run at once."""

    tiles: int
    k_blocks: int
    resident: int


def problem_of(seed: int) -> Problem:
    """What a seed runs: mostly five tiles, whose K goes round the ring more than twice, in two clusters or in one.

    Every fifth is one cluster with forty short tiles: a count that is one off takes as many rounds as it has arrivals
    to drift by a phase.
    """
    if seed % LONG_EVERY == LONG_EVERY - 1:
        return Problem(40, 1, 1)
    return Problem(5, 5, 2 - seed % 2)


SMALL = {"sm_90a, single_tile": (64, 64), "sm_90a, dynamic_atomic, 256x128": (256, 64)}
"""CTA tiles where 128x64 would be another kernel: one group of consumers, four of them."""


def _small(case: Case) -> Case:
    tile = next((t for name, t in SMALL.items() if str(case).startswith(name)), (128, 64))
    return case._replace(tile=tile, num_stages=STAGES)


CASES = (
    *map(_small, audit_mutants.CASES),
    Case(
        "b200", "sm_100a", "clc", (128, 64), (2, 1), 2, more=(("schedule_depth", 2),),
        num_stages=STAGES,
    ),
)  # fmt: skip
"""Those of the audit's table, and a pair with two requests in flight."""


# --- one schedule -----------------------------------------------------------------------------------------------------


def gemm_case(case: Case, problem: Problem) -> GemmCase:
    """The tiles, the last short of some rows; in the middle an empty group where there are groups."""
    tile = case.config.tiling.cluster_tile
    k, rows = tile.k * problem.k_blocks, tile.m * (problem.tiles - 2) - 5
    if case.config.ragged == "m":
        return GemmCase(0, tile.n, k, counts=(rows, 0, 70, 1))
    return GemmCase(rows + 2 * tile.m, tile.n, k)


def findings(case: Case, text: str, seed: int) -> list[tuple[str, str]]:
    """What one schedule of a kernel finds: rules and severities, in order."""
    config = case.config
    problem, declines = problem_of(seed), frozenset[int]()
    resident = problem.resident
    if config.scheduler == "clc" and seed % LONG_EVERY != LONG_EVERY - 1:
        found, declines = vary(seed, problem.tiles, None, None)
        resident = found or resident
    with EmulatedGpu(case.arch, resident=resident, seed=seed) as gpu:
        run = GemmRun(gpu, GemmKernel(gpu, config, text.encode()), gemm_case(case, problem))
        gpu.options = Options(resident=resident, decline_at=declines, steps_max=400_000)
        try:
            checked = run.check()
        except CheckFailed as failed:
            return [(f.rule, f.severity) for f in failed.report.findings]
        said: list[tuple[str, str]] = [(f.rule, f.severity) for f in gpu.outcomes[-1].findings]
        return said if checked.passed else [*said, ("RESULT", "error")]


def errors(case: Case, text: str, seed: int) -> list[str]:
    """Rules of the errors that one schedule finds, in order."""
    return [rule for rule, severity in findings(case, text, seed) if severity == "error"]


# --- one mutant -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """What came of one mutant.

    Attributes:
        audit, audit_rules: the audit's verdict (audit_mutants.py), and the rules that it rests on.
        emulator: found, warned or passed.
        rule: of the first error or warning.
        seed: of the first schedule that shows it; of the last one that was run where none does.
    """

    kernel: str
    line: int
    operator: str
    what: str
    audit: str
    audit_rules: str
    emulator: str
    rule: str
    seed: int

    @property
    def is_error(self) -> bool:
        """Whether one of the two calls it an error."""
        return self.audit == "caught" or self.emulator == "found"

    @property
    def is_warned(self) -> bool:
        """Whether both leave it at a warning."""
        return not self.is_error and "warned" in {self.audit, self.emulator}


def judge(schedules: int, most: int, case: Case, mutant: Mutant) -> Row:
    """Audit one mutant and run it."""
    audited = audit_mutants.judge(case, mutant)
    caught = audited.verdict == "caught"
    verdict, rule, seed = emulate(case, mutant, schedules, schedules if caught else most)
    gc.collect()  # machines are cycles, and large
    return Row(
        str(case), mutant.line, mutant.operator, mutant.what, audited.verdict,
        " ".join(audited.rules), verdict, rule, seed,
    )  # fmt: skip


def emulate(case: Case, mutant: Mutant, schedules: int, most: int) -> tuple[str, str, int]:
    """Run schedules until one fails: `most`, or `schedules` if there is a warning of what the operator breaks."""
    warning, warned_at = "", 0
    violated = load_operators()[mutant.operator].rules
    for seed in range(most):
        if seed >= schedules and warning in violated:
            break
        try:
            found = findings(case, mutant.text, seed)
        except NotModelled as stopped:
            return "passed", str(stopped), seed
        for rule, severity in found:
            if rule in clean_rules(case, seed):
                continue
            if severity == "error":
                return "found", rule, seed
            if not warning:
                warning, warned_at = rule, seed
    return ("warned", warning, warned_at) if warning else ("passed", "", most - 1)


@cache
def clean_rules(case: Case, seed: int) -> frozenset[str]:
    """Rules of the warnings that the kernel itself gets under a seed.

    Raises:
        SystemExit: it fails.
    """
    found = findings(case, ptx_of(case), seed)
    if wrong := [rule for rule, severity in found if severity == "error"]:
        sys.exit(f"{case}: the kernel itself fails under seed {seed}: {', '.join(wrong)}")
    return frozenset(rule for rule, _ in found)


# --- tables -----------------------------------------------------------------------------------------------------------

NUMBERS = ("mutants", "audit", "emulator", "either", "only warned", "survive", "share")


def counts(rows: Sequence[Row]) -> list[str]:
    """The cells of `NUMBERS`: errors of the audit, of the emulator, of either; their share."""
    caught = sum(row.is_error for row in rows)
    warned = sum(row.is_warned for row in rows)
    numbers = (
        len(rows), sum(row.audit == "caught" for row in rows),
        sum(row.emulator == "found" for row in rows), caught, warned, len(rows) - caught - warned,
    )  # fmt: skip
    return [*map(str, numbers), f"{caught / max(1, len(rows)):.1%}"]


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int) -> str:
    """A table whose columns from the second on are numbers, so many of them."""
    rule = ["---", *["---:"] * numbers, *["---"] * (len(head) - numbers - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def kernel_table(rows: Sequence[Row]) -> str:
    """Kernel by kernel."""
    names = dict.fromkeys(row.kernel for row in rows)
    lines = [[name, *counts([row for row in rows if row.kernel == name])] for name in names]
    return markdown(("kernel", *NUMBERS), [*lines, ["**all**", *counts(rows)]], len(NUMBERS))


def operator_table(rows: Sequence[Row]) -> str:
    """Operator by operator, with the rules by which the emulator finds most of them."""
    lines = []
    for name in load_operators():
        mine = [row for row in rows if row.operator == name]
        found = Counter(row.rule for row in mine if row.emulator != "passed")
        if mine:
            lines.append([name, *counts(mine), ", ".join(rule for rule, _ in found.most_common(4))])
    return markdown(("operator", *NUMBERS, "the emulator's rules"), lines, len(NUMBERS))


def survivor_table(rows: Sequence[Row]) -> str:
    """What no error is found of, and why."""
    lines = [
        [row.kernel, f"{row.operator}: {row.what} (line {row.line})", _said(row), reason(row)]
        for row in rows
        if not row.is_error
    ]
    return markdown(("kernel", "mutant", "said", "why no error"), lines, 0)


def _said(row: Row) -> str:
    said = [f"the audit warns: {row.audit_rules}"] if row.audit == "warned" else []
    said += [f"the emulator warns: {row.rule}"] if row.emulator == "warned" else []
    said += [f"the audit leaves it open: {row.audit_rules}"] if row.audit == "not decided" else []
    return "; ".join(said) or "nothing"


REASONS: dict[tuple[str, str], str] = {
    ("narrow_wait", ""): "hardware and CUTLASS work so; the letter of the memory model asks for more: a warning (MBAR-08)",
    ("drop_cluster_barrier", "TC-19"): "only the allocation of the pair lies behind it, which waits for the peer itself: a warning (TC-19)",
    ("cta_for_cluster_barrier", "TC-19"): "as drop_cluster_barrier",
    ("drop_fence", "CLC-09"): "the acquiring half alone is missing, which shipped kernels leave out: the catalogue's CLC-09b, a warning",
    ("drop_wait", "MBAR-12"): "the asking warp's wait for `schedule_throttle`, which paces the requests and guards nothing: a warning (MBAR-12)",
    ("drop_leader", "MBAR-12"): "the other CTAs arrive on barriers of their own that nobody waits for: a warning (MBAR-12)",
    ("wrong_first_parity", ""): "counts only for K = 0, which `Gemm` refuses, and in a cluster without a tile, of which none is launched",
}  # fmt: skip
"""By operator and, where it matters, the emulator's rule."""


def reason(row: Row) -> str:
    """Why neither calls it an error."""
    return REASONS.get((row.operator, row.rule)) or REASONS.get((row.operator, "")) or "?"


def seed_table(rows: Sequence[Row]) -> str:
    """How many schedules it took."""
    ends = (1, 2, 3, 8, 16, 32, 64)
    found = [row.seed for row in rows if row.emulator == "found"]
    cells = [
        str(sum(low <= seed < high for seed in found)) for low, high in zip((0, *ends), ends, strict=False)
    ]  # fmt: skip
    head = [f"{low + 1}" if high == low + 1 else f"{low + 1} to {high}" for low, high in zip((0, *ends), ends, strict=False)]  # fmt: skip
    return markdown(("schedules until it shows", *head), [["mutants", *cells]], len(head))


# --- files ------------------------------------------------------------------------------------------------------------


def write_rows(rows: Sequence[Row]) -> None:
    """A row a mutant, as CSV, kernels in the order of `CASES`."""
    with DATA.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        for case in CASES:
            writer.writerows(asdict(row) for row in rows if row.kernel == str(case))


def read_rows() -> list[Row]:
    """What `write_rows` wrote."""
    if not DATA.exists():
        return []
    with DATA.open(encoding="utf-8", newline="") as file:
        return [
            Row(line=int(each.pop("line")), seed=int(each.pop("seed")), **each)
            for each in csv.DictReader(file)
        ]


def judge_all(
    judge_one: Callable[[Case, Mutant], Row], work: Sequence[tuple[Case, Mutant]], workers: int
) -> list[Row]:
    """The rows in the order of the mutants, told as they come."""
    cases, mutants = [case for case, _ in work], [mutant for _, mutant in work]
    if workers < 2:
        return [_told(row) for row in map(judge_one, cases, mutants)]
    with ProcessPoolExecutor(workers) as pool:
        return [_told(row) for row in pool.map(judge_one, cases, mutants, chunksize=4)]


def _told(row: Row) -> Row:
    said = f"{row.emulator} {row.rule} seed {row.seed}, the audit: {row.audit} {row.audit_rules}"
    print(f"{row.kernel}: {row.operator} {row.line}: {row.what}: {said}", flush=True)
    return row


def main() -> None:
    """Judge the mutants and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kernel", default="", help="only kernels whose name has this in it")
    options.add_argument("--mutants", type=int, default=100, help="of each kernel, at most")
    options.add_argument("--schedules", type=int, default=3)
    options.add_argument("--most", type=int, default=48)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--write", action="store_true", help="rows of other kernels stay")
    options.add_argument("--tables", action="store_true", help="only those of the rows as they are")
    given = options.parse_args()
    rows = read_rows()
    if not given.tables:
        cases = [case for case in CASES if given.kernel in str(case)]
        work = [(c, m) for c in cases for m in sample(mutants_of(c), given.mutants, given.seed)]
        news = judge_all(partial(judge, given.schedules, given.most), work, given.workers)
        names = {*map(str, cases)}
        if not given.write:
            print("", kernel_table(news), operator_table(news), survivor_table(news), sep="\n\n")
            return
        write_rows([*(row for row in rows if row.kernel not in names), *news])
        rows = read_rows()
    made = f"{len(rows)} mutants; of {sum(row.is_error for row in rows)} one of the two reports an error."
    write_tables(
        DOC, made, "## By kernel", kernel_table(rows), "## By operator", operator_table(rows),
        "## By schedule", seed_table(rows), "## Without an error", survivor_table(rows),
    )  # fmt: skip


if __name__ == "__main__":
    main()
