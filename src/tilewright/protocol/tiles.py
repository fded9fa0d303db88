"""A kernel that is not ours: the user's tile function inside a scheduler's loop, with a data exchange.

What one CTA of it does is unknown. The contract covers what surrounds it: who asks for the next tile and
who reads the answer, and, in a cluster, the ring through which a CTA hands data to its neighbour.
"""

from __future__ import annotations

from tilewright.protocol.gemm import cluster_syncs
from tilewright.protocol.model import Parts, Program, Role, Step


def tile_parts(cluster_size: int, threads: int) -> Parts:
    """One role: all warps run the user's tile function."""
    worker = Role(
        "worker",
        tuple(range(-(-threads // 32))),
        tuple(range(cluster_size)),
        "runs the tile function; between tiles it learns the next one",
        Program(body=(Step("sync", "tile_function", text="the user's work on one tile"),)),
    )
    notes: tuple[str, ...] = ()
    if cluster_size > 1:
        notes = (
            (
                "Exchanges through DSMEM inside the tile function need their own full and empty barriers: "
                "buffers on 32 bytes, unit stride, release.cluster arrive, acquire.cluster wait; a peer's "
                "buffer may be touched between the two cluster barriers only."
            ),
        )
    return Parts((worker,), syncs=cluster_syncs(threads, cluster_size, tmem=False), notes=notes)
