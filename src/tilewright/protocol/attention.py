"""Attention forward: the kernel of each architecture.

    sm_100  see attention_tcgen05
    sm_90   a producer warp and two consumer warpgroups that hold S, P and O in registers
    older   every warp copies and computes

Source: flash-attention, hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp: two rings, two consumer warpgroups that
take turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.attention import QUERY_ROWS
from tilewright.errors import BadInput, Unsupported
from tilewright.mma import family, mma_k
from tilewright.protocol.attention_rings import (
    kv_barriers,
    leave,
    operand_ring,
    producer,
    q_barriers,
)
from tilewright.protocol.attention_tcgen05 import tcgen05_attention, tcgen05_readers
from tilewright.protocol.gemm import WORKER_READERS, cluster_syncs, store_syncs
from tilewright.protocol.model import (
    Effect,
    Parts,
    Program,
    Ring,
    Role,
    Signal,
    Step,
    Sync,
    arrive,
    mask_of,
    wait,
)
from tilewright.protocol.scheduler import Readers

if TYPE_CHECKING:
    from tilewright.attention import AttentionTiling
    from tilewright.device import Device


def attention_parts(tiling: AttentionTiling, device: Device) -> tuple[Parts, Readers]:
    """The parts of the attention kernel of this device, and who needs tiles.

    Raises:
        BadInput, Unsupported: a cut that the kernel cannot run.
    """
    _check(tiling, device)
    if tiling.family == "tcgen05":
        return tcgen05_attention(tiling), tcgen05_readers(tiling)
    if tiling.family == "wgmma":
        return _wgmma(tiling), Readers(("load", "consumer"), warp=1, pace="load")
    return _fallback(tiling), WORKER_READERS


def _check(tiling: AttentionTiling, device: Device) -> None:
    size = tiling.cluster_size
    if tiling.family != family(device):
        raise Unsupported(
            f"a {tiling.family} tiling on {device.name}, whose kernel uses {family(device)}",
            given=tiling.family,
            allowed=family(device),
            nearest=family(device),
        )
    if size > 1 and not device.multicast:
        raise Unsupported(
            f"{device.name} has no TMA multicast: a cluster of {size} would share nothing",
            given=size,
            allowed="cluster (1, 1, 1)",
            nearest="(1, 1, 1)",
        )
    q_tiles = 2 if tiling.family == "tcgen05" else 1
    if not 1 <= tiling.q_tiles <= q_tiles:
        raise BadInput(
            f"{tiling.q_tiles} query tiles: the {tiling.family} kernel has 1 to {q_tiles} in flight",
            given=tiling.q_tiles,
            allowed=f"1 to {q_tiles}",
            nearest=str(q_tiles),
        )
    if tiling.family == "mma.sync" and tiling.kv_stages > 1:
        raise BadInput(
            f"{tiling.kv_stages} stages: the mma.sync kernel has one slot of K and one of V",
            given=tiling.kv_stages,
            allowed="1",
            nearest="1",
        )
    step = tiling.kv_step
    if tiling.block_kv % step or tiling.block_kv < step:
        raise BadInput(
            f"{tiling.block_kv} keys a block are not a multiple of {step}: MMA steps of 16 and "
            f"{mma_k(tiling.dtype)} keys, {size} multicast shares of 8 rows",
            given=tiling.block_kv,
            nearest=str(-(-tiling.block_kv // step) * step),
        )
    columns = 2 * tiling.block_kv + tiling.q_tiles * tiling.head_dim
    if tiling.family == "tcgen05" and columns > int(device.need("tmem_columns", "attention")):
        raise BadInput(
            f"two S of {tiling.block_kv} columns and {tiling.q_tiles} O of {tiling.head_dim} need {columns} "
            f"TMEM columns; {device.name} has {device.tmem_columns}",
            given=columns,
            allowed=str(device.tmem_columns),
            nearest="q_tiles 1" if tiling.q_tiles > 1 else "fewer keys a block",
        )


def _wgmma(tiling: AttentionTiling) -> Parts:
    ranks = tuple(range(tiling.cluster_size))
    mine = {rank: 1 << rank for rank in ranks}
    everyone = dict.fromkeys(ranks, mask_of(ranks))
    own_release = Signal("consumer", "arrive", "warpgroup", mine)
    release = Signal("consumer", "arrive", "warpgroup", everyone, "relaxed")
    barriers = q_barriers(tiling, "", (own_release,), ("WG-03", "TMA-15")) + kv_barriers(
        tiling, release, ("WG-03", "WG-04", "TMA-08")
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
            last=leave("q", once=False),
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
    reuse, staged = store_syncs(4, 1)
    staged = staged._replace(
        storage="barriers 1 and 4 of the CTA, a warpgroup each", who="warps of a consumer warpgroup"
    )
    return Parts(
        roles=(producer(("q",), ranks, 0), consumer),
        barriers=barriers,
        rings=(
            operand_ring("q", 1, tiling.q_slot_bytes),
            operand_ring("k", tiling.kv_stages, tiling.kv_slot_bytes),
            operand_ring("v", tiling.kv_stages, tiling.kv_slot_bytes),
        ),
        syncs=(
            *cluster_syncs(tiling.threads, len(ranks), tmem=False),
            reuse,
            staged,
            turn,
        ),
        notes=(
            "FlashAttention-3 also overlaps S(j + 1) with the softmax of j; that needs two K stages.",
        ),
    )


def _fallback(tiling: AttentionTiling) -> Parts:
    meet = Step("sync", "stage_barrier", text="__syncthreads")
    copy = Step(
        "sync", "cp_async_group", writes=("kv",), text="cp.async of the next block; commit_group"
    )
    worker = Role(
        "worker",
        tuple(range(tiling.threads // 32)),
        (0,),
        f"every warp copies K and V, holds {_rows(tiling)} rows of S, P and O in registers, and stores them",
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
            last=(
                meet._replace(text="__syncthreads; O goes into Q's buffer, and from there out"),
                meet._replace(text="__syncthreads before the next Q is copied there"),
            ),
        ),
    )
    ring = Ring(
        "kv",
        2,
        "smem",
        tiling.kv_slot_bytes,
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


def _rows(tiling: AttentionTiling) -> int:
    """Query rows of one issuer: a thread of tcgen05, a warpgroup of wgmma, a warp of mma.sync."""
    issuers = {"tcgen05": 1, "wgmma": 2, "mma.sync": tiling.threads // 32}
    return QUERY_ROWS // issuers[tiling.family]


def attention_mma(tiling: AttentionTiling) -> dict[str, Any]:
    """The two products of attention."""
    tcgen05 = tiling.family == "tcgen05"
    where = "TMEM" if tcgen05 else "registers"
    rows = _rows(tiling)
    return {
        "family": tiling.family,
        "dtype": tiling.dtype,
        "cta_group": 1,
        "q_tiles": tiling.q_tiles,
        "products": [
            {
                "name": "S = Q K^T",
                "shape": [rows, tiling.block_kv, tiling.head_dim],
                "a": "SMEM (Q), K-major",
                "b": "SMEM (K), K-major",
                "d": where,
            },
            {
                "name": "O += P V",
                "shape": [rows, tiling.head_dim, tiling.block_kv],
                "a": f"{where} (P)",
                "b": "SMEM (V), MN-major",
                "d": where,
            },
        ],
        "issuing_thread": "one lane of the mma role" if tcgen05 else "each warpgroup or warp",
    }
