"""Who shares what in a cluster, and the masks that follow.

A CTA *feeds* the CTAs whose slots its loads write: itself, and those of its multicast masks. Whoever
consumes a slot must therefore release it to every CTA that feeds it. For a pair (cta_group 2) the two
CTAs consume together and their leader releases for both:

    release(pair) = { i : feeds(i) meets pair }

Without multicast beyond the pair that is the pair itself, 0x3 << (rank & ~1).
Source: PTX ISA, cp.async.bulk.tensor and tcgen05.commit; the masks and the count of arrivals agree with
CUTLASS's PipelineTmaUmmaAsync, x / cta_group + y - 1 arrivals a phase.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.protocol.model import mask_of, ranks_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tilewright.tile_map import CtaShare
    from tilewright.tiling import SmemPlan


def pair_mask(rank: int, cta_group: int) -> int:
    """Both CTAs of the pair of `rank`, or its own bit for cta_group 1."""
    return 0x3 << (rank & ~1) if cta_group == 2 else 1 << rank


def leader_of(rank: int, cta_group: int) -> int:
    """The even CTA of the pair: it issues the MMA and owns the pair's full barriers."""
    return rank & ~1 if cta_group == 2 else rank


def feeds(shares: Sequence[CtaShare]) -> dict[int, int]:
    """CTAs whose slots each CTA writes, itself included."""
    return {share.rank: share.a_mask | share.b_mask | 1 << share.rank for share in shares}


def release_masks(fed: Mapping[int, int], cta_group: int) -> dict[int, int]:
    """For each consumer (the leader of its pair): CTAs to which it must release a drained slot."""
    leaders = {leader_of(rank, cta_group) for rank in fed}
    return {
        leader: mask_of(i for i, mask in fed.items() if mask & pair_mask(leader, cta_group))
        for leader in sorted(leaders)
    }


def sharing_rows(
    shares: Sequence[CtaShare], smem: SmemPlan, cta_group: int
) -> list[dict[str, Any]]:
    """One row a CTA: what it owns and loads, to whom, who leads it and where it must release."""
    release = release_masks(feeds(shares), cta_group)
    return [
        {
            "rank": share.rank,
            "cluster_ctaid": [share.x, share.y, 0],
            "owns_rows": list(share.rows),
            "owns_columns": list(share.columns),
            "loads_a_rows": list(share.a_rows),
            "loads_b_columns": list(share.b_columns),
            "a_bytes": part_bytes(smem.a_bytes, share.a_mask),
            "b_bytes": part_bytes(smem.b_bytes, share.b_mask),
            "scale_bytes": smem.scale_bytes,
            "a_mask": hex(share.a_mask),
            "b_mask": hex(share.b_mask),
            "pair": list(share.pair),
            "leader": share.leader,
            "full_barrier_of": leader_of(share.rank, cta_group),
            "release_mask": hex(release[leader_of(share.rank, cta_group)]),
        }
        for share in shares
    ]


def part_bytes(operand_bytes: int, mask: int) -> int:
    """Bytes of one CTA's part of an operand that the CTAs of `mask` load for each other."""
    return operand_bytes // len(ranks_of(mask))


def multicast_rows(shares: Sequence[CtaShare], smem: SmemPlan) -> list[dict[str, Any]]:
    """One row a multicast load; empty where every CTA loads for itself."""
    rows: list[dict[str, Any]] = []
    for share in shares:
        for operand, mask, total in (
            ("A", share.a_mask, smem.a_bytes),
            ("B", share.b_mask, smem.b_bytes),
        ):
            receivers = ranks_of(mask)
            if len(receivers) > 1:
                rows.append(
                    {
                        "issuer": share.rank,
                        "operand": operand,
                        "mask": hex(mask),
                        "receivers": receivers,
                        "bytes": part_bytes(total, mask),
                        "bytes_received_each": total,
                        "offset": "the same in every receiver",
                        "rules": ["TMA-03", "TMA-04", "TMA-05", "CLU-16"],
                    }
                )
    return rows
