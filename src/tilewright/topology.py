"""Topology: clusters that fit a chip whose GPCs have given sizes, and the sizes that give a count.

A cluster of c CTAs needs slots on c distinct SMs of one GPC, so a GPC whose SMs have slots s_1..s_n holds
the largest t with

    sum_i min(s_i, t) >= c * t

which is floor(k * n / c) for n >= c SMs of k slots each and 0 for n < c. GPC sizes differ from chip to
chip: where they are unknown, bounds over every split that the known limits admit.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from tilewright.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

SMS_PER_TPC = 2
"""SMs are fused off in pairs (texture processing clusters), so GPCs hold even numbers of SMs.
Source: both units whose topology is known (docs/devices.md)."""

GROUPS_MAX = 12
"""Cluster-capable groups considered where the topology is unknown: 8 GPCs and 4 stray pairs, as the
H200 measured for this project has. Kind: assumed."""


def clusters_in_group(slots: Sequence[int], cluster_size: int) -> int:
    """Clusters that fit one GPC whose SMs have these free CTA slots; CTAs sit on distinct SMs."""
    if sum(1 for s in slots if s) < cluster_size:
        return 0
    best = sum(slots) // cluster_size
    while sum(min(s, best) for s in slots) < cluster_size * best:
        best -= 1
    return best


def clusters_resident(gpc_sms: Sequence[int], slots_per_sm: int, cluster_size: int) -> int:
    """R(c) = sum over groups with at least c SMs of floor(k * sms / c)."""
    return sum(slots_per_sm * sms // cluster_size for sms in gpc_sms if sms >= cluster_size)


def busy_bounds(
    gpc_sms: Sequence[int], slots: int, cluster_size: int, busy_sms: int
) -> tuple[int, int]:
    """Fewest and most clusters resident when `busy_sms` SMs are wholly taken, over all placements.

    Kindest: a cluster may use any free SM of its GPC. Worst: for even cluster sizes a cluster needs
    whole SM pairs, and each foreign CTA breaks a pair of its own as long as there are whole ones. On an
    H200, 33 busy SMs left about 44 of 66 clusters of two: between 33 and 49.
    """
    if cluster_size == 1:
        exact = slots * (sum(gpc_sms) - busy_sms)
        return exact, exact
    worst, best = _placements(gpc_sms, slots, cluster_size, busy_sms)
    if busy_sms and cluster_size % SMS_PER_TPC == 0:
        pairs = [sms // SMS_PER_TPC for sms in gpc_sms]
        broken = min(busy_sms, sum(pairs))
        in_pairs = _placements(pairs, slots, cluster_size // SMS_PER_TPC, broken)
        worst = min(worst, in_pairs[0])
    return worst, best


def _placements(groups: Sequence[int], slots: int, cluster_size: int, busy: int) -> tuple[int, int]:
    """Fewest and most clusters over every way to take `busy` members of the groups."""
    worst, best = {0: 0}, {0: 0}
    for size in groups:
        held = [
            slots * (size - b) // cluster_size if size - b >= cluster_size else 0
            for b in range(size + 1)
        ]
        best = _spread(best, held, busy, max)
        worst = _spread(worst, held, busy, min)
    return worst[busy], best[busy]


def _spread(
    sofar: Mapping[int, int], held: Sequence[int], busy_sms: int, choose: Callable[[int, int], int]
) -> dict[int, int]:
    out: dict[int, int] = {}
    for before, clusters in sofar.items():
        for b, more in enumerate(held):
            total = before + b
            if total > busy_sms:
                break
            value = clusters + more
            out[total] = choose(out[total], value) if total in out else value
    return out


@cache
def unknown_topology_bounds(
    sm_count: int, gpc_sms_max: int, slots: int, cluster_size: int
) -> tuple[int, int]:
    """R(c) over every split of the SMs into at most `GROUPS_MAX` even groups of at most `gpc_sms_max`."""
    low: dict[int, int] = {0: 0}
    high: dict[int, int] = {0: 0}
    odd = sm_count % SMS_PER_TPC
    total = sm_count - odd
    for _ in range(GROUPS_MAX):
        next_low, next_high = dict(low), dict(high)
        for sms in range(SMS_PER_TPC, gpc_sms_max + 1, SMS_PER_TPC):
            held = slots * sms // cluster_size if sms >= cluster_size else 0
            for before, fewest in low.items():
                after = before + sms
                if after <= total:
                    next_low[after] = min(next_low.get(after, 1 << 60), fewest + held)
                    next_high[after] = max(next_high.get(after, -1), high[before] + held)
        low, high = next_low, next_high
    if total not in low:  # more SMs than the assumed number of groups can hold
        return 0, slots * sm_count // cluster_size
    return low[total], high[total]


@dataclass(frozen=True, slots=True)
class PreferredMix:
    """What a launch with a preferred and a fallback cluster size holds at once.

    Attributes:
        preferred, fallback: resident clusters of either size when the hardware takes preferred ones first.
        ctas: CTAs of both together.
    """

    preferred: int
    fallback: int
    ctas: int


def preferred_mix(
    gpc_sms: Sequence[int], slots: int, preferred_size: int, fallback_size: int
) -> PreferredMix:
    """Preferred clusters first in every GPC, fallback clusters in the CTA slots that are left.

    The most that such a launch can hold; the hardware may take fewer preferred ones.
    """
    preferred = fallback = 0
    for sms in gpc_sms:
        large = slots * sms // preferred_size if sms >= preferred_size else 0
        left = slots * sms - large * preferred_size
        preferred += large
        fallback += left // fallback_size if sms >= fallback_size else 0
    return PreferredMix(preferred, fallback, preferred * preferred_size + fallback * fallback_size)


def recover_topology(
    resident: Mapping[int, int], *, slots_per_sm: int, gpc_sms_max: int, most: int = 100
) -> list[tuple[int, ...]]:
    """GPC sizes that give exactly these resident cluster counts.

    R(c) involves only groups of at least c SMs, so the equations are triangular from the largest size
    down; where R(c) is given for every even c the answer is unique.

    Args:
        resident: cluster size -> resident clusters, as the driver reported for one kernel; size 1 gives
            the SM count.
        slots_per_sm: CTAs an SM of that kernel (8 for a tiny one: the cap for cluster launches).
        gpc_sms_max: largest group to consider.
        most: stop after this many solutions.
    Returns:
        each solution sorted from the largest group down; empty when none fits.
    """
    if 1 not in resident or resident[1] % slots_per_sm:
        raise BadInput(
            f"resident clusters of size 1 must be given and be a multiple of the {slots_per_sm} CTAs an SM",
            given=resident.get(1, "missing"),
        )
    solutions: list[tuple[int, ...]] = []
    for groups in _solve(dict(resident), slots_per_sm, gpc_sms_max - gpc_sms_max % SMS_PER_TPC, ()):
        solutions.append(groups)
        if len(solutions) == most:
            break
    return solutions


def _solve(
    resident: Mapping[int, int], slots: int, size: int, groups: tuple[int, ...]
) -> Iterator[tuple[int, ...]]:
    """Choose how many groups have exactly `size` SMs, then go on to smaller ones."""
    left = resident[1] // slots - sum(groups)
    room = GROUPS_MAX - len(groups)
    if size == 0:
        if left == 0 and _matches(resident, slots, groups, range(1, 1 + SMS_PER_TPC)):
            yield groups
        return
    if left > room * size:
        return
    for count in range(min(room, left // size) + 1):
        chosen = groups + (size,) * count
        # every R(c) with c in (size - 2, size] is now settled
        if _matches(resident, slots, chosen, range(size - SMS_PER_TPC + 1, size + 1)):
            yield from _solve(resident, slots, size - SMS_PER_TPC, chosen)


def _matches(
    resident: Mapping[int, int], slots: int, groups: tuple[int, ...], sizes: range
) -> bool:
    return all(
        clusters_resident(groups, slots, c) == resident[c] for c in sizes if c > 1 and c in resident
    )


def describe_groups(gpc_sms: Sequence[int]) -> str:
    """GPC sizes in short: "20x3, 18x4, 10, 2x3"."""
    counts = Counter(gpc_sms)
    return ", ".join(
        f"{sms}x{n}" if n > 1 else f"{sms}" for sms, n in sorted(counts.items(), reverse=True)
    )
