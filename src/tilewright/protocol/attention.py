"""Attention forward: what overlaps, who hands what to whom.

    sm_100  two query tiles of 128 rows in ping-pong; S and P share TMEM columns, O has its own:
            load -> q, k, v rings -> mma (S = Q K^T) -> softmax 0 and 1 (P, row statistics) -> correction
            (rescales O) -> mma (O += P V) -> correction (final O)
    sm_90   a producer warp and two consumer warpgroups that hold S, P and O in registers
    older   every warp copies and computes

K and V have a ring each. In a cluster the CTAs take neighbouring query tiles of one head: each loads a
share of every K and V block and multicasts it, so all of them run as many key blocks as the longest; a
causal mask trims the rest.

The issue order of the mma role, PV(j) before S(j + 1) for each tile, is what lets S overwrite P. It is
FlashAttention-4's order; PTX promises it for MMAs of one accumulator only.

Sources: flash-attention flash_fwd_sm100.py (roles, the arrivals of softmax and correction together) and
hopper/mainloop_fwd_sm90 (two rings, two consumer warpgroups); a lane a warp arrives here, 32 there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright.errors import BadInput, Unsupported
from tilewright.protocol.gemm import AFTER, BEFORE, WORKER_READERS, cluster_syncs, store_syncs
from tilewright.protocol.model import (
    Barrier,
    Effect,
    Parts,
    Program,
    Ring,
    Role,
    Signal,
    Step,
    Sync,
    Transfer,
    arrive,
    expect_tx,
    mask_of,
    wait,
)
from tilewright.protocol.scheduler import Readers
from tilewright.problem import DTYPES

if TYPE_CHECKING:
    from tilewright.device import Device

TILES = 2
"""Query tiles in ping-pong, or consumer warpgroups."""


class AttentionTile(NamedTuple):
    """One CTA's cut of an attention problem.

    Attributes:
        q_rows: query rows of a CTA: two tiles on sm_100, two warpgroups on sm_90.
        kv_rows: keys of a block.
        kv_stages: stages of the K ring, and of the V ring.
    """

    q_rows: int
    kv_rows: int
    head_dim: int
    dtype: str = "bf16"
    kv_stages: int = 2
    cluster_shape: tuple[int, int, int] = (1, 1, 1)

    @property
    def cluster_size(self) -> int:
        """CTAs a cluster."""
        x, y, z = self.cluster_shape
        return x * y * z

    @property
    def q_tile_bytes(self) -> int:
        """One of the two query tiles."""
        return self.q_rows // TILES * self.head_dim * DTYPES[self.dtype].bits // 8

    @property
    def kv_bytes(self) -> int:
        """A block of K, or of V."""
        return self.kv_rows * self.head_dim * DTYPES[self.dtype].bits // 8

    @property
    def smem_bytes(self) -> int:
        """Q, both rings, row statistics and barriers; the output reuses Q's buffers."""
        return TILES * self.q_tile_bytes + 2 * self.kv_stages * self.kv_bytes + 4 * self.q_rows + 1024


def attention_parts(tile: AttentionTile, device: Device) -> tuple[Parts, Readers]:
    """The parts of the attention kernel of this device, and who needs tiles.

    Raises:
        BadInput, Unsupported: a cut that the kernel cannot run.
    """
    _check(tile, device)
    if device.tcgen05:
        readers = Readers(("load", "mma", "softmax0", "softmax1", "correction"), warp=14, pace="load")
        return _tcgen05(tile), readers
    if device.wgmma:
        return _wgmma(tile), Readers(("load", "consumer"), warp=1, pace="load")
    return _fallback(tile), WORKER_READERS


def attention_threads(device: Device) -> int:
    """Threads a CTA of the kernel that `attention_parts` describes."""
    if device.tcgen05:
        return 512
    return 384 if device.wgmma else 128


