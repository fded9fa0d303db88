"""A library's kernel for the same product, where PyTorch is installed: cuBLAS, or torch._grouped_mm.

PyTorch is no dependency: without it the comparison is left out, and the report says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.run.check import ragged_axis

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilewright.run.check import GemmRun

_TYPES = {"bf16": ("int16", "bfloat16"), "fp16": ("float16", "float16")}


class NoLibrary(TilewrightError):
    """PyTorch is missing, sees no GPU, or has no kernel for this product."""


def library_launch(run: GemmRun) -> tuple[str, Callable[[], Any]]:
    """The library's name, and its launch on copies of the same operands into an output of its own.

    Raises:
        NoLibrary
    """
    try:
        import torch  # noqa: PLC0415  (an optional peer)
    except ImportError:
        raise NoLibrary("PyTorch is not installed: no library to compare with") from None
    if not torch.cuda.is_available():
        raise NoLibrary("this PyTorch sees no GPU")
    dtype, out = run.config.tiling.mma.dtype, run.config.out_dtype
    if dtype not in _TYPES or out != dtype:
        raise NoLibrary(f"no library product of {dtype} with {out} output is compared")
    storage, meaning = _TYPES[dtype]
    a, b = (
        torch.from_numpy(run.arrays[name].view(np.dtype(storage)))
        .cuda()
        .view(getattr(torch, meaning))
        for name in ("a", "b")
    )
    columns = b.transpose(-1, -2)
    version = f"PyTorch {torch.__version__}"
    if run.case.counts is None:
        return f"cuBLAS ({version})", lambda: torch.matmul(a, columns)
    if ragged_axis(run.config) != "m":
        raise NoLibrary("groups along K have no library product to compare with here")
    ends = torch.from_numpy(np.cumsum(run.arrays["counts"]).astype(np.int32)).cuda()
    rows = a[0]
    return f"torch._grouped_mm ({version})", lambda: torch._grouped_mm(rows, columns, offs=ends)  # noqa: SLF001
