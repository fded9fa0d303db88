"""Plans beside those of nvidia-matmul-heuristics; writes the tables of docs/peers.md.

    python bench/compare_heuristics.py            print both plans, and the model's time for both
    python bench/compare_heuristics.py --record   ask the package again and store its answers
    python bench/compare_heuristics.py --write    write the generated parts of docs/peers.md

The peer's answers are recorded (tests/data/peers), so that nothing but the recording needs the package. Where it
is installed its answers of now are printed too, with its predicted time over the one here.
"""

from __future__ import annotations

import csv
import re
import sys
from dataclasses import astuple, dataclass, fields
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tilewright.candidates import Candidate, Candidates
from tilewright.device import Device, load
from tilewright.errors import TilewrightError
from tilewright.plan import draft_of
from tilewright.problem import Gemm
from tilewright.tiling import Tiling, make_tiling

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "tests" / "data" / "peers" / "matmul_heuristics_0.1.0.27.csv"
DOC = ROOT / "docs" / "peers.md"

SHAPES = (
    (8192, 8192, 8192), (4096, 4096, 4096), (2048, 2048, 2048), (1024, 1024, 1024), (8192, 8192, 512),
    (8192, 8192, 1024), (8192, 8192, 2048), (8192, 8192, 4096), (8192, 8192, 16384), (16384, 1024, 4096),
    (512, 4096, 14336), (128, 8192, 8192), (8448, 8192, 4096), (4352, 4352, 4096), (2176, 2176, 8192),
    (1152, 5120, 5120), (264, 16384, 2048), (4096, 14336, 4096), (64, 7168, 2048), (3000, 5000, 7008),
)  # fmt: skip
TARGETS = (("b200", "bf16"), ("b200", "fp8"), ("h200", "bf16"))

_GPUS = {"b200": "B200", "h200": "H200_SXM"}
_PRECISIONS = {"bf16": "TST", "fp8": "QQTST"}
"""Inputs, compute and output; five letters where input and output types differ."""

ASKED = 8
"""Results asked for at a time; the one with the least predicted time is taken."""


@dataclass(frozen=True)
class PeerPlan:
    """The peer's choice.

    Attributes:
        tile_m, tile_n: of one CTA.
        cluster_m: CTAs along M; on a B200 an even number means a 2-CTA instruction, as CUTLASS reads it.
        us: its own prediction, with 10 us of launch in it.
    """

    device: str
    dtype: str
    m: int
    n: int
    k: int
    tile_m: int
    tile_n: int
    tile_k: int
    cluster_m: int
    cluster_n: int
    stages: int
    split_k: int
    us: float

    @property
    def shape(self) -> tuple[int, int, int]:
        """M, N, K."""
        return self.m, self.n, self.k

    @property
    def pair(self) -> bool:
        """It asks for a 2-CTA instruction."""
        return self.device == "b200" and self.cluster_m % 2 == 0

    def tiling(self, device: Device) -> Tiling:
        """The same tile and cluster here, with as many stages as fit.

        Raises:
            TilewrightError: no such tiling here.
        """
        return make_tiling(
            _gemm(self).dtype,
            2,
            device,
            cta_tile=(self.tile_m, self.tile_n),
            cluster_shape=(self.cluster_m, self.cluster_n, 1),
            cta_group=2 if self.pair else 1,
        )

    def __str__(self) -> str:
        parts = f"{self.tile_m}x{self.tile_n}x{self.tile_k} c{self.cluster_m}x{self.cluster_n}"
        return (
            parts
            + (" pair" if self.pair else "")
            + (f" k/{self.split_k}" if self.split_k > 1 else "")
        )


class Row(NamedTuple):
    """Both plans of a shape, and this model's time for both.

    Attributes:
        theirs_us: this model's time for the peer's tile and cluster; None where it cannot be built here.
        why_not: what stands against building or costing it as the peer means it.
    """

    peer: PeerPlan
    ours: Candidate
    ours_us: float
    theirs_us: float | None
    why_not: str

    @property
    def ours_pair(self) -> bool:
        """This plan has a 2-CTA instruction."""
        return self.ours.tiling.cta_group == 2

    @property
    def same_pair(self) -> bool:
        """Both have one, or neither."""
        return self.ours_pair == self.peer.pair

    @property
    def describe(self) -> str:
        """This plan in short."""
        tiling = self.ours.tiling
        x, y, _ = tiling.cluster_shape
        extra = (" pair" if self.ours_pair else "") + (" swapped" if self.ours.swap_ab else "")
        return f"{tiling.cta_tile} c{x}x{y}{extra}"


