"""Attention on sm_100: two query tiles of 128 rows in ping-pong, S, P and O in tensor memory.

    load -> q, k, v rings -> mma (S = Q K^T) -> softmax 0 and 1 (P, row statistics) -> correction
    (rescales O) -> mma (O += P V) -> correction (final O)

S and P of a tile share columns. The issue order of the mma role, PV(j) before S(j + 1) of each tile, is
what lets S overwrite P; it is FlashAttention-4's order, and PTX promises it for MMAs of one accumulator
only. The commit of S(j) covers PV(j - 1) too, so the rescaling of O needs no barrier of its own.

Source: flash-attention, flash_attn/cute/flash_fwd_sm100.py: its roles, and the joint arrival of softmax
and correction, 256 threads there and a lane of each of the 8 warps here.
"""

from __future__ import annotations

from tilewright.protocol.attention_rings import (
    TILES,
    AttentionTile,
    kv_barriers,
    operand_ring,
    producer,
    q_barriers,
)
from tilewright.protocol.gemm import AFTER, BEFORE, cluster_syncs, store_syncs
from tilewright.protocol.model import (
    Barrier,
    Parts,
    Program,
    Ring,
    Role,
    Signal,
    Step,
    arrive,
    mask_of,
    wait,
)
from tilewright.protocol.scheduler import Readers

THREADS = 512
READERS = Readers(("load", "mma", "softmax0", "softmax1", "correction"), warp=14, pace="load")


def tcgen05_attention(tile: AttentionTile) -> Parts:
    """Roles, barriers and rings of the sm_100 kernel."""
    ranks = tuple(range(tile.cluster_size))
    own = {rank: rank for rank in ranks}
    mine = {rank: 1 << rank for rank in ranks}
    everyone = dict.fromkeys(ranks, mask_of(ranks))
    commit = Signal("mma", "commit", "thread", mine)
    barriers = list(
        kv_barriers(tile, Signal("mma", "commit", "thread", everyone), ("TC-10", "TC-11"))
    )
    rings = [
        operand_ring("k", tile.kv_stages, tile.kv_bytes),
        operand_ring("v", tile.kv_stages, tile.kv_bytes),
    ]
    for h in ("0", "1"):
        barriers += q_barriers(tile, h, commit, ("TC-10",))
        barriers += _tile_barriers(h, own, mine, commit)
        rings += [operand_ring(f"q{h}", 1, tile.q_tile_bytes), *_tmem_rings(h, tile)]
    return Parts(
        roles=(
            *(_softmax(h, ranks) for h in ("0", "1")),
            _correction(ranks),
            Role("mma", (12,), ranks, "one lane issues S = Q K^T and O += P V", _mma_program()),
            producer(("q0", "q1"), ranks, 13),
            Role(
                "tmem_allocator",
                (15,),
                ranks,
                "tcgen05.alloc before, dealloc after; idle in between",
            ),
        ),
        barriers=tuple(barriers),
        rings=tuple(rings),
        syncs=cluster_syncs(THREADS, len(ranks), tmem=True) + store_syncs(4, 1),
        notes=(
            (
                "S(j + 1) overwrites P(j) in the issue order of one thread: FlashAttention-4's practice; PTX "
                "promises the order for MMAs of one accumulator only."
            ),
            "A tile has at least one key block: rows that see no key are masked, not skipped.",
        ),
    )


def _tile_barriers(
    h: str, own: dict[int, int], mine: dict[int, int], commit: Signal
) -> tuple[Barrier, ...]:
    softmax = Signal(f"softmax{h}", "arrive", "warp", mine)
    correction = Signal("correction", "arrive", "warp", mine)

    def barrier(
        name: str, signals: tuple[Signal, ...], releases: str, order: str, *rules: str
    ) -> Barrier:
        return Barrier(name, 1, "full", own, "own CTA", signals, releases, order, rules)

    return (
        barrier(
            f"s{h}_full",
            (commit,),
            f"softmax {h} reads S; the PV before it is complete too",
            AFTER + " after the wait; the commit covers every earlier MMA of the thread",
            "TC-11",
            "TC-12",
        ),
        barrier(
            f"p{h}_full",
            (softmax, correction),
            "the PV MMA reads P and adds to the rescaled O; S may be overwritten behind it",
            f"tcgen05.wait::st; {BEFORE}; one lane a warp",
            "TC-13",
            "TC-14",
            "TC-17",
        ),
        barrier(
            f"stats{h}_full",
            (softmax,),
            "correction reads the row maxima (at the end: the row sums)",
            "st.shared, then arrive: release.cta is enough",
            "MBAR-03",
        ),
        Barrier(
            f"stats{h}_empty",
            1,
            "empty",
            own,
            "own CTA",
            (correction,),
            f"softmax {h} overwrites the row statistics",
            "after the ld.shared",
            ("MBAR-03",),
        ),
        barrier(
            f"o{h}_full",
            (commit,),
            "correction reads the final O",
            AFTER + " after the wait",
            "TC-11",
            "TC-12",
        ),
    )


