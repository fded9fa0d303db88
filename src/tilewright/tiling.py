"""Tilings: how a matrix product may be cut on a device, and what each cut takes.

A `Tiling` is facts only: the instruction, the CTA tile, the cluster, and what follows from them (stages
that shared memory holds, TMEM columns, threads, registers). What it costs is `cost`'s business.

Two tiles, two names: `cta_tile` is what one CTA owns of the output; `pair_tile` is what the two CTAs of a
cta_group 2 instruction own together (twice the rows). The cluster's x runs along M, its y along N, so
that a pair is two neighbouring ranks.

Left out: swapped operands for tiny M, sparse kinds, two MMAs a CTA (256 x 256 per CTA), split K.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import TYPE_CHECKING

from tilewright.errors import BadInput, NoFit, Unsupported
from tilewright.mma import (
    WGMMA_DTYPES,
    Mma,
    Shape,
    check_dtype,
    check_mma,
    family,
    legal_m,
    mma_k,
    n_step,
    stage_k,
)
from tilewright.problem import DTYPES
from tilewright.residency import CtaResources, check_cluster_size, ctas_per_sm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.device import Device

TMEM_ALLOC_MIN = 32
"""tcgen05.alloc takes powers of two from 32 columns. Source: PTX ISA, tcgen05.alloc."""

BARRIER_BYTES = 1024
"""Kept for mbarriers, CLC responses, the TMEM address and the 1024-byte alignment of swizzled buffers.
Source: the same reserve as CuTe DSL's dense_gemm_persistent examples."""

EPILOGUE_BUFFERS = 2
"""Output staging buffers: one is filled while TMA stores the other."""

STAGES_MAX = 12
"""Deeper rings than this bring nothing: a stage is at least one MMA's work. Kind: assumed."""

WARPGROUP = 128
CLUSTER_SHAPES: tuple[tuple[int, int, int], ...] = tuple(
    (x, y, 1) for x, y in product((1, 2, 4, 8, 16), repeat=2) if x * y <= 16
)
TILE_N: tuple[int, ...] = tuple(range(16, 257, 16))


@dataclass(frozen=True, slots=True)
class SmemPlan:
    """Shared memory of one CTA in bytes.

    Attributes:
        a_bytes, b_bytes: one stage's operand buffers of this CTA.
        scale_bytes: one stage's scale factors, 0 without.
        epilogue_bytes: output staging.
        barrier_bytes: barriers, responses and alignment.
    """

    a_bytes: int
    b_bytes: int
    scale_bytes: int
    epilogue_bytes: int
    barrier_bytes: int

    @property
    def stage_bytes(self) -> int:
        """One stage of the ring."""
        return self.a_bytes + self.b_bytes + self.scale_bytes

    @property
    def fixed_bytes(self) -> int:
        """What does not grow with the stages."""
        return self.epilogue_bytes + self.barrier_bytes

    def total(self, num_stages: int) -> int:
        """Dynamic shared memory of the launch."""
        return self.fixed_bytes + num_stages * self.stage_bytes