def _check(tile: AttentionTile, device: Device) -> None:
    size = tile.cluster_size
    if size > 1 and not device.multicast:
        raise Unsupported(
            f"{device.name} has no TMA multicast: a cluster of {size} would share nothing",
            given=size,
            allowed="cluster (1, 1, 1)",
            nearest="(1, 1, 1)",
        )
    if tile.kv_rows % (8 * size):
        raise BadInput(
            f"{tile.kv_rows} keys a block do not split into {size} multicast shares of 8 rows",
            given=tile.kv_rows,
            nearest=str(-(-tile.kv_rows // (8 * size)) * 8 * size),
        )
    columns = TILES * (tile.kv_rows + tile.head_dim)
    if device.tcgen05 and columns > int(device.need("tmem_columns", "attention")):
        raise BadInput(
            f"two tiles of S ({tile.kv_rows} columns) and O ({tile.head_dim}) need {columns} TMEM "
            f"columns; {device.name} has {device.tmem_columns}",
            given=columns,
            allowed=str(device.tmem_columns),
            nearest=f"kv_rows {int(device.tmem_columns or 0) // TILES - tile.head_dim}",
        )


def _kv_barriers(tile: AttentionTile, empty: Signal, rules: tuple[str, ...]) -> tuple[Barrier, ...]:
    ranks = range(tile.cluster_size)
    own = {rank: rank for rank in ranks}
    everyone = dict.fromkeys(ranks, mask_of(ranks))
    arms = Signal("load", "expect_tx", "thread", {rank: 1 << rank for rank in ranks})
    barriers = []
    for name in ("k", "v"):
        part = Transfer("load", name.upper(), tile.kv_bytes // tile.cluster_size, everyone)
        barriers += [
            Barrier(
                f"{name}_full",
                tile.kv_stages,
                "full",
                own,
                "own CTA",
                (arms,),
                f"MMA reads of the {name.upper()} block",
                "each CTA arms the bytes that it receives, whoever loads them",
                ("MBAR-06", "TMA-03", "TMA-04"),
                (part,),
            ),
            Barrier(
                f"{name}_empty",
                tile.kv_stages,
                "empty",
                own,
                "every CTA of the mask" if tile.cluster_size > 1 else "own CTA",
                (empty,),
                f"TMA overwriting the {name.upper()} block, in every CTA of the cluster",
                "every CTA that the load feeds releases to its issuer",
                rules,
            ),
        ]
    return tuple(barriers)


def _q_barriers(
    tile: AttentionTile, index: str, empty: Signal, rules: tuple[str, ...]
) -> tuple[Barrier, ...]:
    own = {rank: rank for rank in range(tile.cluster_size)}
    mine = {rank: 1 << rank for rank in own}
    size = tile.q_tile_bytes * (1 if index else TILES)
    return (
        Barrier(
            f"q{index}_full",
            1,
            "full",
            own,
            "own CTA",
            (Signal("load", "expect_tx", "thread", mine),),
            "MMA reads of Q",
            "Q is loaded once a tile, not multicast",
            ("MBAR-06", "TMA-03"),
            (Transfer("load", f"Q{index}", size, mine),),
        ),
        Barrier(
            f"q{index}_empty",
            1,
            "empty",
            own,
            "own CTA",
            (empty,),
            "TMA overwriting Q with the next tile's",
            "after the last S of the tile",
            rules,
        ),
    )


def _operand(name: str, depth: int, size: int) -> Ring:
    return Ring(
        name=name,
        depth=depth,
        space="smem",
        size=size,
        full=f"{name}_full",
        empty=f"{name}_empty",
        readable=f"after the wait on {name}_full",
        overwritable=f"after the wait on {name}_empty",
        write_guard=f"{name}_empty",
        read_guard=f"{name}_full",
    )


def _load(ring: str) -> tuple[Step, ...]:
    text = f"cp.async.bulk.tensor of {ring.upper()}"
    full = f"{ring}_full"
    return wait(f"{ring}_empty"), expect_tx(full), Step("load", full, writes=(ring,), text=text)


def _producer(queries: tuple[str, ...], ranks: tuple[int, ...], warp: int) -> Role:
    tail = "producer tail: every release has come before exit"
    return Role(
        "load",
        (warp,),
        ranks,
        "one lane loads Q once a tile and its share of every K and V block",
        Program(
            first=tuple(step for query in queries for step in _load(query)),
            body=_load("k") + _load("v"),
            drain=tuple(wait(f"{ring}_empty", text=tail) for ring in (*queries, "k", "v")),
        ),
    )


def _tcgen05(tile: AttentionTile) -> Parts:
    ranks = tuple(range(tile.cluster_size))
    own = {rank: rank for rank in ranks}
    mine = {rank: 1 << rank for rank in ranks}
    everyone = dict.fromkeys(ranks, mask_of(ranks))
    commit = Signal("mma", "commit", "thread", mine)
    barriers = list(_kv_barriers(tile, Signal("mma", "commit", "thread", everyone), ("TC-10", "TC-11")))
    rings = [_operand("k", tile.kv_stages, tile.kv_bytes), _operand("v", tile.kv_stages, tile.kv_bytes)]
    for h in ("0", "1"):
        barriers += _q_barriers(tile, h, commit, ("TC-10",))
        barriers += _tile_barriers(h, own, mine, commit)
        rings += [_operand(f"q{h}", 1, tile.q_tile_bytes), *_tmem_rings(h, tile)]
    return Parts(
        roles=(
            *(_softmax(h, ranks) for h in ("0", "1")),
            _correction(ranks),
            Role("mma", (12,), ranks, "one lane issues S = Q K^T and O += P V", _mma_program()),
            _producer(("q0", "q1"), ranks, 13),
            Role("tmem_allocator", (15,), ranks, "tcgen05.alloc before, dealloc after; idle in between"),
        ),
        barriers=tuple(barriers),
        rings=tuple(rings),
        syncs=cluster_syncs(512, len(ranks), tmem=True) + store_syncs(4, 1),
        notes=(
            "S(j + 1) overwrites P(j) in the issue order of one thread: FlashAttention-4's practice; PTX "
            "promises the order for MMAs of one accumulator only.",
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
        kind = "empty" if name.startswith("stats") and name.endswith("empty") else "full"
        return Barrier(name, 1, kind, own, "own CTA", signals, releases, order, rules)

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
        barrier(
            f"stats{h}_empty",
            (correction,),
            f"softmax {h} overwrites the row statistics",
            "after the ld.shared",
            "MBAR-03",
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
        mma = Step("mma", reads=(f"q{h}", "k"), writes=(f"s{h}",), text="S = Q K^T (tcgen05.mma SS)")
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


def _wgmma(tile: AttentionTile) -> Parts:
    ranks = tuple(range(tile.cluster_size))
    mine = {rank: 1 << rank for rank in ranks}
    everyone = dict.fromkeys(ranks, mask_of(ranks))
    own_release = Signal("consumer", "arrive", "warpgroup", mine)
    release = Signal("consumer", "arrive", "warpgroup", everyone)
    barriers = _q_barriers(tile, "", own_release, ("WG-03",)) + _kv_barriers(
        tile, release, ("WG-03", "WG-04", "TMA-08")
    )

    def multiply(ring: str, text: str, *also: str) -> Step:
        return Step("mma", reads=(ring, *also), text=text)

    consumer = Role(
        "consumer",
        tuple(range(4, 12)),
        ranks,
        "each warpgroup holds its rows of S, P and O in registers; the two alternate (bar.sync 2, 3)",
        Program(
            first=(wait("q_full"),),
            body=(
                wait("k_full"),
                multiply("k", "S = Q K^T; wgmma.wait_group 0", "q"),
                arrive("k_empty"),
                wait("v_full"),
                multiply("v", "softmax in registers; O += P V; wgmma.wait_group 0"),
                arrive("v_empty"),
            ),
            last=(arrive("q_empty"), Step("sync", "staging_full", text="st.shared, fence, TMA store")),
        ),
    )
    turn = Sync(
        "warpgroup_turn",
        "barriers 2 and 3 of the CTA",
        256,
        "consumer",
        "bar.sync by the warpgroup whose turn it is, bar.arrive by the other",
        "issuing wgmma while the other warpgroup does its softmax",
        Effect("race", "the turns overlap: slower, and the results stay right"),
        Effect("deadlock", "the missing threads never come"),
        ("MBAR-04",),
    )
    return Parts(
        roles=(_producer(("q",), ranks, 0), consumer),
        barriers=barriers,
        rings=(
            _operand("q", 1, TILES * tile.q_tile_bytes),
            _operand("k", tile.kv_stages, tile.kv_bytes),
            _operand("v", tile.kv_stages, tile.kv_bytes),
        ),
        syncs=(*cluster_syncs(384, len(ranks), tmem=False), *store_syncs(8, 1), turn),
        notes=("FlashAttention-3 also overlaps S(j + 1) with the softmax of j; that needs two K stages.",),
    )


def _fallback(tile: AttentionTile) -> Parts:
    meet = Step("sync", "stage_barrier", text="__syncthreads")
    copy = Step("sync", "cp_async_group", writes=("kv",), text="cp.async of the next block; commit_group")
    worker = Role(
        "worker",
        (0, 1, 2, 3),
        (0,),
        "every warp copies K and V, holds 16 rows of S, P and O a fragment, and stores them",
        Program(
            first=(copy._replace(text="cp.async of Q and of the first K; commit_group"),),
            body=(
                Step("sync", "cp_async_group", text="cp.async.wait_group 0"),
                meet,
                copy._replace(text="cp.async of V(j); commit_group"),
                Step("sync", "registers", reads=("kv",), text="S = Q K^T, mma.sync"),
                Step("sync", "cp_async_group", text="cp.async.wait_group 0"),
                meet,
                copy._replace(text="cp.async of K(j + 1); commit_group"),
                Step("sync", "registers", reads=("kv",), text="softmax; O += P V, mma.sync"),
            ),
            last=(meet._replace(text="__syncthreads; the output reuses Q's buffer"),),
        ),
    )
    ring = Ring(
        "kv",
        2,
        "smem",
        tile.kv_bytes,
        "",
        "",
        "after cp.async.wait_group 0 by every thread, then __syncthreads",
        "after the next __syncthreads: K and V have a slot each",
        "",
        "",
    )
    sync = Sync(
        "stage_barrier",
        "barrier 0 of the CTA",
        worker.threads,
        "worker",
        "__syncthreads twice a key block",
        "reading the block that all threads copied; refilling the other slot",
        Effect("race", "a warp reads parts that another has not copied"),
        Effect("deadlock", "the missing threads never come"),
        ("MBAR-04",),
    )
    return Parts(roles=(worker,), rings=(ring,), syncs=(sync,))


def attention_mma(tile: AttentionTile, device: Device) -> dict[str, Any]:
    """The two products of attention."""
    family = "tcgen05" if device.tcgen05 else "wgmma" if device.wgmma else "mma.sync"
    p_from = {"tcgen05": "TMEM (P)", "wgmma": "registers (P)", "mma.sync": "registers (P)"}[family]
    s_in = {"tcgen05": "TMEM", "wgmma": "registers", "mma.sync": "registers"}[family]
    return {
        "family": family,
        "dtype": tile.dtype,
        "cta_group": 1,
        "products": [
            {
                "name": "S = Q K^T",
                "shape": [tile.q_rows // TILES, tile.kv_rows, tile.head_dim],
                "a": "SMEM (Q), K-major",
                "b": "SMEM (K), K-major",
                "d": s_in,
            },
            {
                "name": "O += P V",
                "shape": [tile.q_rows // TILES, tile.head_dim, tile.kv_rows],
                "a": p_from,
                "b": "SMEM (V), MN-major",
                "d": s_in,
            },
        ],
        "issuing_thread": "one lane of the mma role" if family == "tcgen05" else "each warpgroup or warp",
    }
