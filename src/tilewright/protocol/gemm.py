"""The three GEMM kernels: tcgen05, wgmma and mma.sync.

    tcgen05   tma -> ab ring -> mma (one thread, 1 or 2 CTAs) -> acc ring in TMEM -> epilogue
    wgmma     tma -> ab ring -> consumer warpgroups, which hold the accumulator and store it
    mma.sync  every warp copies (cp.async), computes and stores; __syncthreads instead of mbarriers

Sources: CUTLASS sm100_gemm_tma_warpspecialized and sm90_gemm_tma_warpspecialized_cooperative (roles and
counts; a lane a warp arrives here, 32 there), DeepGEMM sm100_bf16_gemm (full barrier of the pair leader).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    wait,
)
from tilewright.protocol.scheduler import Readers
from tilewright.protocol.sharing import feeds, leader_of, pair_mask, part_bytes, release_masks

if TYPE_CHECKING:
    from tilewright.tile_map import CtaShare
    from tilewright.tiling import Tiling

TCGEN05_READERS = Readers(("tma", "mma", "epilogue"), warp=2, pace="tma")
WGMMA_READERS = Readers(("tma", "consumer"), warp=1, pace="tma")
WORKER_READERS = Readers(("worker",))

AFTER = "tcgen05.fence::after_thread_sync"
BEFORE = "tcgen05.fence::before_thread_sync"


def loads(tiling: Tiling, shares: list[CtaShare]) -> tuple[Transfer, ...]:
    """The TMA loads of one stage: a CTA's part of A and B to its masks, its scales to itself."""
    smem = tiling.smem
    by_mask = [
        Transfer("tma", what, part_bytes(total, masks[0]), masks)
        for what, total, masks in (
            ("A", smem.a_bytes, {s.rank: s.a_mask for s in shares}),
            ("B", smem.b_bytes, {s.rank: s.b_mask for s in shares}),
            ("scale factors", smem.scale_bytes, {s.rank: 1 << s.rank for s in shares}),
        )
    ]
    return tuple(transfer for transfer in by_mask if transfer.bytes)


def operand_ring(tiling: Tiling) -> Ring:
    """The ring of operand stages in shared memory."""
    commit = tiling.mma.family == "tcgen05"
    released = (
        "tcgen05.commit" if commit else "each consumer warpgroup's arrival after wgmma.wait_group"
    )
    return Ring(
        name="ab",
        depth=tiling.num_stages,
        space="smem",
        size=tiling.smem.stage_bytes,
        full="full",
        empty="empty",
        readable="after the wait on full: every byte of the stage has landed, in both CTAs of a pair",
        overwritable=f"after the wait on empty: {released} of every CTA that this CTA's loads feed",
        write_guard="empty",
        read_guard="full",
    )


def cluster_syncs(threads: int, cluster_size: int, *, tmem: bool) -> tuple[Sync, ...]:
    """The barriers around the kernel: after initialisation, and before anyone leaves."""
    before_leaving = "leaving, and tcgen05.dealloc" if tmem else "leaving"
    if cluster_size == 1:
        name, how, storage = "cta", "bar.sync 0", "barrier 0 of the CTA"
    else:
        name = "cluster"
        how = "barrier.cluster.arrive.release and .wait.acquire"
        storage = "hardware barrier of the cluster"
    everyone = threads * cluster_size
    low = Effect("race", "a barrier is used, or an exited CTA is touched, before all are there")
    high = Effect("deadlock", "the missing threads never come")
    return (
        Sync(
            f"init_{name}",
            storage,
            everyone,
            "all threads",
            how,
            "the first use of any mbarrier and of TMEM",
            low,
            high,
            ("MBAR-04", "CLU-01", "CLC-10", "TMA-09"),
        ),
        Sync(
            f"exit_{name}",
            storage,
            everyone,
            "all threads",
            how,
            before_leaving,
            low,
            high,
            ("CLU-02", "CLU-05", "TMA-10", "TC-06", "TC-07", "TC-18"),
        ),
    )


def pair_alloc_sync(threads: int, cluster_size: int) -> Sync:
    """The barrier before a pair allocates TMEM: the peer must have been launched."""
    return Sync(
        "alloc_cluster",
        "hardware barrier of the cluster",
        threads * cluster_size,
        "all threads",
        "barrier.cluster.arrive.relaxed at entry and .wait before the allocation",
        "tcgen05.alloc.cta_group::2, whose warp must know that the peer CTA runs (PTX ISA 9.7.16.7.1)",
        Effect("race", "the allocation signals a CTA that has not been launched"),
        Effect("deadlock", "the missing threads never come"),
        ("CLU-01",),
    )


