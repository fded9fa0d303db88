"""Launch dynamically scheduled kernels again and again: every launch gives the same bits.

    python tests/gpu/repeat_gemm.py 1000
    compute-sanitizer --tool racecheck python tests/gpu/repeat_gemm.py 1 small

The first output is checked against the reference. A counter that is not zero again, an answer read twice
or not at all shows as other bits, poison, or a hang.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from gemm_cases import Case, Variant, label
from tilewright.run.check import GemmCase, GemmRun
from tilewright.run.gemm import GemmKernel
from tilewright.run.gpu import Gpu

DYNAMIC = [
    Variant("h200", (64, 16), (1, 1, 1), out="fp32", scheduler="dynamic_atomic"),
    Variant("h200", (64, 16), (2, 1, 1), out="fp32", scheduler="dynamic_atomic", depth=2),
    Variant("h200", (64, 32), (2, 2, 1), out="fp32", scheduler="dynamic_atomic", depth=3),
    Variant("h200", (128, 64), (4, 1, 1), scheduler="dynamic_atomic"),
]
GROUPED = GemmCase(0, 256, 192, counts=(100, 0, 900, 1, 0, 129, 64, 2000, 3))


def cases(*, small: bool) -> list[Case]:
    """Several tiles a resident cluster, on an H200 at least one more than are resident when small."""
    dense = GemmCase(8_700, 16, 64) if small else GemmCase(12_000, 256, 192)
    ragged = GemmCase(0, 16, 64, counts=(100, 0, 8_600)) if small else GROUPED
    return [
        Case(f"{name} {label(variant)}", variant, problem, axis)
        for variant in DYNAMIC
        for name, problem, axis in (("dense", dense, None), ("grouped", ragged, "m"))
    ]


def main() -> None:
    repeats, small = int(sys.argv[1]), "small" in sys.argv[2:]
    with Gpu() as gpu:
        for case in cases(small=small):
            run = GemmRun(gpu, GemmKernel(gpu, case.config()), case.problem)
            checked = run.check()
            first = run.output()
            same = sum(np.array_equal(run.output(), first) for _ in range(repeats))
            run.close()
            print(  # noqa: T201
                f"{case.name}: {checked.tiles} tiles on {checked.grid_clusters} clusters, "
                f"worst {checked.worst:.2f}, {same} of {repeats} repeats the same",
                flush=True,
            )
            if not checked.passed or same != repeats:
                sys.exit(1)


if __name__ == "__main__":
    main()
