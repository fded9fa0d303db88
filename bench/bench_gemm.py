"""The plans of known problems on the GPU at hand: predicted against measured, and a library in the same rounds.

    python bench/bench_gemm.py [FILE.json] [--candidates 2]

Problems: the shapes and groups of tests/data/h200/gemm_baseline.csv; where that file cuts the list of
counts short, a list of the same skew from seed 0. Prints library time over ours, the model's error, and both
geometric means; with a file the records go there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.device import load
from tilewright.problem import Gemm, GroupedGemm
from tilewright.run.bench import BenchRecord, bench_problem
from tilewright.run.gpu import Gpu

if TYPE_CHECKING:
    from tilewright.problem import Matmul

SHAPES = (
    (8192, 8192, 8192), (4096, 4096, 4096), (2048, 2048, 2048), (1024, 1024, 1024), (8192, 8192, 512),
    (16384, 1024, 4096), (512, 4096, 14336), (128, 8192, 8192), (8448, 8192, 4096), (4352, 4352, 4096),
    (2176, 2176, 8192), (1152, 5120, 5120), (264, 16384, 2048), (4096, 14336, 4096),
)  # fmt: skip
SKEWED = (1528, 3516, 508, 408, 665, 939, 289, 339)
ROUNDS = 25


def skewed(groups: int, rows: int, exponent: float) -> tuple[int, ...]:
    """Rows of each group: a multinomial draw whose probabilities fall as a power of the rank."""
    rng = np.random.default_rng(0)
    weights = rng.permutation(1 / np.arange(1, groups + 1) ** exponent)
    return tuple(int(count) for count in rng.multinomial(rows, weights / weights.sum()))


def problems() -> dict[str, Matmul]:
    """By name; grouped ones say E groups, T rows, and the exponent of the skew."""
    found: dict[str, Matmul] = {f"{m}x{n}x{k}": Gemm(m=m, n=n, k=k) for m, n, k in SHAPES}
    for name, counts, n, k in (
        ("E8 T8192 even", (1024,) * 8, 4096, 4096),
        ("E8 T8192 skew 1.2", SKEWED, 4096, 4096),
        ("E64 T16384 even", (256,) * 64, 2048, 7168),
        ("E64 T16384 skew 1.2", skewed(64, 16384, 1.2), 2048, 7168),
        ("E128 T8192 skew 1.0", skewed(128, 8192, 1.0), 1536, 4096),
    ):
        found[f"{name} {n}x{k}"] = GroupedGemm(counts=counts, n=n, k=k)
    return found


def describe(name: str, record: BenchRecord) -> str:
    """One problem in a line: the chosen option."""
    row = record.rows[0]
    peer = record.library_us or float("nan")
    return (
        f"{name:34} {row.predicted_us:8.1f} {row.measured_us:8.1f} {row.predicted_us / row.measured_us - 1:+7.1%}"
        f" {peer:8.1f} {peer / row.measured_us:6.3f}  {'' if row.worst <= 1 else 'WRONG '}{row.kernel}, {row.scheduler}"
    )


def mean_ratio(records: dict[str, BenchRecord]) -> float:
    """Geometric mean of library over ours; nan without a library."""
    ratios = [(r.library_us or float("nan")) / r.rows[0].measured_us for r in records.values()]
    return float(np.exp(np.mean(np.log(ratios))))


def main() -> None:
    """Bench every problem."""
    args = sys.argv[1:]
    candidates = int(args.pop(args.index("--candidates") + 1)) if "--candidates" in args else 1
    files = [arg for arg in args if not arg.startswith("--")]
    records: dict[str, BenchRecord] = {}
    print(
        f"{'problem':34} {'model us':>8} {'measured':>8} {'error':>7} {'library':>8} {'ratio':>6}"
    )
    with Gpu() as gpu:
        for name, problem in problems().items():
            records[name] = bench_problem(
                gpu, problem, load("h200"), candidates=candidates, rounds=ROUNDS
            )
            print(describe(name, records[name]), flush=True)
        print(f"{gpu.name}, driver {gpu.driver_version}")
    dense = {n: r for n, r in records.items() if r.problem["kind"] == "gemm"}
    uneven = {n: r for n, r in records.items() if "skew" in n}
    errors = [abs(r.rows[0].predicted_us / r.rows[0].measured_us - 1) for r in records.values()]
    print(
        f"library over ours: {mean_ratio(dense):.3f} dense, {mean_ratio(uneven):.3f} skewed groups"
    )
    print(f"model: mean absolute error {np.mean(errors):.1%}, worst {max(errors):.1%}")
    if files:
        data: dict[str, Any] = {n: json.loads(r.to_json()) for n, r in records.items()}
        Path(files[0]).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