def store_syncs(warps: int, buffers: int, barrier: str = "1") -> tuple[Sync, ...]:
    """The output staging buffers: written by all, stored by one thread, reused after its bulk groups.

    Args:
        warps: that share the buffers; each consumer warpgroup of wgmma has buffers of its own.
        barrier: hardware barrier that they meet at.
    """
    return (
        Sync(
            "staging_reuse",
            "bulk async-groups of the storing thread",
            1,
            "the storing thread",
            f"cp.async.bulk.wait_group.read {buffers - 1}, then bar.sync {barrier}",
            "overwriting the older of the staging buffers",
            Effect("race", "the TMA store still reads the buffer"),
            Effect("slower", "a smaller N only waits longer"),
            ("TMA-15",),
        ),
        Sync(
            "staging_full",
            f"barrier {barrier} of the CTA",
            32 * warps,
            "warps of the epilogue",
            f"fence.proxy.async.shared::cta by every writer, then bar.sync {barrier}",
            "the TMA store of the staging buffer by one thread",
            Effect("race", "the store reads rows that are not written yet"),
            Effect("deadlock", "the missing threads never come"),
            ("TMA-15", "CLU-11"),
        ),
    )


def tcgen05_parts(tiling: Tiling, shares: list[CtaShare]) -> Parts:
    """Roles, barriers and rings of the tcgen05 kernel."""
    group, ranks = tiling.cta_group, tuple(share.rank for share in shares)
    leader = {rank: leader_of(rank, group) for rank in ranks}
    leaders = tuple(share.rank for share in shares if share.leader)
    release = release_masks(feeds(shares), group)
    pair = {rank: pair_mask(rank, group) for rank in leaders}
    own = {rank: rank for rank in ranks}
    barriers = (
        Barrier(
            "full",
            tiling.num_stages,
            "full",
            leader,
            "leader of the pair" if group == 2 else "own CTA",
            (Signal("tma", "expect_tx", "thread", {rank: 1 << rank for rank in leaders}),),
            "MMA reads of the stage, in both CTAs of a pair",
            "leader alone arms; loads of both CTAs signal it (peer bit of the address cleared)",
            ("MBAR-06", "MBAR-11", "TMA-03", "TMA-04", "TMA-12", "TMA-13"),
            loads(tiling, shares),
        ),
        Barrier(
            "empty",
            tiling.num_stages,
            "empty",
            own,
            "every CTA of the mask" if len(ranks) > 1 else "own CTA",
            (Signal("mma", "commit", "thread", release),),
            "TMA overwriting the stage, in every CTA that the load feeds",
            "tcgen05.commit implies fence::before_thread_sync",
            ("TC-10", "TC-11", "TMA-07", "TMA-08"),
        ),
        Barrier(
            "acc_full",
            tiling.accumulator_stages,
            "full",
            own,
            "every CTA of the mask" if group == 2 else "own CTA",
            (Signal("mma", "commit", "thread", pair),),
            "tcgen05.ld of the accumulator, in both CTAs of a pair",
            AFTER + " after the wait",
            ("TC-11", "TC-12"),
        ),
        Barrier(
            "acc_empty",
            tiling.accumulator_stages,
            "empty",
            leader,
            "leader of the pair" if group == 2 else "own CTA",
            (Signal("epilogue", "arrive", "warp", {r: 1 << leader[r] for r in ranks}, "relaxed"),),
            "the next tile's first MMA overwriting the accumulator",
            f"tcgen05.wait::ld; {BEFORE}; one lane a warp arrives, relaxed.cluster, at the leader: the "
            "tcgen05 fences on both sides order the accumulator (PTX ISA 9.7.16.6.4.4)",
            ("TC-13", "TC-14", "TC-17", "MBAR-08"),
        ),
    )
    accumulators = Ring(
        name="acc",
        depth=tiling.accumulator_stages,
        space="tmem",
        size=tiling.accumulator_columns,
        full="acc_full",
        empty="acc_empty",
        readable="after the wait on acc_full and " + AFTER,
        overwritable="after every epilogue warp of the pair has arrived on the leader's acc_empty",
        write_guard="acc_empty",
        read_guard="acc_full",
    )
    return Parts(
        roles=_tcgen05_roles(tiling, ranks, leaders),
        barriers=barriers,
        rings=(operand_ring(tiling), accumulators),
        syncs=((pair_alloc_sync(tiling.threads, len(ranks)),) if group == 2 else ())
        + cluster_syncs(tiling.threads, len(ranks), tmem=True)
        + store_syncs(4, 2),
        notes=_tcgen05_notes(tiling),
    )


