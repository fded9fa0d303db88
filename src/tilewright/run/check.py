"""Does a kernel compute what it should? Random operands, a float64 reference, every element bounded.

An element may differ from the exact value by the rounding of its own type and by what accumulation in
fp32 may lose: `ACCUMULATION` x sum |a| |b|. The output is poisoned first, so that an element that nobody
wrote is seen; rows past a ragged group's end must keep what they held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.kernels.abi import REQUESTS, GemmShape
from tilewright.kernels.harness import TIMELINE
from tilewright.problem import Groups
from tilewright.run.elements import STORAGE, UNIT_ROUNDOFF, decode, random_values
from tilewright.tile_map import TileMap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tilewright.kernels.config import GemmConfig
    from tilewright.run.gemm import Bound, GemmKernel
    from tilewright.run.unit import Unit

ACCUMULATION: dict[str, float] = {
    "bf16": 2.0**-19,
    "fp16": 2.0**-19,
    "fp8_e4m3": 2.0**-9,
    "fp8_e5m2": 2.0**-9,
}
"""Of sum |a| |b|. 16-bit products are exact in fp32 and their sums lose some units in the last place; fp8
tensor cores keep about 13 bits of a partial sum (DeepSeek-V3 report, 3.3.2, on Hopper)."""

POISON = 0xFF
"""Byte that fills D before a launch: not a number in every output type, and no conversion's result."""

