"""What the attention kernels share: one CTA's cut, the Q, K and V rings, and the role that fills them.

In a cluster the CTAs take neighbouring query tiles of one head. Each loads a share of every K and V block
and multicasts it, so a block is released to every CTA, and all run as many blocks as the longest of them.
"""

from __future__ import annotations

from typing import NamedTuple

from tilewright.problem import DTYPES
from tilewright.protocol.model import (
    Barrier,
    Program,
    Ring,
    Role,
    Signal,
    Step,
    Transfer,
    expect_tx,
    mask_of,
    wait,
)

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
        return (
            TILES * self.q_tile_bytes + 2 * self.kv_stages * self.kv_bytes + 4 * self.q_rows + 1024
        )


def kv_barriers(tile: AttentionTile, empty: Signal, rules: tuple[str, ...]) -> tuple[Barrier, ...]:
    """Barriers of the K and V rings.

    Args:
        empty: who releases a block.
        rules: what that release keeps.
    """
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


def q_barriers(
    tile: AttentionTile, index: str, empty: Signal, rules: tuple[str, ...]
) -> tuple[Barrier, ...]:
    """Barriers of query tile `index`, or of both together where it is empty."""
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
    r"""The role that loads Q once a tile and this CTA\'s share of every key block."""
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
