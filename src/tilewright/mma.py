"""Matrix instructions: the shapes that the ISA allows. No chip numbers here.

    family      instruction     issued by               accumulator
    tcgen05     tcgen05.mma     one thread, 1 or 2 CTAs TMEM
    wgmma       wgmma.mma_async a warpgroup             registers
    mma.sync    mma.sync        a warp                  registers

Sources: PTX ISA 9.1, tcgen05.mma tables 39 and 52, wgmma 9.7.15.2, mma 9.7.14.1; shapes that CUTLASS
refuses though PTX lists them (M = 128 pairs of mxf8f6f4) are refused here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from tilewright.errors import BadInput, Unsupported
from tilewright.problem import DTYPES

if TYPE_CHECKING:
    from tilewright.device import Device

Family = Literal["tcgen05", "wgmma", "mma.sync"]

KIND: dict[str, str] = {
    "bf16": "f16",
    "fp16": "f16",
    "tf32": "tf32",
    "fp8_e4m3": "f8f6f4",
    "fp8_e5m2": "f8f6f4",
    "mxfp8": "mxf8f6f4",
    "nvfp4": "mxf4nvf4",
    "int8": "i8",
}
"""The `.kind` of tcgen05.mma for each input type."""

WGMMA_DTYPES = frozenset({"bf16", "fp16", "tf32", "fp8_e4m3", "fp8_e5m2", "int8"})
MMA_BYTES_K = 32
"""Bytes along K that one tcgen05.mma or wgmma consumes: 16 bf16, 32 fp8, 8 tf32, 64 fp4."""

SWIZZLE_BYTES = 128
"""Bytes along the contiguous axis of one swizzled shared-memory row; also the K extent of a stage."""


class Shape(NamedTuple):
    """Extents in elements."""

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


@dataclass(frozen=True, slots=True)
class Mma:
    """One matrix instruction.

    Attributes:
        shape: M, N, K of the instruction. With cta_group 2, M and N span the pair.
        cta_group: CTAs that execute it together; 1 or 2.
        kind: the `.kind` of tcgen05, empty for the others.
    """

    family: Family
    shape: Shape
    dtype: str
    cta_group: int = 1

    @property
    def kind(self) -> str:
        """The `.kind` qualifier, for tcgen05."""
        return KIND[self.dtype] if self.family == "tcgen05" else ""

    @property
    def block_scaled(self) -> bool:
        """Scale factors accompany both operands."""
        return DTYPES[self.dtype].scale_block > 0


def family(device: Device) -> Family:
    """The matrix instruction that a GEMM should use on this device."""
    if device.tcgen05:
        return "tcgen05"
    return "wgmma" if device.wgmma else "mma.sync"


def check_dtype(dtype: str, device: Device) -> None:
    """Refuse a dtype whose rate the device does not have.

    Raises:
        Unsupported: names the dtypes that the device has.
    """
    if device.tensor_rate(dtype) is None:
        known = [d for d in DTYPES if device.tensor_rate(d) is not None]
        raise Unsupported(
            f"{device.name} has no known tensor rate for {dtype}; it has {', '.join(known)}",
            given=dtype,
            allowed=", ".join(known),
            nearest=known[0] if known else "",
        )


def mma_k(dtype: str) -> int:
    """K of one instruction in elements."""
    return MMA_BYTES_K * 8 // DTYPES[dtype].bits


def stage_k(dtype: str) -> int:
    """K of one pipeline stage in elements: one 128-byte swizzled row."""
    return SWIZZLE_BYTES * 8 // DTYPES[dtype].bits


def n_step(fam: Family, dtype: str, cta_group: int = 1) -> int:
    """Granularity of the instruction's N.

    PTX 9.1 allows 8 for tcgen05 with M = 128; shipped kernels (CUTLASS, DeepGEMM) keep 16, and so do we.
    """
    if fam == "wgmma":
        return 16 if dtype == "int8" else 8
    if fam == "mma.sync":
        return 8
    return 32 if cta_group == 2 and dtype == "int8" else 16


def legal_m(fam: Family, dtype: str, cta_group: int = 1) -> tuple[int, ...]:
    """M of the instruction; over both CTAs for cta_group 2."""
    if fam == "wgmma":
        return (64,)
    if fam == "mma.sync":
        return (16,)
    if cta_group == 1:
        return (128,) if DTYPES[dtype].scale_block else (64, 128)
    return (256,) if dtype == "mxfp8" else (128, 256)


def check_mma(mma: Mma) -> None:
    """Refuse an instruction shape that the ISA does not have.

    Raises:
        BadInput: names the shapes that exist.
    """
    allowed_m = legal_m(mma.family, mma.dtype, mma.cta_group)
    step = n_step(mma.family, mma.dtype, mma.cta_group)
    m, n, k = mma.shape
    if mma.cta_group not in {1, 2} or (mma.cta_group == 2 and mma.family != "tcgen05"):
        raise BadInput(f"cta_group {mma.cta_group} does not exist for {mma.family}")
    if m not in allowed_m:
        raise BadInput(
            f"{mma.family} of {mma.dtype}, cta_group {mma.cta_group}: M={m} is not one of {allowed_m}",
            given=m,
            allowed=str(allowed_m),
        )
    most = 8 if mma.family == "mma.sync" else 256
    if n % step or not step <= n <= most:
        raise BadInput(
            f"{mma.family} of {mma.dtype}, cta_group {mma.cta_group}: N={n} is not a multiple of {step} "
            f"from {step} to {most}",
            given=n,
            allowed=f"{step} to {most} in steps of {step}",
            nearest=str(min(max(round(n / step) * step, step), most)),
        )
    if k != mma_k(mma.dtype):
        raise BadInput(f"{mma.family} of {mma.dtype} has K={mma_k(mma.dtype)}, not {k}", given=k)
