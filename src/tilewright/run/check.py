"""Does a kernel compute what it should? Random operands, a float64 reference, every element bounded.

An element may differ from the exact value by the rounding of its own type and by what accumulation in
fp32 may lose: `ACCUMULATION` x sum |a| |b|. The output is poisoned first, so that an element that nobody
wrote is seen; rows past a ragged group's end must keep what they held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.kernels.abi import GemmShape
from tilewright.problem import Groups
from tilewright.run.elements import STORAGE, UNIT_ROUNDOFF, decode, random_values
from tilewright.tile_map import TileMap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from tilewright.kernels.config import GemmConfig
    from tilewright.run.gemm import Bound, GemmKernel
    from tilewright.run.gpu import Gpu

ACCUMULATION: dict[str, float] = {
    "bf16": 2.0**-19,
    "fp16": 2.0**-19,
    "fp8_e4m3": 2.0**-9,
    "fp8_e5m2": 2.0**-9,
}
"""Of sum |a| |b|. 16-bit products are exact in fp32 and their sums lose some units in the last place; fp8
tensor cores keep about 13 bits of a partial sum (DeepSeek-V3 report, 3.3.2, on Hopper)."""

POISON = 0xC5
"""Byte that fills D before a launch: a large negative number in every output type."""


@dataclass(frozen=True, slots=True)
class GemmCase:
    """A problem as the user sees it: D[m, n] = alpha * A[m, k] B[n, k]^T + beta * C + bias, by groups.

    Attributes:
        counts: extents of the groups along the ragged axis (m or k); None for a dense or batched problem.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    counts: tuple[int, ...] | None = None
    alpha: float = 1.0
    beta: float = 0.0


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome.

    Attributes:
        worst: largest error over its bound; 1 or less passes.
        relative: norm of the error over the norm of the reference.
        tiles, grid_clusters: of the launch.
    """

    worst: float
    relative: float
    tiles: int
    grid_clusters: int

    @property
    def passed(self) -> bool:
        """Every element is within its bound."""
        return self.worst <= 1


def ragged_axis(config: GemmConfig) -> str:
    """The ragged axis of the user's problem: the kernel's, with swap_ab undone."""
    return {"n": "m"}.get(config.ragged, config.ragged)


def make_shape(config: GemmConfig, case: GemmCase) -> GemmShape:
    """The extents that the launch is told."""
    counts, axis = case.counts, ragged_axis(config)
    if counts is None:
        return GemmShape(case.m, case.n, case.k, case.batch)
    total = sum(counts)
    if axis == "m":
        return GemmShape(total, case.n, case.k, len(counts))
    return GemmShape(case.m, case.n, total, len(counts))


def tile_map(config: GemmConfig, case: GemmCase) -> TileMap:
    """The kernel's tile map, in its own frame."""
    one = np.ones(1, np.int64)
    if case.counts is None:
        groups = Groups(one * case.m, one * case.n, one * case.k, case.batch)
    else:
        counts = np.asarray(case.counts, np.int64)
        same = np.ones_like(counts)
        rows = counts if ragged_axis(config) == "m" else same * case.m
        depth = counts if ragged_axis(config) == "k" else same * case.k
        groups = Groups(rows, same * case.n, depth)
    if config.swap_ab:
        groups = groups._replace(m=groups.n, n=groups.m)
    return TileMap(groups, config.tiling.cta_tile, config.tiling.cluster_shape, config.raster)


