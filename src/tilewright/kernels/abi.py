"""The argument of every GEMM kernel as bytes, and the three tensor maps in it.

Mirrors `GemmArguments` of arguments.cuh. A `TensorMapSpec` says what cuTensorMapEncodeTiled is to be
told; encoding it needs a driver and is done by who launches.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from tilewright.errors import BadInput
from tilewright.problem import DTYPES, OUT_BYTES

if TYPE_CHECKING:
    from tilewright.kernels.config import GemmConfig

TENSOR_MAP_BYTES = 128
TENSOR_MAP_EXTENT_MAX = 2**32
TENSOR_MAP_STRIDE_MAX = 2**40
"""Bytes. Source: CUDA driver API, cuTensorMapEncodeTiled: globalDim and globalStrides."""

ALIGNMENT = 16
"""Bytes; of a tensor's address and strides. Same source."""


REQUESTS = np.dtype([("ask_ns", "<u8"), ("answer_ns", "<u8")])
"""`RequestTime` of timeline.cuh: one a cluster tile; zeros before the launch, and where no request brought it."""


@dataclass(frozen=True, slots=True)
class TensorMapSpec:
    """A tiled tensor map of three dimensions, innermost first.

    Attributes:
        dtype: element type.
        dims: elements along the contiguous axis, rows, groups.
        strides_bytes: between rows and between groups.
        box: elements that one copy moves along each dimension.
        swizzle_bytes: 32, 64 or 128: bytes of a swizzled row.
    """

    dtype: str
    dims: tuple[int, int, int]
    strides_bytes: tuple[int, int]
    box: tuple[int, int, int]
    swizzle_bytes: Literal[32, 64, 128]

    def check(self, what: str) -> None:
        """Refuse what the driver would, with the value.

        Raises:
            BadInput
        """
        for extent in self.dims:
            if not 1 <= extent <= TENSOR_MAP_EXTENT_MAX:
                raise BadInput(
                    f"{what} has {extent} elements along one axis; TMA takes 1 to 2^32",
                    given=extent,
                    allowed="1 to 2^32",
                )
        for stride in self.strides_bytes:
            if stride % ALIGNMENT or not 0 <= stride < TENSOR_MAP_STRIDE_MAX:
                raise BadInput(
                    f"{what} has a stride of {stride} bytes; TMA needs a multiple of {ALIGNMENT} below 2^40",
                    given=stride,
                    allowed=f"a multiple of {ALIGNMENT}",
                    nearest=str(-(-stride // ALIGNMENT) * ALIGNMENT),
                )


@dataclass(frozen=True, slots=True)
class GemmShape:
    """Extents of the user's problem: D[m, n] = A[m, k] B[n, k]^T for each group.

    Attributes:
        m, n, k: extents; the ragged one is the sum over the groups.
        groups: batch entries, or groups of a ragged problem.
    """

    m: int
    n: int
    k: int
    groups: int = 1


def operand_maps(config: GemmConfig, shape: GemmShape) -> tuple[TensorMapSpec, TensorMapSpec]:
    """Maps of the kernel's a and b. With swap_ab its a is the user's B."""
    bits = DTYPES[config.tiling.mma.dtype].bits
    tile, (cluster_m, cluster_n, _) = config.tiling.cta_tile, config.tiling.cluster_shape
    of_a, of_b = (shape.m, shape.n) if not config.swap_ab else (shape.n, shape.m)
    shared_by_groups = {"m": "a", "n": "b", "k": "ab", "none": ""}[config.ragged]
    k = shape.k or ALIGNMENT * 8 // bits  # without any k no tile has a step: the map is never used
    row_bytes = k * bits // 8

    def make(name: str, rows: int, share: int) -> TensorMapSpec:
        return TensorMapSpec(
            config.tiling.mma.dtype,
            (k, rows, 1 if name in shared_by_groups else shape.groups),
            (row_bytes, rows * row_bytes),
            (tile.k, share, 1),
            128,
        )

    return make("a", of_a, tile.m // cluster_n), make("b", of_b, tile.n // cluster_m)


def output_map(config: GemmConfig, shape: GemmShape) -> TensorMapSpec:
    """Map of D as the epilogue stores it (epilogue.cuh): a box of lines along its contiguous axis.

    A line has 128 bytes, or 64 or 32 where the tile's columns do not divide by 128. A box has 64 lines
    (wgmma) or the CTA tile's rows (tcgen05); transposed, as many as a line has elements, or as divide the
    tile's columns.
    """
    out_bytes = OUT_BYTES[config.out_dtype]
    tile = config.tiling.cta_tile
    if config.swap_ab:
        swizzle = 128
        lines = next(lines for lines in (128 // out_bytes, 32, 16) if tile.n % lines == 0)
    else:
        swizzle = next(width for width in (128, 64, 32) if tile.n * out_bytes % width == 0)
        lines = 64 if config.tiling.mma.family == "wgmma" else tile.m
    grouped = config.ragged in {"m", "n"}
    return TensorMapSpec(
        config.out_dtype,
        (shape.n, shape.m, 1 if grouped else shape.groups),
        (shape.n * out_bytes, shape.m * shape.n * out_bytes),
        (swizzle // out_bytes, lines, 1),
        swizzle,  # type: ignore[arg-type]
    )


def pack_arguments(
    config: GemmConfig,
    shape: GemmShape,
    maps: tuple[bytes, bytes, bytes],
    *,
    output: int,
    c: int = 0,
    bias: int = 0,
    counts: int = 0,
    work_counter: int = 0,
    alpha: float = 1.0,
    beta: float = 0.0,
    a_data: int = 0,
    b_data: int = 0,
    times: tuple[int, int] = (0, 0),
) -> bytes:
    """`GemmLaunch` as the kernel reads it.

    Args:
        maps: encoded tensor maps of a, b and D, 128 bytes each; zeros for D where TMA does not store it,
            and for all three of a kernel without TMA.
        output, c, bias, counts, work_counter: device addresses.
        a_data, b_data: device addresses of the kernel's a and b (with swap_ab its a is the user's B), for
            kernels without TMA. Packed: (groups, rows, k), or (rows, k) where groups share the tensor.
        times: device addresses of zeroed `TIMELINE` entries, one a cluster tile and rank, and of zeroed `REQUESTS`
            entries, one a cluster tile, for a config that keeps them.
    """
    if any(len(encoded) != TENSOR_MAP_BYTES for encoded in maps):
        raise ValueError("a tensor map has 128 bytes")
    m, n = (shape.n, shape.m) if config.swap_ab else (shape.m, shape.n)
    grouped = config.ragged in {"m", "n"}
    tail = struct.pack(
        "<5Q2q4i2f2Q4q",
        output,
        c,
        bias,
        counts,
        work_counter,
        shape.n,
        0 if grouped else shape.m * shape.n,
        m,
        n,
        shape.k,
        shape.groups,
        alpha,
        beta,
        a_data,
        b_data,
        shape.k,
        shape.k,
        0 if config.ragged in {"m", "k"} else m * shape.k,
        0 if config.ragged in {"n", "k"} else n * shape.k,
    )
    packed = b"".join(maps) + tail
    if config.timeline:
        packed += struct.pack("<2Q", *times)
    return packed + bytes(-len(packed) % 64)  # a struct of 64-byte alignment
