"""What the attention kernels share: the Q, K and V rings, and the role that fills them.

O leaves through Q's buffer, so the next Q waits for two things: that no S will be computed from the old one,
and that O has been read out of its place.

In a cluster the CTAs take neighbouring query tiles of one head. Each loads a share of every K and V block
and multicasts it, so a block is released to every CTA, and all run as many blocks as the longest of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.protocol.model import (
    Barrier,
    Program,
    Ring,
    Role,
    Signal,
    Step,
    Transfer,
    arrive,
    expect_tx,
    mask_of,
    wait,
)

if TYPE_CHECKING:
    from tilewright.attention import AttentionTiling


def kv_barriers(
    tiling: AttentionTiling, empty: Signal, rules: tuple[str, ...]
) -> tuple[Barrier, ...]:
    """Barriers of the K and V rings.

    Args:
        empty: who releases a block.
        rules: what that release keeps.
    """
    ranks = range(tiling.cluster_size)
    own = {rank: rank for rank in ranks}
    everyone = dict.fromkeys(ranks, mask_of(ranks))
    arms = Signal("load", "expect_tx", "thread", {rank: 1 << rank for rank in ranks})
    barriers = []
    for name in ("k", "v"):
        part = Transfer(
            "load", name.upper(), tiling.kv_block_bytes // tiling.cluster_size, everyone
        )
        barriers += [
            Barrier(
                f"{name}_full",
                tiling.kv_stages,
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
                tiling.kv_stages,
                "empty",
                own,
                "every CTA of the mask" if tiling.cluster_size > 1 else "own CTA",
                (empty,),
                f"TMA overwriting the {name.upper()} block, in every CTA of the cluster",
                "every CTA that the load feeds releases to its issuer",
                rules,
            ),
        ]
    return tuple(barriers)


def q_barriers(
    tiling: AttentionTiling, index: str, empty: tuple[Signal, ...], rules: tuple[str, ...]
) -> tuple[Barrier, ...]:
    """Barriers of a query tile.

    Args:
        index: which tile, in the names; empty where there is no other.
        empty: who lets go of Q, and of the O that left through its buffer.
        rules: what that keeps.
    """
    own = {rank: rank for rank in range(tiling.cluster_size)}
    mine = {rank: 1 << rank for rank in own}
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
            (Transfer("load", f"Q{index}", tiling.q_tile_bytes, mine),),
        ),
        Barrier(
            f"q{index}_empty",
            1,
            "empty",
            own,
            "own CTA",
            empty,
            "TMA overwriting Q with the next tile's",
            "after the last S of the tile, and after O has been read out of the same buffer",
            rules,
        ),
    )


def operand_ring(name: str, depth: int, size: int) -> Ring:
    """Slots of Q, K or V."""
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


def producer(queries: tuple[str, ...], ranks: tuple[int, ...], warp: int) -> Role:
    """The role that loads Q once a tile and this CTA's share of every key block."""
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


def leave(query: str, *, once: bool) -> tuple[Step, ...]:
    """O out through the buffer of `query`, which is free once the store has read it.

    Args:
        once: one thread stores for the role; otherwise one a warpgroup, its own rows.
    """
    store = "TMA store of O, which lies over Q; cp.async.bulk.wait_group.read 0"
    return (
        Step("sync", "staging_full", text="O over Q: st.shared, fence"),
        Step("read", reads=(query,), once=once, text=store),
        arrive(f"{query}_empty")._replace(once=once),
    )