class GemmRun:
    """Operands of one case on the device, bound to one kernel."""

    def __init__(self, gpu: Gpu, kernel: GemmKernel, case: GemmCase, seed: int = 0) -> None:
        config = kernel.config
        self._gpu, self._config, self._case = gpu, config, case
        rng = np.random.default_rng(seed)
        self._shape = shape = make_shape(config, case)
        axis, groups = ragged_axis(config), shape.groups
        dtype = config.tiling.mma.dtype
        flat = axis in {"m", "k"}
        self._a = random_values((1 if flat else groups, shape.m, shape.k), dtype, rng)
        self._b = random_values((1 if axis == "k" else groups, shape.n, shape.k), dtype, rng)
        self._out_shape = (1 if axis == "m" else groups, shape.m, shape.n)
        self._c = random_values(self._out_shape, config.out_dtype, rng) if config.has_c else None
        self._bias = rng.random(shape.n, np.float32) if config.has_bias else None
        self._map = tile_map(config, case)
        arrays: dict[str, Any] = {"a": self._a, "b": self._b, "c": self._c, "bias": self._bias}
        if case.counts is not None:
            arrays["counts"] = np.asarray(case.counts, np.int32)
        at = {name: gpu.upload(array) for name, array in arrays.items() if array is not None}
        self._out_bytes = (
            int(np.prod(self._out_shape)) * np.dtype(STORAGE[config.out_dtype]).itemsize
        )
        self._output = gpu.allocate(self._out_bytes + 4)
        self._held = [*at.values(), self._output]
        self.bound: Bound = kernel.bind(
            shape,
            self._map.num_tiles,
            output=self._output,
            alpha=case.alpha,
            beta=case.beta,
            **at,
        )

    def close(self) -> None:
        """Free the device memory."""
        for pointer in self._held:
            self._gpu.free(pointer)

    def output(self) -> NDArray[Any]:
        """Poison D, launch once, and read it."""
        self._gpu.fill(self._output, self._out_bytes + 3, POISON * 0x01010101)
        self.bound.launch()
        return self._gpu.download(self._output, self._out_shape, STORAGE[self._config.out_dtype])

    def check(self) -> Checked:
        """Launch once and compare every element."""
        got = decode(self.output(), self._config.out_dtype)
        worst = error = norm = 0.0
        for index, exact, size in self._references():
            wrong = np.abs(got[index] - exact)
            bound = UNIT_ROUNDOFF[self._config.out_dtype] * np.abs(exact) + (
                ACCUMULATION[self._config.tiling.mma.dtype] * size + 2.0**-24
            )
            if wrong.size:
                worst = max(
                    worst, float(np.max(np.where(np.isfinite(wrong), wrong / bound, np.inf)))
                )
            error += float(np.sum(wrong**2))
            norm += float(np.sum(exact**2))
        relative = float(np.sqrt(error / norm)) if norm else 0.0
        return Checked(worst, relative, self._map.num_tiles, self.bound.grid_clusters)

    def _references(self) -> Iterator[tuple[Any, NDArray[np.float64], NDArray[np.float64]]]:
        """For each group: where it lies in D, its exact value, and the sum of magnitudes."""
        case, dtype = self._case, self._config.tiling.mma.dtype
        for where, a, b in self._operands():
            left, right = decode(a, dtype), decode(b, dtype)
            exact = case.alpha * (left @ right.T)
            size = abs(case.alpha) * (np.abs(left) @ np.abs(right).T)
            if self._c is not None:
                addend = case.beta * decode(self._c[where], self._config.out_dtype)
                exact, size = exact + addend, size + np.abs(addend)
            if self._bias is not None:
                exact, size = exact + self._bias, size + np.abs(self._bias)
            yield where, exact, size

    def _operands(self) -> Iterator[tuple[Any, NDArray[Any], NDArray[Any]]]:
        axis = ragged_axis(self._config)
        counts: Sequence[int] = self._case.counts or ()
        ends = np.cumsum([0, *counts])
        for group in range(self._shape.groups):
            if axis == "m":
                rows = slice(ends[group], ends[group + 1])
                yield (0, rows), self._a[0, rows], self._b[group]
            elif axis == "k":
                steps = slice(ends[group], ends[group + 1])
                yield group, self._a[0, :, steps], self._b[0, :, steps]
            else:
                yield group, self._a[group], self._b[group]
