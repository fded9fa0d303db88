"""Attention forward: tiles of unequal cost, and what one of them takes.

A tile is `block_q` query rows of one head of one sequence; it visits the key blocks that its rows can
see. Cycles a key block, by resource, combined as in `cost`:

    mma   4 block_q block_kv head_dim / (tensor rate * efficiency)     Q.K and P.V
    exp   block_q block_kv / exponentials a cycle
    l2    K and V of the block / this SM's share of L2, less what a cluster shares by multicast

Before a tile stand the loads of Q and the first K, after it the write of O. Kernels: sm_100 keeps two
query tiles of 128 rows in flight against one K/V stream (S, P and O in TMEM), sm_90 one of 128 rows on two
consumer warpgroups, older ones one of 128 on mma.sync.

Left out: packing query heads of a group into M, split-KV decoding, exponentials by polynomial, the
softmax's other arithmetic (which the exponentials dominate), fp8's transposed V.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilewright.cost import StageCycles, hbm_bytes_per_cycle, l2_bytes_per_cycle
from tilewright.errors import NoFit, Unsupported
from tilewright.mma import Mma, Shape, family, mma_k
from tilewright.problem import key_range
from tilewright.residency import CtaResources

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tilewright.device import Device
    from tilewright.problem import Attention

BARRIER_BYTES = 1024
KV_STAGES_MAX = 8


@dataclass(frozen=True, slots=True)
class AttentionTiling:
    """How a forward attention kernel is cut.

    Attributes:
        mma: the Q.K instruction; P.V has the same M and N = head_dim.
        q_tiles: query tiles in flight against one K/V stream.
        block_q: query rows a CTA, all q_tiles together.
        block_kv: keys a step.
        kv_stages: K or V blocks in the ring.
        cluster_shape: CTAs that share K and V; (1, 1, 1) without multicast.
    """

    mma: Mma
    q_tiles: int
    block_q: int
    block_kv: int
    head_dim: int
    kv_stages: int
    cluster_shape: tuple[int, int, int]
    threads: int
    regs: int
    q_bytes: int
    kv_block_bytes: int

    @property
    def cluster_size(self) -> int:
        """CTAs a cluster."""
        return math.prod(self.cluster_shape)

    @property
    def tmem_columns(self) -> int:
        """S (P overwrites it) and O of every query tile; 0 where accumulators are in registers."""
        if self.mma.family != "tcgen05":
            return 0
        used = self.q_tiles * (self.block_kv + self.head_dim)
        return max(32, 1 << (used - 1).bit_length())

    @property
    def smem_bytes(self) -> int:
        """Q (O leaves through it), the K/V ring and the barriers."""
        return self.q_bytes + self.kv_stages * self.kv_block_bytes + BARRIER_BYTES

    @property
    def resources(self) -> CtaResources:
        """What one CTA takes of an SM."""
        return CtaResources(self.threads, self.smem_bytes, self.regs, self.tmem_columns)

    def describe(self) -> str:
        """The tile in one line."""
        return (
            f"{self.q_tiles} query tile{'s' if self.q_tiles > 1 else ''} of "
            f"{self.block_q // self.q_tiles} rows, {self.block_kv} keys a step, "
            f"{self.kv_stages} K/V stages, cluster {self.cluster_shape}"
        )


def attention_tiling(
    problem: Attention, device: Device, cluster_shape: tuple[int, int, int] = (1, 1, 1)
) -> AttentionTiling:
    """The tiling of the architecture's forward kernel for this head size.

    Raises:
        NoFit: not two K/V stages fit shared memory.
        Unsupported: no tensor rate for the dtype.
    """
    if device.tensor_rate(problem.dtype) is None:
        raise Unsupported(f"{device.name} has no known tensor rate for {problem.dtype}")
    fam = family(device)
    d = problem.head_dim
    q_tiles, block_kv, threads, regs = _shape(fam, d)
    element = problem.element.bits // 8
    block_q = 128 * q_tiles
    q_bytes = block_q * d * max(element, problem.out_bytes)
    kv = block_kv * d * element
    room = device.smem_per_cta_max_bytes - q_bytes - BARRIER_BYTES
    stages = min(KV_STAGES_MAX, room // kv)
    if stages < 2:
        raise NoFit(
            f"attention with head_dim {d}: Q of {block_q} rows takes {q_bytes} bytes and K/V blocks {kv} each; "
            f"{device.name} allows {device.smem_per_cta_max_bytes}, which holds {max(stages, 0)} of the 2 needed",
            given=d,
        )
    m = {"tcgen05": 128, "wgmma": 64, "mma.sync": 16}[fam]
    n = 8 if fam == "mma.sync" else block_kv
    mma = Mma(fam, Shape(m, n, mma_k(problem.dtype)), problem.dtype)
    return AttentionTiling(
        mma, q_tiles, block_q, block_kv, d, stages, cluster_shape, threads, regs, q_bytes, kv
    )


def _shape(fam: str, head_dim: int) -> tuple[int, int, int, int]:
    """Query tiles, keys a step, threads and registers.

    Sources: FlashAttention-4 (two query tiles of 128, 128 keys, 512 threads; one tile where 2 O do not
    fit 512 TMEM columns), FlashAttention-3 (128 rows, 128 keys, 80 for head_dim 256, 384 threads).
    """
    if fam == "tcgen05":
        return (2 if head_dim <= 128 else 1), 128, 512, 128
    if fam == "wgmma":
        return 1, (128 if head_dim <= 128 else 112 if head_dim <= 192 else 80), 384, 168
    return 1, (64 if head_dim <= 128 else 32), 128, 255


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
    blocks, sequence, head, row = [], [], [], []
    for index, (q, k) in enumerate(zip(len_q, len_k, strict=True)):
        count = -(-int(q) // rows)
        first = np.arange(count, dtype=np.int64) * rows
        last = np.minimum(first + rows, q) - 1
        low, high = key_range(
            first, last, int(q), int(k), causal=problem.causal, window=problem.window
        )
        visits = -(-high // tiling.block_kv) - low // tiling.block_kv
        blocks.append(np.tile(visits, problem.heads))
        sequence.append(np.full(count * problem.heads, index, np.int32))
        head.append(np.repeat(np.arange(problem.heads, dtype=np.int32), count))
        row.append(np.tile(np.arange(count, dtype=np.int32), problem.heads))
    return AttentionTiles(*(np.concatenate(part) for part in (blocks, sequence, head, row)))


@dataclass(frozen=True, slots=True)
class AttentionCost:
    """Cycles of a tile: `fill + blocks * block.total + epilogue`; a persistent kernel hides the fill."""

    block: StageCycles
    fill_cycles: float
    epilogue_cycles: float

    def persistent(self, blocks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Tiles of a persistent kernel: the next Q and K are loaded ahead."""
        return np.asarray(blocks * self.block.total + self.epilogue_cycles)

    def alone(self, blocks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Tiles of a kernel that does one tile a CTA."""
        return np.asarray(self.fill_cycles + self.persistent(blocks))


def attention_cost(
    problem: Attention, tiling: AttentionTiling, device: Device, *, active_sms: int, blocks: float
) -> AttentionCost:
    """Cycles of a key block by resource, and of what stands around the loop.

    Args:
        active_sms: SMs that hold a CTA; they share HBM.
        blocks: key blocks that all CTAs visit together; the compulsory bytes are spread over them.
    """
    rate = (device.tensor_rate(problem.dtype) or 0.0) * (device.tensor_efficiency or 1.0)
    pairs = tiling.block_q * tiling.block_kv
    share = l2_bytes_per_cycle(device)
    kv_bytes = 2 * tiling.kv_block_bytes / (tiling.cluster_size if device.multicast else 1)
    hbm = hbm_bytes_per_cycle(device, active_sms)
    latency = device.hbm_latency_cycles or device.l2_latency_cycles
    exp = None if device.exp2_per_cycle is None else pairs / device.exp2_per_cycle
    block = StageCycles(
        mma=4.0 * pairs * tiling.head_dim / rate,
        smem=None,
        l2=None if share is None else kv_bytes / share,
        hbm=None if hbm is None else problem.compulsory_bytes / max(blocks, 1.0) / hbm,
        latency=None if latency is None else 2.0 * latency / tiling.kv_stages,
        exp=exp,
    )
    out = tiling.block_q * tiling.head_dim * problem.out_bytes
    return AttentionCost(
        block=block,
        fill_cycles=2.0 * (latency or 0.0),
        epilogue_cycles=(0.0 if share is None else out / share) + (latency or 0.0),
    )