def _gemm(plan: PeerPlan) -> Gemm:
    return Gemm(m=plan.m, n=plan.n, k=plan.k, dtype="fp8_e4m3" if plan.dtype == "fp8" else "bf16")


@cache
def recorded() -> tuple[PeerPlan, ...]:
    """The peer's answers as stored."""
    types = {field.name: field.type for field in fields(PeerPlan)}
    convert = {"str": str, "int": int, "float": float}
    with RECORD.open(encoding="utf-8", newline="") as file:
        return tuple(
            PeerPlan(**{name: convert[str(types[name])](cell) for name, cell in line.items()})
            for line in csv.DictReader(file)
        )


def ask() -> tuple[PeerPlan, ...]:
    """The peer's answers now.

    Raises:
        ImportError: the package is not installed (dependency group `bench`).
    """
    return tuple(_ask_one(device, dtype, shape) for device, dtype in TARGETS for shape in SHAPES)


def _ask_one(device: str, dtype: str, shape: tuple[int, int, int]) -> PeerPlan:
    import nvMatmulHeuristics as peer  # noqa: PLC0415, N813 (optional, and slow to load)

    interface = peer.NvMatmulHeuristicsInterfaceEx(
        backend=peer.NvMatmulHeuristicsTarget.CUTLASS3,
        flags=peer.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        gpu=peer.NvMatmulHeuristicsNvidiaGpu[_GPUS[device]],
        load_discovery_implicitly=False,
    )
    layout = peer.NvMatmulHeuristicsMatmulLayout.NT_ROW_MAJOR  # A (M, K), B (N, K), C (M, N)
    problem = interface.makeNvMatmulHeuristicsProblem(*shape, layout)
    results = interface.get(problem, ASKED, _PRECISIONS[dtype])
    best = min(results, key=lambda result: float(result["runtime"]))
    kernel = best["kernel"]
    return PeerPlan(
        device,
        dtype,
        *shape,
        tile_m=int(kernel.cta_tile_m),
        tile_n=int(kernel.cta_tile_n),
        tile_k=int(kernel.cta_tile_k),
        cluster_m=int(kernel.cluster_m),
        cluster_n=int(kernel.cluster_n),
        stages=int(kernel.stages),
        split_k=int(kernel.split_k),
        us=round(1e6 * float(best["runtime"]), 2),
    )


def record() -> None:
    """Store the peer's answers."""
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    with RECORD.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(PeerPlan))
        writer.writerows(astuple(plan) for plan in ask())


def _chosen(problem: Gemm, candidates: Candidates, device: Device) -> Candidate:
    """What `plan` answers."""
    draft = draft_of(problem, device)
    assert draft.tile is not None
    tiling = make_tiling(
        problem.dtype,
        problem.out_bytes,
        device,
        cta_tile=draft.tile[:2],
        cluster_shape=draft.cluster_shape,
        cta_group=draft.cta_group,
    )
    return candidates.evaluate(tiling, swap_ab=draft.swap_ab)


def compare(plan: PeerPlan) -> Row:
    """Both plans under this model; kernel time without launch."""
    device = load(plan.device)
    problem = _gemm(plan)
    candidates = Candidates(problem, device)
    ours = _chosen(problem, candidates, device)
    theirs_us: float | None = None
    why_not = f"split K in {plan.split_k}: costed without" if plan.split_k > 1 else ""
    try:
        theirs = candidates.evaluate(plan.tiling(device))
        theirs_us = theirs.cycles / device.sm_clock_mhz
    except TilewrightError as error:
        why_not = str(error).split("; ", maxsplit=1)[0].split(": ", maxsplit=1)[0]
    return Row(plan, ours, ours.cycles / device.sm_clock_mhz, theirs_us, why_not)


@cache
def rows() -> tuple[Row, ...]:
    """Every recorded answer beside the plan here."""
    return tuple(compare(plan) for plan in recorded())


