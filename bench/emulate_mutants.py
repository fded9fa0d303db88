"""What the emulator sees of kernels with a break put in, and what audit and emulator see together.

    python bench/emulate_mutants.py [--kernel NAME] [--mutants 40] [--schedules 4] [--seed 0] [--missed FILE]

The mutants are those of audit_mutants.py (mutants*.py), of kernels that are emitted with small tiles. Each is run on
a problem of five tiles, whose K goes round the ring more than twice, until a schedule fails:
    found         an error of the emulator, or a result that is wrong
    warned        no error, but a warning that the kernel itself has not
    missed        every schedule passed: the break needs a rarer order, or the mutant is no break on this problem
"""

from __future__ import annotations

import argparse
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from audit_mutants import audit_text, sample
from mutants import Mutant, Subject, make_mutants

from tilewright.audit.kernel import Kernel, Options as AuditOptions
from tilewright.device import load
from tilewright.emulate import CheckFailed, NotModelled, Options
from tilewright.emulate.explore import vary
from tilewright.kernels.config import GemmConfig
from tilewright.kernels.source import assemble
from tilewright.ptx import parse_ptx
from tilewright.run.check import GemmCase, GemmRun
from tilewright.run.compiler import compile_source
from tilewright.run.emulated import EmulatedGpu
from tilewright.run.gemm import GemmKernel
from tilewright.tile_map import Raster
from tilewright.tiling import make_tiling

if TYPE_CHECKING:
    from collections.abc import Iterator

RESIDENT, TILES = 2, 5


def config(device: str, cluster: tuple[int, int, int], scheduler: str, depth: int) -> GemmConfig:
    """A kernel with small tiles and a ring of two."""
    pair = {"cta_group": 2} if device == "b200" and cluster[0] > 1 else {}
    tiling = make_tiling(
        "bf16", 2, load(device), cta_tile=(128, 64), cluster_shape=cluster, num_stages=2, **pair
    )
    return GemmConfig(tiling, Raster("m", 8), scheduler, schedule_depth=depth)


KERNELS = {
    "pair clc": ("sm_100a", config("b200", (2, 1, 1), "clc", 2)),
    "single clc": ("sm_100a", config("b200", (1, 1, 1), "clc", 1)),
    "multicast static": ("sm_100a", config("b200", (2, 2, 1), "static", 1)),
    "wgmma dynamic": ("sm_90a", config("h200", (2, 1, 1), "dynamic_atomic", 1)),
}


class Bench:
    """One kernel, its problem, and what it says when nothing is wrong."""

    def __init__(self, architecture: str, made: GemmConfig) -> None:
        self.architecture, self.config = architecture, made
        tile = made.tiling.cluster_tile
        self.case = GemmCase(tile.m * TILES - 5, tile.n, tile.k * 5)
        source = assemble(made.kernel, made.render())
        self.text = compile_source(source, made.kernel, architecture).ptx
        self.cluster = made.cluster_size

    def mutants(self) -> list[Mutant]:
        """Every mutant."""
        module = parse_ptx(self.text)
        function = next(f for f in module.functions if f.body is not None)
        options = AuditOptions(cluster=(self.cluster, 1, 1))
        return make_mutants(Subject(Kernel(module, function, options)))

    def rules(self, text: str, seed: int) -> Iterator[tuple[str, str]]:
        """What one schedule finds: rules and severities."""
        resident, declines = RESIDENT, frozenset[int]()
        if self.config.scheduler == "clc":
            found, declines = vary(seed, TILES, None, None)
            resident = found or RESIDENT
        with EmulatedGpu(self.architecture, resident=RESIDENT, seed=seed) as gpu:
            run = GemmRun(gpu, GemmKernel(gpu, self.config, text.encode()), self.case)
            gpu.options = Options(resident=resident, decline_at=declines, steps_max=100_000)
            try:
                checked = run.check()
            except CheckFailed as failed:
                yield from ((f.rule, f.severity) for f in failed.report.findings)
                return
            yield from ((f.rule, f.severity) for f in gpu.outcomes[-1].findings)
            if not checked.passed:
                yield "RESULT", "error"

    def judge(self, text: str, schedules: int) -> tuple[str, str, int]:
        """found, warned or missed; the first rule; the seed that shows it."""
        warned = ""
        for seed in range(schedules):
            try:
                found = list(self.rules(text, seed))
            except NotModelled as stopped:
                return "missed", str(stopped), seed
            errors = [rule for rule, severity in found if severity == "error"]
            if errors:
                return "found", errors[0], seed
            warned = warned or next((rule for rule, _ in found), "")
        return ("warned", warned, 0) if warned else ("missed", "", schedules)


def audited(bench: Bench, text: str, clean: set[str]) -> bool:
    """Whether the audit has an error that it has not of the whole kernel."""
    report = audit_text(text, AuditOptions(cluster=(bench.cluster, 1, 1)))
    return bool({f.rule for f in report.errors} - clean)


def main() -> None:
    """Print a table by operator and the totals."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kernel", choices=KERNELS, default="pair clc")
    parser.add_argument("--mutants", type=int, default=40)
    parser.add_argument("--schedules", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--missed", type=Path)
    given = parser.parse_args()
    bench = Bench(*KERNELS[given.kernel])
    if bench.judge(bench.text, given.schedules)[0] == "found":
        raise SystemExit("the kernel itself fails")
    everything = bench.mutants()
    chosen = sample(everything, given.mutants, given.seed)
    random.Random(given.seed).shuffle(chosen)  # noqa: S311  (an order of work)
    clean = {
        f.rule for f in audit_text(bench.text, AuditOptions(cluster=(bench.cluster, 1, 1))).errors
    }
    rows: dict[str, list[tuple[str, bool]]] = defaultdict(list)
    missed: list[str] = []
    start = time.perf_counter()
    for mutant in chosen:
        verdict, rule, seed = bench.judge(mutant.text, given.schedules)
        by_audit = audited(bench, mutant.text, clean)
        rows[mutant.operator].append((verdict, by_audit))
        if verdict == "missed":
            seen = "the audit has it" if by_audit else "nobody has it"
            missed.append(f"{mutant.operator} line {mutant.line}: {mutant.what} ({seen}) {rule}")
        print(f"{mutant.operator} {mutant.line}: {verdict} {rule} seed {seed}", flush=True)
    _print(given.kernel, rows, len(everything), time.perf_counter() - start)
    if given.missed is not None:
        given.missed.write_text("\n".join([*missed, ""]), encoding="utf-8")


def _print(kernel: str, rows: dict[str, list[tuple[str, bool]]], of: int, seconds: float) -> None:
    print("\n| operator | mutants | found | warned | missed | audit alone | together |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    every: list[tuple[str, bool]] = []
    for name, outcomes in sorted(rows.items()):
        every += outcomes
        print(_row(name, outcomes))
    print(_row("all", every))
    print(f"\n{kernel}: {len(every)} of {of} mutants, {seconds:.0f} s")


def _row(name: str, outcomes: list[tuple[str, bool]]) -> str:
    counts = [sum(v == verdict for v, _ in outcomes) for verdict in ("found", "warned", "missed")]
    audit = sum(a for _, a in outcomes)
    together = sum(a or v != "missed" for v, a in outcomes)
    return f"| {name} | {len(outcomes)} | {counts[0]} | {counts[1]} | {counts[2]} | {audit} | {together} |"


if __name__ == "__main__":
    main()
