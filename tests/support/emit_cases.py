"""Problems that `emit` is tested with, and the paths that it finds for them."""

from __future__ import annotations

from typing import Any

from tilewright import Gemm, GroupedGemm, load, make_plan
from tilewright.emit.configs import Extras, find_paths

SQUARE = Gemm(m=8192, n=8192, k=8192)
MOE = GroupedGemm(counts=(1528, 3516, 0, 508), n=4096, k=4096)
WEIGHTS = GroupedGemm(counts=(1536, 3520, 0, 512), n=4096, m=2048, grouped="k")
SHORT = Gemm(m=32, n=8192, k=4096, dtype="fp8")
CASES = [
    (SQUARE, "b200"),
    (SQUARE, "h200"),
    (SQUARE, "a100"),
    (Gemm(m=500, n=1001, k=512, batch=3, dtype="fp16", out_dtype="fp32"), "h200"),
    (MOE, "b200"),
    (MOE, "h200"),
    (WEIGHTS, "b200"),
    (SHORT, "h200"),
    (GroupedGemm(counts=(8,) * 64, n=4096, k=4096), "h200"),
]


def paths_of(problem: Any, device: str, **extras: bool) -> list[Any]:
    chip = load(device)
    return find_paths(problem, make_plan(problem, chip), chip, Extras(**extras))[0]