# the document


def sections() -> dict[str, str]:
    """The generated parts of the document, by the name of their markers."""
    parts = {f"{device}-{dtype}": _table(device, dtype) for device, dtype in TARGETS}
    return {"summary": _summary(), **parts}


def _rows_of(device: str, dtype: str) -> list[Row]:
    return [row for row in rows() if (row.peer.device, row.peer.dtype) == (device, dtype)]


def _summary() -> str:
    lines = [
        "| device, type | same answer on a pair | same tile N | same tile and cluster | its choice within 2 % here | within 10 % | median gain over its choice |",
        "|---|---|---|---|---|---|---|",
    ]
    for device, dtype in TARGETS:
        mine = _rows_of(device, dtype)
        gains = sorted(row.theirs_us / row.ours_us - 1 for row in mine if row.theirs_us)
        pair = f"{sum(row.same_pair for row in mine)} of {len(mine)}" if device == "b200" else "-"
        tile_n = sum(_tile_n(row) == row.peer.tile_n for row in mine)
        same = sum(_same(row) for row in mine)
        near = [sum(gain <= limit for gain in gains) for limit in (0.02, 0.10)]
        lines.append(
            f"| {device}, {dtype} | {pair} | {tile_n} | {same} | {near[0]} of {len(gains)} | {near[1]} | "
            f"{gains[len(gains) // 2]:.1%} |"
        )
    return "\n".join(lines)


def _tile_n(row: Row) -> int:
    """Columns of a CTA in the problem's frame."""
    tile = row.ours.tiling.cta_tile
    return tile.m if row.ours.swap_ab else tile.n


def _same(row: Row) -> bool:
    tiling = row.ours.tiling
    theirs = (row.peer.tile_m, row.peer.tile_n, row.peer.cluster_m, row.peer.cluster_n)
    return not row.ours.swap_ab and (*tiling.cta_tile[:2], *tiling.cluster_shape[:2]) == theirs


def _table(device: str, dtype: str) -> str:
    lines = [
        "| M x N x K | its plan | its us | plan here | us here | its plan here | it costs more by |",
        "|---|---|---:|---|---:|---:|---:|",
    ]
    lines += [" | ".join(_cells(row)) for row in _rows_of(device, dtype)]
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    m, n, k = row.peer.shape
    theirs, more = "-", row.why_not
    if row.theirs_us is not None:
        theirs = f"{row.theirs_us:.1f}"
        more = f"{row.theirs_us / row.ours_us - 1:+.1%}" + (
            f" ({row.why_not})" if row.why_not else ""
        )
    return (
        f"| {m} x {n} x {k}",
        str(row.peer),
        f"{row.peer.us:.1f}",
        row.describe,
        f"{row.ours_us:.1f}",
        theirs,
        f"{more} |",
    )


def render(text: str) -> str:
    """The document with its generated parts replaced.

    Raises:
        ValueError: a marker is missing.
    """
    for name, body in sections().items():
        start, end = f"<!-- generated: {name} -->\n", f"<!-- end: {name} -->"
        pattern = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"{DOC.name} has no part between the markers of {name!r}")
        text = pattern.sub(f"{start}{body}\n{end}".replace("\\", r"\\"), text)
    return text


def print_live() -> None:
    """The installed package's answers now, and its predicted time over the one here."""
    try:
        live = ask()
    except ImportError:
        print("nvidia-matmul-heuristics is not installed: recorded answers only")
        return
    for plan, row in zip(live, rows(), strict=True):
        changed = "" if plan == row.peer else f", recorded as {row.peer}"
        what = f"{plan.device} {plan.dtype} {'x'.join(map(str, plan.shape))}"
        print(f"{what}: {plan}, {plan.us:.1f} us, {plan.us / row.ours_us:.2f} of here{changed}")


def main() -> None:
    """Print, record or write."""
    if "--record" in sys.argv[1:]:
        record()
    if "--write" in sys.argv[1:]:
        DOC.write_text(render(DOC.read_text(encoding="utf-8")), encoding="utf-8")
    for name, body in sections().items():
        print(f"== {name}\n{body}\n")
    print_live()


if __name__ == "__main__":
    main()