@dataclass(frozen=True)
class Tiling:
    """One legal cut of a matrix product on a device.

    Attributes:
        mma: the instruction.
        cta_tile: output rows and columns of a CTA, K of a stage.
        cluster_shape: CTAs along M, N and 1.
        num_stages: stages of the operand ring.
        accumulator_stages: accumulators in TMEM; 1 where they are in registers.
        smem: shared memory of a CTA.
        multicast: TMA loads go to several CTAs of the cluster.
    """

    mma: Mma
    cta_tile: Shape
    cluster_shape: tuple[int, int, int]
    num_stages: int
    accumulator_stages: int
    smem: SmemPlan
    multicast: bool

    @property
    def cta_group(self) -> int:
        """CTAs that issue one MMA together."""
        return self.mma.cta_group

    @property
    def cluster_size(self) -> int:
        """CTAs a cluster."""
        x, y, z = self.cluster_shape
        return x * y * z

    @property
    def pair_tile(self) -> Shape | None:
        """Output of the two CTAs of a pair; None for cta_group 1."""
        if self.cta_group == 1:
            return None
        return self.cta_tile._replace(m=2 * self.cta_tile.m)

    @property
    def cluster_tile(self) -> Shape:
        """Output of one cluster."""
        x, y, _ = self.cluster_shape
        return Shape(self.cta_tile.m * x, self.cta_tile.n * y, self.cta_tile.k)

    @property
    def consumer_warpgroups(self) -> int:
        """Warpgroups that compute (wgmma) or drain accumulators (tcgen05)."""
        if self.mma.family == "wgmma":
            return 2 if self.cta_tile.m >= 128 else 1
        return 1

    @property
    def threads(self) -> int:
        """Threads a CTA.

        tcgen05: four role warps (TMA, MMA, scheduler, epilogue load) and an epilogue warpgroup. wgmma: a
        producer warpgroup and the consumers. mma.sync: four or eight warps that do everything.
        """
        if self.mma.family == "tcgen05":
            return 2 * WARPGROUP
        if self.mma.family == "wgmma":
            return WARPGROUP * (1 + self.consumer_warpgroups)
        return 256 if self.cta_tile.m * self.cta_tile.n > 64 * 64 else 128

    @property
    def regs(self) -> int:
        """Registers a thread at launch: what the register file gives this many threads, at most 255."""
        if self.mma.family == "mma.sync":
            accumulators = self.cta_tile.m * self.cta_tile.n // self.threads
            return min(255, accumulators + 96)
        return min(255, 65_536 // self.threads // 8 * 8)

    @property
    def accumulator_columns(self) -> int:
        """TMEM columns of one accumulator; 0 where it is in registers.

        A pair of M = 128 folds its columns in two (layout B), every other shape here takes N.
        """
        if self.mma.family != "tcgen05":
            return 0
        folded = self.cta_group == 2 and self.mma.shape.m == 128
        return self.cta_tile.n // 2 if folded else self.cta_tile.n

    @property
    def scale_columns(self) -> int:
        """TMEM columns of one stage's scale factors: 4 scales of 32 rows in a column, B for all of N."""
        block = DTYPES[self.mma.dtype].scale_block
        if not block or self.mma.family != "tcgen05":
            return 0
        per_32_rows = -(-self.cta_tile.k // (4 * block))
        return (self.cta_tile.m + _round_up(self.cta_tile.n, 128)) // 32 * per_32_rows

    @property
    def tmem_columns(self) -> int:
        """Columns to allocate: a power of two of at least 32."""
        used = self.accumulator_columns * self.accumulator_stages + self.scale_columns
        return max(TMEM_ALLOC_MIN, 1 << (used - 1).bit_length()) if used else 0

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA."""
        return self.smem.total(self.num_stages)

    @cached_property
    def resources(self) -> CtaResources:
        """What one CTA takes of an SM."""
        return CtaResources(self.threads, self.smem_bytes, self.regs, self.tmem_columns)

    @property
    def expect_tx_bytes(self) -> int:
        """Bytes that arrive on one `full` barrier a phase.

        A CTA's own barrier counts its own stage. With cta_group 2 both CTAs' loads signal the leader's
        barrier, so it counts two stages: of the pair, whatever the cluster.
        """
        return self.smem.stage_bytes * self.cta_group

    def describe(self) -> str:
        """The tile in one line, saying whose it is."""
        pair = f", pair tile {self.pair_tile}" if self.pair_tile else ""
        x, y, z = self.cluster_shape
        return f"CTA tile {self.cta_tile}{pair}, cluster ({x}, {y}, {z}), {self.num_stages} stages"


@lru_cache(maxsize=64)
def fitting_tilings(dtype: str, out_bytes: int, device: Device) -> tuple[Tiling, ...]:
    """Every tiling worth costing that fits the device.

    Raises:
        Unsupported: the device lacks the dtype.
        NoFit: none fits; names the closest miss.
    """
    check_dtype(dtype, device)
    fits: list[Tiling] = []
    misses: list[tuple[int, str]] = []
    for mma, cta_tile in _shapes(dtype, device):
        smem = _smem_plan(mma, cta_tile, out_bytes)
        stages = min(
            STAGES_MAX, (device.smem_per_cta_max_bytes - smem.fixed_bytes) // smem.stage_bytes
        )
        if stages < 2:
            misses.append((smem.total(2), _too_large(2, mma, cta_tile, smem, device)))
            continue
        accumulators = _accumulator_stages(mma, cta_tile, device)
        if accumulators == 0:
            continue
        for cluster in _clusters(mma, cta_tile, device):
            multicast = device.multicast and cluster[0] * cluster[1] > mma.cta_group
            fits.append(Tiling(mma, cta_tile, cluster, stages, accumulators, smem, multicast))
    if not fits:
        closest = min(misses, default=(0, f"no tile of {dtype} exists for {device.name}"))
        raise NoFit(closest[1], given=dtype)
    return tuple(fits)


def make_tiling(
    dtype: str,
    out_bytes: int,
    device: Device,
    *,
    cta_tile: tuple[int, int],
    cluster_shape: tuple[int, int, int] = (1, 1, 1),
    cta_group: int = 1,
    num_stages: int | None = None,
    accumulator_stages: int | None = None,
) -> Tiling:
    """One tiling that the caller names, checked the same way as the enumerated ones.

    Args:
        cta_tile: rows and columns of one CTA, not of the pair.
    Raises:
        BadInput, Unsupported, NoFit: what is wrong, and the nearest thing that works.
    """
    check_dtype(dtype, device)
    fam = family(device)
    tile = Shape(*cta_tile, _stage_k(dtype, device))
    mma = Mma(fam, _instruction(fam, dtype, tile, cta_group), dtype, cta_group)
    check_mma(mma)
    x, y, z = cluster_shape
    check_cluster_size(x * y * z, device)
    if cta_group == 2 and x % 2:
        raise BadInput(
            f"cta_group 2 needs an even number of CTAs along x; the cluster is {cluster_shape}",
            given=cluster_shape,
            nearest=f"({x + 1}, {y}, {z})",
        )
    if z != 1:
        raise BadInput(
            f"cluster {cluster_shape}: a matrix product uses x (along M) and y (along N) only"
        )
    smem = _smem_plan(mma, tile, out_bytes)
    most = (device.smem_per_cta_max_bytes - smem.fixed_bytes) // smem.stage_bytes
    stages = min(STAGES_MAX, most) if num_stages is None else num_stages
    if stages > most or stages < 1:
        raise NoFit(
            _too_large(max(stages, 1), mma, tile, smem, device),
            given=stages,
            allowed=f"1 to {most}",
            nearest=str(most),
        )
    most_accumulators = _accumulator_stages(mma, tile, device)
    accumulators = most_accumulators if accumulator_stages is None else accumulator_stages
    if not 1 <= accumulators <= most_accumulators:
        raise NoFit(
            f"{accumulators} accumulator stages of {tile.n} columns do not fit the "
            f"{device.tmem_columns} TMEM columns of {device.name}; at most {most_accumulators} do",
            given=accumulators,
            allowed=f"1 to {most_accumulators}",
            nearest=str(most_accumulators),
        )
    multicast = device.multicast and x * y > cta_group
    tiling = Tiling(mma, tile, cluster_shape, stages, accumulators, smem, multicast)
    ctas_per_sm(tiling.resources, device)
    return tiling


def _instruction(fam: str, dtype: str, tile: Shape, cta_group: int) -> Shape:
    if fam == "tcgen05":
        return Shape(tile.m * cta_group, tile.n, mma_k(dtype))
    if fam == "wgmma":
        return Shape(64, tile.n, mma_k(dtype))
    return Shape(16, 8, mma_k(dtype))


def _stage_k(dtype: str, device: Device) -> int:
    """K of a stage: a 128-byte row; half of it where shared memory is small and TMA is missing."""
    return stage_k(dtype) if device.tma else stage_k(dtype) // 2


def _shapes(dtype: str, device: Device) -> Iterator[tuple[Mma, Shape]]:
    """Instruction and CTA tile pairs; which clusters they take is decided later."""
    fam = family(device)
    if fam == "wgmma" and dtype not in WGMMA_DTYPES:
        raise Unsupported(
            f"wgmma has no {dtype}; {device.name} runs {', '.join(sorted(WGMMA_DTYPES))}",
            given=dtype,
            allowed=", ".join(sorted(WGMMA_DTYPES)),
        )
    k = _stage_k(dtype, device)
    for m, n, group in _cta_extents(fam, dtype, device):
        tile = Shape(m, n, k)
        mma = Mma(fam, _instruction(fam, dtype, tile, group), dtype, group)
        if n % n_step(fam, dtype, group) == 0:
            yield mma, tile


def _cta_extents(fam: str, dtype: str, device: Device) -> Iterator[tuple[int, int, int]]:
    if fam == "tcgen05":
        for m in legal_m("tcgen05", dtype, 1):
            yield from ((m, n, 1) for n in TILE_N)
        if device.cta_group_2:  # a pair of M = 128 runs at half rate: never a candidate
            yield from ((128, n, 2) for n in TILE_N)
    elif fam == "wgmma":
        # 128 accumulator registers a thread at most: m x n <= 2 warpgroups x 64 x 256
        yield from ((64, n, 1) for n in TILE_N)
        yield from ((128, n, 1) for n in TILE_N)
        yield from ((256, n, 1) for n in TILE_N if n <= 128)
    else:
        yield from ((m, n, 1) for m, n in product((64, 128), (64, 128)))
        yield from ((128, 256, 1), (256, 128, 1))


def _smem_plan(mma: Mma, cta_tile: Shape, out_bytes: int) -> SmemPlan:
    element = DTYPES[mma.dtype]
    m, n, k = cta_tile
    scale = 0
    if element.scale_block:  # stored in atoms of 128 rows; each CTA holds B's scales for all of N
        rows = _round_up(m, 128) + _round_up(n, 128)
        scale = rows * max(4, k // element.scale_block) * element.scale_bytes
    staging = EPILOGUE_BUFFERS * min(m, 128) * min(n * out_bytes, 128)
    if mma.family == "mma.sync":
        staging = 0  # the epilogue reuses the drained ring
    return SmemPlan(
        a_bytes=m * k * element.bits // 8,
        b_bytes=n // mma.cta_group * k * element.bits // 8,
        scale_bytes=scale,
        epilogue_bytes=staging,
        barrier_bytes=BARRIER_BYTES,
    )


def _accumulator_stages(mma: Mma, cta_tile: Shape, device: Device) -> int:
    if mma.family != "tcgen05":
        return 1
    probe = Tiling(mma, cta_tile, (1, 1, 1), 1, 1, _smem_plan(mma, cta_tile, 2), multicast=False)
    room = int(device.need("tmem_columns", "accumulator stages")) - probe.scale_columns
    return min(2, room // probe.accumulator_columns)


def _clusters(mma: Mma, cta_tile: Shape, device: Device) -> Iterator[tuple[int, int, int]]:
    """Cluster shapes whose CTAs can each load an 8-row share of what they multicast."""
    for x, y, z in CLUSTER_SHAPES:
        if x * y > device.cluster_size_max or x % mma.cta_group:
            continue
        if x * y > mma.cta_group and not device.multicast:
            continue  # without multicast a larger cluster shares nothing
        a_share = cta_tile.m // y
        b_share = cta_tile.n // mma.cta_group // (x // mma.cta_group)
        if a_share % 8 == 0 and b_share % 8 == 0:
            yield x, y, z


def _too_large(stages: int, mma: Mma, tile: Shape, smem: SmemPlan, device: Device) -> str:
    most = max(0, (device.smem_per_cta_max_bytes - smem.fixed_bytes) // smem.stage_bytes)
    fit = f"{most} stages fit ({smem.total(most)})" if most else "not one stage fits"
    return (
        f"{stages} stages of a {tile} {mma.dtype} CTA tile need {smem.total(stages)} bytes of shared memory "
        f"per CTA; {device.name} allows {device.smem_per_cta_max_bytes}. {fit}"
    )


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