def _tcgen05_roles(
    tiling: Tiling, ranks: tuple[int, ...], leaders: tuple[int, ...]
) -> tuple[Role, ...]:
    group = f"cta_group::{tiling.cta_group}"
    multicast = ".multicast::cluster" if len(ranks) > 1 else ""
    load = Step(
        "load",
        "full",
        writes=("ab",),
        text=f"cp.async.bulk.tensor{f'.{group}' if tiling.cta_group == 2 else ''} of A and B"
        + (".multicast::cluster with the CTA's masks" if tiling.multicast else ""),
    )
    scale = (
        "tcgen05.cp.32x128b.warpx4 of the scale factors, then " if tiling.mma.block_scaled else ""
    )
    mma = Step(
        "mma",
        reads=("ab",),
        writes=("acc",),
        text=f"{AFTER}; {scale}{tiling.cta_tile.k // tiling.mma.shape.k} x "
        f"tcgen05.mma.{group}.kind::{tiling.mma.kind}, the first of a tile overwrites",
    )
    commit = f"tcgen05.commit.{group}.mbarrier::arrive::one{multicast}"
    return (
        Role(
            "tma",
            (0,),
            ranks,
            "one lane loads the operands of its own CTA, in both CTAs of a pair",
            Program(
                body=(wait("empty"), expect_tx("full", leaders), load),
                drain=(wait("empty", text="producer tail: every commit has arrived before exit"),),
            ),
        ),
        Role(
            "mma",
            (1,),
            leaders,
            "one lane of the leader CTA issues every MMA of its pair",
            Program(
                first=(wait("acc_empty"),),
                body=(wait("full"), mma, Step("commit", "empty", text=commit)),
                last=(Step("commit", "acc_full", text=commit),),
            ),
        ),
        Role(
            "tmem_allocator",
            (3,),
            ranks,
            f"tcgen05.alloc.{group} and relinquish before the first barrier, dealloc after the last; "
            "idle in between (free for loading an epilogue operand)",
        ),
        Role(
            "epilogue",
            (4, 5, 6, 7),
            ranks,
            "drains the accumulator of its own CTA, converts and stores it",
            Program(
                last=(
                    wait("acc_full"),
                    Step("read", reads=("acc",), text=f"{AFTER}; tcgen05.ld; tcgen05.wait::ld"),
                    arrive(
                        "acc_empty", text=f"{BEFORE}; mbarrier.arrive.relaxed.cluster at the leader"
                    ),
                    Step("sync", "staging_full", text="st.shared, fence, bar.sync, TMA store"),
                )
            ),
        ),
    )


def _tcgen05_notes(tiling: Tiling) -> tuple[str, ...]:
    notes = [
        "A tile without k steps (empty K group) issues no MMA: its epilogue stores zeros and skips acc."
    ]
    if tiling.mma.block_scaled:
        notes.append(
            "Scale factors have one place in TMEM: the next stage's tcgen05.cp follows this stage's MMA in "
            "the issuing thread. CUTLASS and DeepGEMM rely on that order; PTX lists cp before mma only."
        )
    return tuple(notes)


def wgmma_parts(tiling: Tiling, shares: list[CtaShare]) -> Parts:
    """Roles, barriers and rings of the wgmma kernel."""
    ranks = tuple(share.rank for share in shares)
    own = {rank: rank for rank in ranks}
    barriers = (
        Barrier(
            "full",
            tiling.num_stages,
            "full",
            own,
            "own CTA",
            (Signal("tma", "expect_tx", "thread", {rank: 1 << rank for rank in ranks}),),
            "wgmma reads of the stage",
            "each CTA arms the bytes that it receives, whoever loads them",
            ("MBAR-06", "MBAR-11", "TMA-03", "TMA-04"),
            loads(tiling, shares),
        ),
        Barrier(
            "empty",
            tiling.num_stages,
            "empty",
            own,
            "every CTA of the mask" if len(ranks) > 1 else "own CTA",
            (
                Signal(
                    "consumer", "arrive", "warpgroup", release_masks(feeds(shares), 1), "relaxed"
                ),
            ),
            "TMA overwriting the stage, in every CTA that the load feeds",
            "after wgmma.wait_group; one thread a warpgroup and target, through mapa. Only wgmma read the "
            "stage, so nothing generic is published; release.cluster (the letter of MBAR-08) would fence the "
            "whole GPU each time: 0.65 instead of 0.97 of cuBLAS on an H200",
            ("WG-03", "WG-04", "TMA-07", "TMA-08", "MBAR-08"),
        ),
    )
    warps = 4 * tiling.consumer_warpgroups
    own_barrier = "1 + its index" if tiling.consumer_warpgroups > 1 else "1"
    return Parts(
        roles=(
            Role(
                "tma",
                (0,),
                ranks,
                "one lane of the producer warpgroup loads this CTA's parts (setmaxnreg.dec 40)",
                Program(
                    body=(
                        wait("empty"),
                        expect_tx("full"),
                        Step(
                            "load", "full", writes=("ab",), text="cp.async.bulk.tensor of A and B"
                        ),
                    ),
                    drain=(
                        wait("empty", text="producer tail: every arrival has come before exit"),
                    ),
                ),
            ),
            Role(
                "consumer",
                tuple(range(4, 4 + warps)),
                ranks,
                "each warpgroup computes its rows of the tile in registers and stores them",
                _wgmma_program(tiling.num_stages),
            ),
        ),
        barriers=barriers,
        rings=(operand_ring(tiling),),
        syncs=cluster_syncs(tiling.threads, len(ranks), tmem=False)
        + store_syncs(4, 2, own_barrier),
        notes=("Warps 2 and 3 of the producer warpgroup are idle.",),
    )