def _tmem_rings(h: str, tile: AttentionTile) -> tuple[Ring, ...]:
    p_wait = f"after the wait on p{h}_full and {AFTER}"
    return (
        Ring(
            f"s{h}",
            1,
            "tmem",
            tile.kv_rows,
            f"s{h}_full",
            f"p{h}_full",
            f"after the wait on s{h}_full and {AFTER}",
            "after p_full (softmax has read S), behind the PV that reads P, in issue order",
            "",
            f"s{h}_full",
        ),
        Ring(
            f"p{h}",
            1,
            "tmem",
            0,
            f"p{h}_full",
            f"s{h}_full",
            p_wait + f"; shares the columns of s{h}",
            f"after the next s{h}_full, whose commit covers the PV that read P",
            f"s{h}_full",
            f"p{h}_full",
        ),
        Ring(
            f"stats{h}",
            1,
            "smem",
            tile.q_rows // TILES * 4,
            f"stats{h}_full",
            f"stats{h}_empty",
            f"after the wait on stats{h}_full",
            f"after the wait on stats{h}_empty",
            f"stats{h}_empty",
            f"stats{h}_full",
        ),
        Ring(
            f"o{h}",
            1,
            "tmem",
            tile.head_dim,
            f"o{h}_full",
            f"p{h}_full",
            f"after the wait on o{h}_full; rescaled before each PV, whose predecessor s{h}_full covers",
            f"by the next tile's first PV, after p{h}_full: correction arrives there once it has read O",
            f"q{h}_full",
            f"o{h}_full",
        ),
    )


def _mma_program() -> Program:
    """S of both tiles first; then PV(j) and S(j + 1) of one tile, of the other; the last PV by itself."""

    def commit(barrier: str) -> Step:
        return Step("commit", barrier, text="tcgen05.commit")

    def scores(h: str) -> tuple[Step, ...]:
        mma = Step(
            "mma", reads=(f"q{h}", "k"), writes=(f"s{h}",), text="S = Q K^T (tcgen05.mma SS)"
        )
        return mma, commit(f"s{h}_full")

    def values(h: str) -> tuple[Step, ...]:
        text = f"{AFTER}; O += P V (tcgen05.mma, A in TMEM)"
        return wait(f"p{h}_full"), Step("mma", reads=(f"p{h}", "v"), writes=(f"o{h}",), text=text)

    return Program(
        first=(
            wait("q0_full"),
            wait("q1_full"),
            wait("k_full"),
            *scores("0"),
            *scores("1"),
            commit("k_empty"),
        ),
        body=(
            wait("v_full"),
            wait("k_full"),
            *values("0"),
            *scores("0"),
            *values("1"),
            *scores("1"),
            commit("v_empty"),
            commit("k_empty"),
        ),
        last=(
            commit("q0_empty"),
            commit("q1_empty"),
            wait("v_full"),
            *values("0"),
            commit("o0_full"),
            *values("1"),
            commit("o1_full"),
            commit("v_empty"),
        ),
        peeled=1,
    )


def _softmax(h: str, ranks: tuple[int, ...]) -> Role:
    statistics = (
        wait(f"stats{h}_empty"),
        Step("write", writes=(f"stats{h}",), text="st.shared of row maxima or sums"),
        arrive(f"stats{h}_full"),
    )
    return Role(
        f"softmax{h}",
        tuple(range(4 * int(h), 4 * int(h) + 4)),
        ranks,
        f"reads S of tile {h}, writes P over it, keeps row maxima and sums: a thread a row",
        Program(
            body=(
                wait(f"s{h}_full"),
                Step("read", reads=(f"s{h}",), text=f"{AFTER}; tcgen05.ld; tcgen05.wait::ld"),
                *statistics,
                Step("write", writes=(f"p{h}",), text=f"tcgen05.st; tcgen05.wait::st; {BEFORE}"),
                arrive(f"p{h}_full"),
            ),
            last=statistics,
        ),
    )


def _correction(ranks: tuple[int, ...]) -> Role:
    def seen(h: str) -> tuple[Step, ...]:
        read = Step("read", reads=(f"stats{h}",), text="ld.shared of row maxima or sums")
        return wait(f"stats{h}_full"), read, arrive(f"stats{h}_empty")

    rescale = f"where the maximum grew: tcgen05.ld, multiply, tcgen05.st O; {BEFORE}"
    body = tuple(s for h in ("0", "1") for s in (*seen(h), arrive(f"p{h}_full", text=rescale)))
    last = tuple(
        step
        for h in ("0", "1")
        for step in (
            *seen(h),
            wait(f"o{h}_full"),
            Step("read", reads=(f"o{h}",), text=f"{AFTER}; tcgen05.ld, divide by the sum, store"),
        )
    )
    does = "rescales O when a row maximum grows; at the end divides and stores"
    return Role("correction", (8, 9, 10, 11), ranks, does, Program(body=body, last=last))