REFERENCE_MADS = 2**36
"""Multiply-adds of a float64 reference that a CPU does in some seconds; beyond, rows are sampled."""


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
        rows: rows of D that were compared with the reference.
        unwritten: elements of D that still hold the poison, of all rows.
        tiles, grid_clusters: of the launch.
    """

    worst: float
    relative: float
    rows: int
    unwritten: int
    tiles: int
    grid_clusters: int

    @property
    def passed(self) -> bool:
        """Every element was written, and each compared one is within its bound."""
        return self.worst <= 1 and not self.unwritten


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
    """Operands of one case on the device, bound to one kernel.

    Attributes:
        arrays: a, b and what else the case has, in their storage types, groups first.
        addresses: where they lie on the device.
        bound: the kernel with its arguments.
    """

    def __init__(
        self,
        gpu: Unit,
        kernel: GemmKernel,
        case: GemmCase,
        seed: int = 0,
        like: GemmRun | None = None,
    ) -> None:
        """Make random operands, or share those of a run of the same case that outlives this one."""
        config = kernel.config
        self._gpu, self.config, self.case = gpu, config, case
        self._shape = shape = make_shape(config, case)
        axis, groups = ragged_axis(config), shape.groups
        self._out_shape = (1 if axis == "m" else groups, shape.m, shape.n)
        self.arrays: dict[str, NDArray[Any]] = (
            like.arrays if like else self._make_arrays(np.random.default_rng(seed))
        )
        self._tiles = tile_map(config, case).num_tiles
        self._storage = np.dtype(STORAGE[config.out_dtype])
        self._out_bytes = int(np.prod(self._out_shape)) * self._storage.itemsize
        self._owned = {} if like else {n: gpu.upload(array) for n, array in self.arrays.items()}
        self.addresses: dict[str, int] = like.addresses if like else self._owned
        self._output = gpu.allocate(self._out_bytes + 4)
        self._times = (0, 0)
        if config.timeline:
            of_tiles, of_requests = self._time_bytes
            self._times = gpu.allocate(max(1, of_tiles)), gpu.allocate(max(1, of_requests))
        self.bound: Bound = kernel.bind(
            shape,
            self._tiles,
            output=self._output,
            times=self._times,
            alpha=case.alpha,
            beta=case.beta,
            **self.addresses,
        )

    def _make_arrays(self, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        """Random operands in their storage types, groups first."""
        config, case, shape = self.config, self.case, self._shape
        axis, dtype = ragged_axis(config), config.tiling.mma.dtype
        a_groups = 1 if axis in {"m", "k"} else shape.groups
        b_groups = 1 if axis == "k" else shape.groups
        arrays: dict[str, NDArray[Any]] = {
            "a": random_values((a_groups, shape.m, shape.k), dtype, rng),
            "b": random_values((b_groups, shape.n, shape.k), dtype, rng),
        }
        if config.has_c:
            arrays["c"] = random_values(self._out_shape, config.out_dtype, rng)
        if config.has_bias:
            arrays["bias"] = rng.random(shape.n, np.float32)
        if case.counts is not None:
            arrays["counts"] = np.asarray(case.counts, np.int32)
        return arrays

    def close(self) -> None:
        """Free the device memory."""
        for pointer in (*self._owned.values(), self._output, *filter(None, self._times)):
            self._gpu.free(pointer)

    @property
    def _time_bytes(self) -> tuple[int, int]:
        """Of the entries of tiles and of requests."""
        return (
            self._tiles * self.config.cluster_size * TIMELINE.itemsize,
            self._tiles * REQUESTS.itemsize,
        )

    def times(self, warm_ups: int = 2) -> tuple[NDArray[np.void], NDArray[np.void]]:
        """Launch a kernel that keeps times and read them.

        Args:
            warm_ups: launches before the one that counts.
        Returns:
            `TIMELINE` entries, (cluster tiles, cluster size), and `REQUESTS` entries, (cluster tiles,).
        """
        for _ in range(warm_ups):
            self.bound.launch()
        for pointer, size in zip(self._times, self._time_bytes, strict=True):
            self._gpu.fill(pointer, size, 0)
        self.bound.launch()
        of_tiles, of_requests = self._times
        shape = (self._tiles, self.config.cluster_size)
        return (
            self._gpu.download(of_tiles, shape, TIMELINE),
            self._gpu.download(of_requests, (self._tiles,), REQUESTS),
        )

    def output(self) -> NDArray[Any]:
        """Poison D, launch once, and read it."""
        self._gpu.fill(self._output, self._out_bytes + 3, POISON * 0x01010101)
        self.bound.launch()
        return self._gpu.download(self._output, self._out_shape, self._storage)

    def check(self, reference_mads: int = REFERENCE_MADS) -> Checked:
        """Launch once and compare; every row where the reference is affordable, else a sample.

        Args:
            reference_mads: multiply-adds that the reference may take.
        """
        out = self.output()
        got = decode(out, self.config.out_dtype)
        poison = np.frombuffer(bytes([POISON] * self._storage.itemsize), self._storage)[0]
        worst = error = norm = 0.0
        rows = 0
        for index, exact, size in self._references(reference_mads):
            wrong = np.abs(got[index] - exact)
            bound = UNIT_ROUNDOFF[self.config.out_dtype] * np.abs(exact) + (
                ACCUMULATION[self.config.tiling.mma.dtype] * size + 2.0**-24
            )
            if wrong.size:
                ratio = np.where(np.isfinite(wrong), wrong / bound, np.inf)
                worst = max(worst, float(np.max(ratio)))
            error += float(np.sum(wrong**2))
            norm += float(np.sum(exact**2))
            rows += len(exact)
        return Checked(
            worst=worst,
            relative=float(np.sqrt(error / norm)) if norm else 0.0,
            rows=rows,
            unwritten=int(np.count_nonzero(out == poison)),
            tiles=self._tiles,
            grid_clusters=self.bound.grid_clusters,
        )

    def _references(
        self, mads: int
    ) -> Iterator[tuple[Any, NDArray[np.float64], NDArray[np.float64]]]:
        """For some rows of each group: where they lie in D, their exact values, the sum of magnitudes."""
        case, dtype = self.case, self.config.tiling.mma.dtype
        c, bias = self.arrays.get("c"), self.arrays.get("bias")
        for (group, first), a, b in self._operands():
            chosen = _some_rows(len(a), mads // max(1, a.shape[1] * len(b) * self._shape.groups))
            left, right = decode(a[chosen], dtype), decode(b, dtype)
            exact = case.alpha * (left @ right.T)
            size = abs(case.alpha) * (np.abs(left) @ np.abs(right).T)
            where = (group, first + chosen)
            if c is not None:
                addend = case.beta * decode(c[where], self.config.out_dtype)
                exact, size = exact + addend, size + np.abs(addend)
            if bias is not None:
                exact, size = exact + bias, size + np.abs(bias)
            yield where, exact, size

    def _operands(self) -> Iterator[tuple[tuple[int, int], NDArray[Any], NDArray[Any]]]:
        """Of each group: its place in D (group, first row) and its A and B."""
        a, b = self.arrays["a"], self.arrays["b"]
        axis = ragged_axis(self.config)
        ends = np.cumsum([0, *(self.case.counts or ())])
        for group in range(self._shape.groups):
            if axis == "m":
                first, end = int(ends[group]), int(ends[group + 1])
                yield (0, first), a[0, first:end], b[group]
            elif axis == "k":
                steps = slice(ends[group], ends[group + 1])
                yield (group, 0), a[0, :, steps], b[0, :, steps]
            else:
                yield (group, 0), a[group], b[group]


def _some_rows(rows: int, most: int) -> NDArray[np.int64]:
    """All rows of a group, or as many spread evenly, first and last among them, as are affordable."""
    return np.unique(np.linspace(0, rows - 1, min(rows, max(2, most))).astype(np.int64))
