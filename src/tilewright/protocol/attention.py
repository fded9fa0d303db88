"""Attention forward: the kernel of each architecture.

    sm_100  see attention_tcgen05
    sm_90   a producer warp and two consumer warpgroups that hold S, P and O in registers
    older   every warp copies and computes

Source: flash-attention, hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp: two rings, two consumer warpgroups that
take turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.errors import BadInput, Unsupported
from tilewright.protocol.attention_rings import (
    TILES,
    AttentionTile,
    kv_barriers,
    operand_ring,
    producer,
    q_barriers,
)
from tilewright.protocol.attention_tcgen05 import READERS, THREADS, tcgen05_attention
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
    from tilewright.device import Device


def attention_parts(tile: AttentionTile, device: Device) -> tuple[Parts, Readers]:
    """The parts of the attention kernel of this device, and who needs tiles.

    Raises:
        BadInput, Unsupported: a cut that the kernel cannot run.
    """
    _check(tile, device)
    if device.tcgen05:
        return tcgen05_attention(tile), READERS
    if device.wgmma:
        return _wgmma(tile), Readers(("load", "consumer"), warp=1, pace="load")
    return _fallback(tile), WORKER_READERS


def attention_threads(device: Device) -> int:
    """Threads a CTA of the kernel that `attention_parts` describes."""
    if device.tcgen05:
        return THREADS
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


def _wgmma(tile: AttentionTile) -> Parts:
    ranks = tuple(range(tile.cluster_size))
    mine = {rank: 1 << rank for rank in ranks}
    everyone = dict.fromkeys(ranks, mask_of(ranks))
    own_release = Signal("consumer", "arrive", "warpgroup", mine)
    release = Signal("consumer", "arrive", "warpgroup", everyone)
    barriers = q_barriers(tile, "", own_release, ("WG-03",)) + kv_barriers(
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
            last=(
                arrive("q_empty"),
                Step("sync", "staging_full", text="st.shared, fence, TMA store"),
            ),
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
        roles=(producer(("q",), ranks, 0), consumer),
        barriers=barriers,
        rings=(
            operand_ring("q", 1, TILES * tile.q_tile_bytes),
            operand_ring("k", tile.kv_stages, tile.kv_bytes),
            operand_ring("v", tile.kv_stages, tile.kv_bytes),
        ),
        syncs=(*cluster_syncs(384, len(ranks), tmem=False), *store_syncs(8, 1), turn),
        notes=(
            "FlashAttention-3 also overlaps S(j + 1) with the softmax of j; that needs two K stages.",
        ),
    )


def _fallback(tile: AttentionTile) -> Parts:
    meet = Step("sync", "stage_barrier", text="__syncthreads")
    copy = Step(
        "sync", "cp_async_group", writes=("kv",), text="cp.async of the next block; commit_group"
    )
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
        "issuing_thread": "one lane of the mma role"
        if family == "tcgen05"
        else "each warpgroup or warp",
    }