def _wgmma_program(num_stages: int) -> Program:
    """A stage is released once the next one's wgmma is in flight, or at once with a single stage."""
    store = Step("sync", "staging_full", text="st.shared, fence, bar.sync, TMA store")

    def compute(left: int) -> tuple[Step, ...]:
        text = f"wgmma.fence; wgmma.mma_async; commit_group; wgmma.wait_group {left}"
        return wait("full"), Step("mma", reads=("ab",), text=text)

    if num_stages == 1:
        return Program(body=(*compute(0), arrive("empty")), last=(store,))
    previous = arrive("empty", text="the previous stage: mbarrier.arrive by mapa")
    final = arrive("empty", text="wgmma.wait_group 0; the last stage")
    return Program(first=compute(1), body=(*compute(1), previous), last=(final, store), peeled=1)


def mma_sync_parts(tiling: Tiling) -> Parts:
    """The fallback: one role, no mbarriers. Slot i - 1 is refilled behind the barrier of iteration i."""
    stages = tiling.num_stages
    ahead = max(stages - 1, 0)
    in_flight = max(stages - 2, 0)
    copy = Step("sync", "cp_async_group", writes=("ab",), text="cp.async 16 bytes; commit_group")
    ready = Step("sync", "cp_async_group", text=f"cp.async.wait_group {in_flight}")
    meet = Step("sync", "stage_barrier", text="__syncthreads")
    compute = Step("sync", "registers", reads=("ab",), text="ldmatrix; mma.sync")
    if stages == 1:
        body: tuple[Step, ...] = (copy, ready, meet, compute, meet)
    else:
        body = (
            ready,
            meet,
            compute,
            copy._replace(text=f"cp.async of k step i + {ahead}; commit_group"),
        )
    first = (copy._replace(text=f"cp.async of k steps 0 to {ahead - 1}, a commit_group each"),) * (
        ahead > 0
    )
    last = (
        Step("sync", "cp_async_group", text="cp.async.wait_group 0"),
        meet._replace(text="__syncthreads; the epilogue may reuse the ring"),
    )
    worker = Role(
        "worker",
        tuple(range(tiling.threads // 32)),
        (0,),
        "every warp copies, computes and stores",
        Program(first=first, body=body, last=last),
    )
    ring = Ring(
        name="ab",
        depth=stages,
        space="smem",
        size=tiling.smem.stage_bytes,
        full="",
        empty="",
        readable=f"after cp.async.wait_group {in_flight} by every thread, then __syncthreads",
        overwritable="after the __syncthreads of the next iteration: every warp has read the slot",
        write_guard="",
        read_guard="",
    )
    return Parts(
        roles=(worker,),
        rings=(ring,),
        syncs=(
            Sync(
                "cp_async_group",
                "cp.async groups of each thread",
                1,
                "each thread",
                f"cp.async.wait_group {in_flight}; one commit_group a k step, empty ones at the end",
                "this thread's part of the stage is in shared memory",
                Effect("slower", "a smaller N only waits longer"),
                Effect("race", "a larger N lets the stage be read before it has landed"),
                ("MBAR-15",),
            ),
            Sync(
                "stage_barrier",
                "barrier 0 of the CTA",
                tiling.threads,
                "worker",
                "__syncthreads (bar.sync 0) once a k step"
                + (", twice with one stage" * (stages == 1)),
                "reading the stage that all threads filled; refilling the one before it",
                Effect(
                    "race",
                    "a warp reads parts that another has not copied, or refills what another reads",
                ),
                Effect("deadlock", "the missing threads never come"),
                ("MBAR-04",),
            ),
        ),
    )
