"""Attention forward: tiles of unequal cost, and what one of them takes.

A tile is `block_q` query rows of one head of one sequence; it visits the key blocks that its rows can
see. Cycles a key block, by resource, combined as in `cost`:

    mma   4 block_q block_kv head_dim / (tensor rate * efficiency)     Q.K and P.V
    exp   block_q block_kv / exponentials a cycle
    l2    K and V of the block / this SM's share of L2, less what a cluster shares by multicast
    latency  (memory latency + half of l2 and mma) / stages: a round trip of a K slot, or of a V slot

Before a tile stand the loads of Q and the first K; after it O leaves through Q's buffer, and only then may
the next Q come. Kernels: sm_100 keeps two query tiles of 128 rows in flight against one K/V stream, above
head_dim 128 one (S, P and O in TMEM), sm_90 one of 128 rows on two consumer warpgroups, older ones one of
128 on mma.sync.

Left out: packing query heads of a group into M, split-KV decoding, exponentials by polynomial, the
softmax's other arithmetic (which the exponentials dominate), fp8's transposed V, padding of a head_dim
that is not whole MMA steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from tilewright.cost import StageCycles, hbm_bytes_per_cycle, l2_bytes_per_cycle, tensor_efficiency
from tilewright.errors import NoFit, Unsupported
from tilewright.mma import Family, family, mma_k
from tilewright.problem import DTYPES, key_range
from tilewright.residency import CtaResources
from tilewright.tiling import BARRIER_BYTES, TMEM_ALLOC_MIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tilewright.device import Device
    from tilewright.problem import Attention

QUERY_ROWS = 128
"""Rows of a query tile: one tcgen05.mma, two warpgroups of wgmma, or all warps of mma.sync."""

OUT_BYTES = 2
"""Bytes an element of O: bf16 or fp16, for fp8 inputs too."""

SLOT_ALIGNMENT = 1024
"""Bytes on which a 128-byte swizzled buffer starts."""

KV_STAGES_MAX = 4


@dataclass(frozen=True, slots=True)
class AttentionTiling:
    """How a forward attention kernel is cut; facts, and what follows from them.

    Attributes:
        family: the matrix instruction.
        q_tiles: query tiles of 128 rows in flight against one K/V stream; 2 on tcgen05 only.
        block_kv: keys a step.
        kv_stages: stages of the K ring, and of the V ring.
        cluster_shape: CTAs that share K and V; (1, 1, 1) without multicast.
    """

    family: Family
    head_dim: int
    dtype: str = "bf16"
    q_tiles: int = 1
    block_kv: int = 128
    kv_stages: int = 2
    cluster_shape: tuple[int, int, int] = (1, 1, 1)

    @property
    def cluster_size(self) -> int:
        """CTAs a cluster."""
        return math.prod(self.cluster_shape)

    @property
    def block_q(self) -> int:
        """Query rows a CTA, all query tiles together."""
        return self.q_tiles * QUERY_ROWS

    @property
    def kv_step(self) -> int:
        """What `block_kv` is a multiple of: N of Q.K, K of P.V, and a share of 8 rows for each CTA."""
        return math.lcm(16, mma_k(self.dtype), 8 * self.cluster_size)

    @property
    def threads(self) -> int:
        """Threads a CTA.

        tcgen05: a softmax warpgroup a query tile, one that corrects O, four role warps. wgmma: a producer
        and two consumer warpgroups. mma.sync: eight warps of 16 rows.
        """
        if self.family == "tcgen05":
            return 128 * (self.q_tiles + 2)
        return 384 if self.family == "wgmma" else 256

    @property
    def regs(self) -> int:
        """Registers a thread at launch: what one CTA an SM can have, at most 255."""
        return min(255, 65_536 // self.threads // 8 * 8)

    @property
    def score_stages(self) -> int:
        """S of one query tile in TMEM: two that alternate where there is one tile, else one a tile."""
        return 2 // self.q_tiles

    @property
    def tmem_columns(self) -> int:
        """S (P overwrites it) and O of every query tile, allocated; 0 where they are in registers."""
        if self.family != "tcgen05":
            return 0
        used = self.q_tiles * (self.score_stages * self.block_kv + self.head_dim)
        return max(TMEM_ALLOC_MIN, 1 << (used - 1).bit_length())

    @property
    def q_tile_bytes(self) -> int:
        """A query tile, as loaded."""
        return QUERY_ROWS * self.head_dim * DTYPES[self.dtype].bits // 8

    @property
    def q_slot_bytes(self) -> int:
        """Its buffer, through which O leaves: O is the larger of the two with fp8 inputs."""
        return max(self.q_tile_bytes, QUERY_ROWS * self.head_dim * OUT_BYTES)

    @property
    def kv_block_bytes(self) -> int:
        """A block of K, or of V, as loaded."""
        return self.block_kv * self.head_dim * DTYPES[self.dtype].bits // 8

    @property
    def kv_slot_bytes(self) -> int:
        """Its buffer."""
        return -(-self.kv_block_bytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT

    @property
    def statistics_bytes(self) -> int:
        """Row maxima or sums on their way from softmax to correction; elsewhere in registers."""
        return 4 * self.block_q if self.family == "tcgen05" else 0

    @property
    def smem_bytes(self) -> int:
        """Q (O leaves through it), the K and the V ring, row statistics and barriers."""
        rings = 2 * self.kv_stages * self.kv_slot_bytes
        return self.q_tiles * self.q_slot_bytes + rings + self.statistics_bytes + BARRIER_BYTES

    @property
    def resources(self) -> CtaResources:
        """What one CTA takes of an SM."""
        return CtaResources(self.threads, self.smem_bytes, self.regs, self.tmem_columns)

    def describe(self) -> str:
        """The tile in one line."""
        return (
            f"{self.q_tiles} query tile{'s' if self.q_tiles > 1 else ''} of {QUERY_ROWS} rows, "
            f"{self.block_kv} keys a step, {self.kv_stages} stage{'s' if self.kv_stages > 1 else ''} each "
            f"of K and V, cluster {self.cluster_shape}"
        )


def attention_tiling(
    problem: Attention, device: Device, cluster_shape: tuple[int, int, int] = (1, 1, 1)
) -> AttentionTiling:
    """The tiling of the architecture's forward kernel for this head size.

    Raises:
        NoFit: not one block of K and of V fits shared memory beside Q.
        Unsupported: no tensor rate for the dtype.
    """
    if device.tensor_rate(problem.dtype) is None:
        raise Unsupported(f"{device.name} has no known tensor rate for {problem.dtype}")
    room = device.smem_per_cta_max_bytes
    for cut in _cuts(problem, family(device), cluster_shape):
        if cut.smem_bytes <= room:
            return cut
    raise NoFit(
        f"attention with head_dim {problem.head_dim}: Q of {cut.block_q} rows and one block of {cut.block_kv} "
        f"keys and values take {cut.smem_bytes} bytes of shared memory a CTA; {device.name} allows {room}",
        given=cut.smem_bytes,
        allowed=str(room),
    )


def _cuts(
    problem: Attention, fam: Family, cluster_shape: tuple[int, int, int]
) -> Iterator[AttentionTiling]:
    """Cuts, best first: the most keys that two stages hold, then deeper rings; one stage where need be.

    mma.sync has one stage, filled while the other operand is multiplied.

    Sources: FlashAttention-4 (two query tiles of 128 x 128; one where two O do not fit 512 TMEM columns),
    FlashAttention-3 (128 x 128, and 112 and 80 keys for head_dim 192 and 256: what two stages hold here),
    FlashAttention-2 (128 x 64, a stage of each).
    """
    q_tiles = 2 if fam == "tcgen05" and problem.head_dim <= 128 else 1
    most = 64 if fam == "mma.sync" else 128
    rings = [(1,)] if fam == "mma.sync" else [tuple(range(KV_STAGES_MAX, 1, -1)), (1,)]
    one = AttentionTiling(
        fam, problem.head_dim, problem.dtype, q_tiles, cluster_shape=cluster_shape
    )
    step = one.kv_step
    for depths in rings:
        for block_kv, stages in product(range(max(most // step, 1) * step, 0, -step), depths):
            yield replace(one, block_kv=block_kv, kv_stages=stages)


@dataclass(frozen=True)
class AttentionTiles:
    """Every tile of the problem in launch order: sequence, then head, then rows.

    Attributes:
        blocks: key blocks that each tile visits.
        sequence, head, row: where it is; `row` in units of block_q.
    """

    blocks: NDArray[np.int64]
    sequence: NDArray[np.int32]
    head: NDArray[np.int32]
    row: NDArray[np.int32]


def attention_tiles(problem: Attention, tiling: AttentionTiling) -> AttentionTiles:
    """Tiles with the key blocks each visits; a cluster's CTAs are adjacent row blocks of one head.

    With a cluster the tile is the cluster's: it visits what its last CTA needs.
    """
    rows = tiling.block_q * tiling.cluster_size
    len_q, len_k = problem.lengths()
    known: dict[tuple[int, int], NDArray[np.int64]] = {}
    visits = []
    for lengths in zip(len_q.tolist(), len_k.tolist(), strict=True):
        if lengths not in known:
            known[lengths] = _visits(problem, tiling, *lengths)
        visits += [known[lengths]] * problem.heads
    counts = -(-len_q // rows)
    a_head = np.repeat(counts, problem.heads)  # tiles of each head of each sequence
    starts = np.cumsum(a_head) - a_head
    total = int(a_head.sum())
    return AttentionTiles(
        blocks=np.concatenate(visits),
        sequence=np.repeat(np.arange(len(len_q), dtype=np.int32), counts * problem.heads),
        head=np.repeat(np.tile(np.arange(problem.heads, dtype=np.int32), len(len_q)), a_head),
        row=(np.arange(total) - np.repeat(starts, a_head)).astype(np.int32),
    )


def _visits(
    problem: Attention, tiling: AttentionTiling, len_q: int, len_k: int
) -> NDArray[np.int64]:
    """Key blocks that each tile of one head of one sequence visits."""
    rows = tiling.block_q * tiling.cluster_size
    first = np.arange(0, len_q, rows, dtype=np.int64)
    last = np.minimum(first + rows, len_q) - 1
    low, high = key_range(first, last, len_q, len_k, causal=problem.causal, window=problem.window)
    return -(-high // tiling.block_kv) - low // tiling.block_kv


@dataclass(frozen=True, slots=True)
class AttentionCost:
    """Cycles of a tile: `fill + blocks * block.total + epilogue`; a persistent kernel hides the fill."""

    block: StageCycles
    fill_cycles: float
    epilogue_cycles: float

    def persistent(self, blocks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Tiles of a persistent kernel: the next Q follows O, so one memory latency is exposed, not more."""
        return np.asarray(blocks * self.block.total + self.epilogue_cycles)

    def alone(self, blocks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Tiles of a kernel that does one tile a CTA."""
        return np.asarray(self.fill_cycles + self.persistent(blocks))


def attention_cost(
    problem: Attention,
    tiling: AttentionTiling,
    device: Device,
    *,
    active_sms: int,
    blocks: float,
) -> AttentionCost:
    """Cycles of a key block by resource, and of what stands around the loop.

    Args:
        active_sms: SMs that hold a CTA; they share HBM.
        blocks: key blocks that all CTAs visit together; the compulsory bytes are spread over them.
    """
    rate = (device.tensor_rate(problem.dtype) or 0.0) * tensor_efficiency(device)
    pairs = tiling.block_q * tiling.block_kv
    mma = 4.0 * pairs * tiling.head_dim / rate
    share = l2_bytes_per_cycle(device)
    kv_bytes = 2 * tiling.kv_block_bytes / (tiling.cluster_size if device.multicast else 1)
    l2 = None if share is None else kv_bytes / share
    hbm = hbm_bytes_per_cycle(device, active_sms)
    latency = device.hbm_latency_cycles or device.l2_latency_cycles
    trip = None if latency is None else latency + ((l2 or 0.0) + mma) / 2
    block = StageCycles(
        mma=mma,
        smem=None,
        l2=l2,
        hbm=None if hbm is None else problem.compulsory_bytes / max(blocks, 1.0) / hbm,
        latency=None if trip is None else trip / tiling.kv_stages,
        exp=None if device.exp2_per_cycle is None else pairs / device.exp2_per_cycle,
    )
    out = tiling.block_q * tiling.head_dim * OUT_BYTES
    return AttentionCost(
        block=block,
        fill_cycles=2.0 * (latency or 0.0),
        epilogue_cycles=(0.0 if share is None else out / share) + (latency or 0.0),
    )
