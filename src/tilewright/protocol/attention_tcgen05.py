"""Attention on sm_100: query tiles of 128 rows, S, P and O in tensor memory.

    load -> q, k, v rings -> mma (S = Q K^T) -> softmax of each tile (P, row statistics) -> correction
    (rescales O) -> mma (O += P V) -> correction (final O)

Softmax of one S and the MMAs of another overlap. Where TMEM holds two O (head_dim to 128), two query tiles
play ping-pong with an S each:

    S0(0) S1(0) | PV0(j) S0(j + 1) PV1(j) S1(j + 1) | PV0 PV1

Where it holds one, a single tile alternates between two S:

    S(0) | S(j + 1) PV(j) | PV

P overwrites its S. What lets the next S into the same columns overwrite P is that one thread issues both,
PV first; it is FlashAttention-4's order, and PTX promises it for MMAs of one accumulator only.
With two tiles the commit of S(j) covers PV(j - 1), so the rescaling of O needs no barrier of its own; with
one, S(j) is ahead of PV(j - 1), whose own commit (o_full, each block) permits it.

O leaves through Q's buffer, so correction too must arrive before the next Q is loaded.

Source: flash-attention, flash_attn/cute/flash_fwd_sm100.py: its roles, and the joint arrival of softmax
and correction, 256 threads there and a lane of each of the 8 warps here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tilewright.protocol.attention_rings import (
    kv_barriers,
    leave,
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

if TYPE_CHECKING:
    from tilewright.attention import AttentionTiling


class _Warps(NamedTuple):
    """First warps of the roles behind the softmax warpgroups."""

    correction: int
    mma: int
    load: int
    scheduler: int
    allocator: int


def _warps(tiling: AttentionTiling) -> _Warps:
    first = 4 * tiling.q_tiles
    return _Warps(first, first + 4, first + 5, first + 6, first + 7)


def _names(tiling: AttentionTiling) -> tuple[str, ...]:
    """The query tiles, as roles, barriers and rings are numbered."""
    return tuple(str(index) for index in range(tiling.q_tiles))


def tcgen05_readers(tiling: AttentionTiling) -> Readers:
    """Who needs tiles."""
    softmax = (f"softmax{h}" for h in _names(tiling))
    warp = _warps(tiling).scheduler
    return Readers(("load", "mma", *softmax, "correction"), warp=warp, pace="load")


def tcgen05_attention(tiling: AttentionTiling) -> Parts:
    """Roles, barriers and rings of the sm_100 kernel."""
    ranks = tuple(range(tiling.cluster_size))
    mine = {rank: 1 << rank for rank in ranks}
    everyone = dict.fromkeys(ranks, mask_of(ranks))
    tiles, warps = _names(tiling), _warps(tiling)
    q_release = (
        Signal("mma", "commit", "thread", mine),
        Signal("correction", "arrive", "thread", mine),
    )
    barriers = list(
        kv_barriers(tiling, Signal("mma", "commit", "thread", everyone), ("TC-10", "TC-11"))
    )
    rings = [
        operand_ring("k", tiling.kv_stages, tiling.kv_slot_bytes),
        operand_ring("v", tiling.kv_stages, tiling.kv_slot_bytes),
    ]
    for h in tiles:
        barriers += q_barriers(tiling, h, q_release, ("TC-10", "TMA-15"))
        barriers += _tile_barriers(h, tiling)
        rings += [operand_ring(f"q{h}", 1, tiling.q_slot_bytes), *_tile_rings(h, tiling)]
    return Parts(
        roles=(
            *(_softmax(h, ranks) for h in tiles),
            _correction(tiles, ranks, warps.correction),
            Role(
                "mma",
                (warps.mma,),
                ranks,
                "one lane issues S = Q K^T and O += P V",
                _mma_program(tiles),
            ),
            producer(tuple(f"q{h}" for h in tiles), ranks, warps.load),
            Role(
                "tmem_allocator",
                (warps.allocator,),
                ranks,
                "tcgen05.alloc before, dealloc after; idle in between",
            ),
        ),
        barriers=tuple(barriers),
        rings=tuple(rings),
        syncs=cluster_syncs(tiling.threads, len(ranks), tmem=True) + store_syncs(4, 1),
        notes=(
            (
                "The next S in its columns overwrites P(j) in the issue order of one thread: "
                "FlashAttention-4's practice; PTX promises the order for MMAs of one accumulator only."
            ),
            "A tile has at least one key block: rows that see no key are masked, not skipped.",
        ),
    )


def _tile_barriers(h: str, tiling: AttentionTiling) -> tuple[Barrier, ...]:
    own = {rank: rank for rank in range(tiling.cluster_size)}
    mine = {rank: 1 << rank for rank in own}
    commit = Signal("mma", "commit", "thread", mine)
    softmax = Signal(f"softmax{h}", "arrive", "warp", mine)
    correction = Signal("correction", "arrive", "warp", mine)
    alternating = tiling.q_tiles == 1

    def barrier(
        name: str,
        signals: tuple[Signal, ...],
        releases: str,
        order: str,
        *rules: str,
        depth: int = 1,
    ) -> Barrier:
        return Barrier(name, depth, "full", own, "own CTA", signals, releases, order, rules)

    return (
        barrier(
            f"s{h}_full",
            (commit,),
            f"softmax {h} reads S; the PV before it is complete too",
            AFTER + " after the wait; the commit covers every earlier MMA of the thread",
            "TC-11",
            "TC-12",
            depth=tiling.score_stages,
        ),
        barrier(
            f"p{h}_full",
            (softmax, correction),
            "the PV MMA reads P and adds to the rescaled O; S may be overwritten behind it",
            f"tcgen05.wait::st; {BEFORE}; one lane a warp",
            "TC-13",
            "TC-14",
            "TC-17",
            depth=tiling.score_stages,
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
            "correction rescales O; at the end it reads the final O"
            if alternating
            else "correction reads the final O",
            AFTER + " after the wait",
            "TC-11",
            "TC-12",
        ),
    )


def _tile_rings(h: str, tiling: AttentionTiling) -> tuple[Ring, ...]:
    p_wait = f"after the wait on p{h}_full and {AFTER}"
    alternating = tiling.q_tiles == 1
    covers = f"its predecessor's o{h}_full" if alternating else f"s{h}_full, which covers the last"
    return (
        Ring(
            f"s{h}",
            tiling.score_stages,
            "tmem",
            tiling.block_kv,
            f"s{h}_full",
            f"p{h}_full",
            f"after the wait on s{h}_full and {AFTER}",
            "after p_full (softmax has read S), behind the PV that reads P, in issue order",
            "",
            f"s{h}_full",
        ),
        Ring(
            f"p{h}",
            tiling.score_stages,
            "tmem",
            0,
            f"p{h}_full",
            f"s{h}_full",
            p_wait + f"; shares the columns of s{h}",
            f"after the next s{h}_full there, whose commit covers the PV that read P",
            f"s{h}_full",
            f"p{h}_full",
        ),
        Ring(
            f"stats{h}",
            1,
            "smem",
            tiling.statistics_bytes // tiling.q_tiles,
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
            tiling.head_dim,
            f"o{h}_full",
            f"p{h}_full",
            f"after the wait on o{h}_full; rescaled before each PV, after {covers}",
            f"by the next tile's first PV, after p{h}_full: correction arrives there once it has read O",
            "" if alternating else f"q{h}_full",
            f"o{h}_full",
        ),
    )


def _mma_program(tiles: tuple[str, ...]) -> Program:
    """Issue order, as in the module's docstring; the first S and the last PV stand outside the loop."""

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

    every_s = (*(step for h in tiles for step in scores(h)), commit("k_empty"))
    every_o = (
        *(step for h in tiles for step in (*values(h), commit(f"o{h}_full"))),
        commit("v_empty"),
    )
    if len(tiles) == 1:
        body = (wait("k_full"), *every_s, wait("v_full"), *every_o)
    else:
        turns = (step for h in tiles for step in (*values(h), *scores(h)))
        body = (wait("v_full"), wait("k_full"), *turns, commit("v_empty"), commit("k_empty"))
    return Program(
        first=(*(wait(f"q{h}_full") for h in tiles), wait("k_full"), *every_s),
        body=body,
        last=(*(commit(f"q{h}_empty") for h in tiles), wait("v_full"), *every_o),
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


def _correction(tiles: tuple[str, ...], ranks: tuple[int, ...], warp: int) -> Role:
    """Two tiles: p_full after each row maximum. One: after the last PV as well, but for the first block."""
    rescale = f"where the maximum grew: tcgen05.ld, multiply, tcgen05.st O; {BEFORE}"

    def seen(h: str) -> tuple[Step, ...]:
        read = Step("read", reads=(f"stats{h}",), text="ld.shared of row maxima or sums")
        return wait(f"stats{h}_full"), read, arrive(f"stats{h}_empty")

    def final(h: str) -> tuple[Step, ...]:
        return (
            *seen(h),
            wait(f"o{h}_full"),
            Step("read", reads=(f"o{h}",), text=f"{AFTER}; tcgen05.ld; divide by the sum"),
            *leave(f"q{h}", once=True),
        )

    last = tuple(step for h in tiles for step in final(h))
    if len(tiles) == 1:
        (h,) = tiles
        program = Program(
            first=(*seen(h), arrive(f"p{h}_full", text="nothing to rescale yet")),
            body=(
                *seen(h),
                wait(f"o{h}_full"),
                Step("read", reads=(f"o{h}",), text=f"{AFTER}; {rescale}"),
                arrive(f"p{h}_full"),
            ),
            last=last,
            peeled=1,
        )
    else:
        body = tuple(s for h in tiles for s in (*seen(h), arrive(f"p{h}_full", text=rescale)))
        program = Program(body=body, last=last)
    does = "rescales O when a row maximum grows; at the end divides and stores"
    return Role("correction", tuple(range(warp, warp + 4)), ranks, does, program)
