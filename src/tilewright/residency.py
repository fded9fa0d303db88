"""Residency: how many CTAs fit an SM, and how many clusters fit the chip.

Two steps. First the classic occupancy of one SM: registers, shared memory, threads, warps, CTA slots,
TMEM; the smallest names itself. Then the cluster rule: a cluster of c CTAs needs slots on c distinct
SMs of one GPC, so a GPC whose SMs have slots s_1..s_n holds the largest t with

    sum_i min(s_i, t) >= c * t

which is floor(k * n / c) for n >= c SMs of k slots each and 0 for n < c. Any launch that carries a cluster
attribute, size 1 included, gets at most 8 CTAs an SM.

Checked against cudaOccupancyMaxActiveClusters on an H200 in every recorded configuration
(tests/data/h200/occupancy.csv). Left out: what other kernels do unless the caller says so.
Where a device's topology is unknown the answer is an interval over every topology that its known
limits admit.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from tilewright.errors import BadInput, NoFit, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tilewright.device import Device

SMS_PER_TPC = 2
"""SMs are fused off in pairs (texture processing clusters), so GPCs hold even numbers of SMs.
Source: both units whose topology is known (docs/devices.md)."""

GROUPS_MAX = 12
"""Cluster-capable groups considered where the topology is unknown: 8 GPCs and 4 stray pairs, as the
H200 measured for this project has. Kind: assumed."""


@dataclass(frozen=True, slots=True)
class CtaResources:
    """What one CTA of a kernel takes.

    Attributes:
        threads: threads a CTA.
        smem_bytes: static and dynamic shared memory a CTA, without the system's reserved part.
        regs: 32-bit registers a thread.
        tmem_columns: tensor memory columns allocated; 0 for kernels without tcgen05.
    """

    threads: int
    smem_bytes: int
    regs: int = 32
    tmem_columns: int = 0


class Limit(NamedTuple):
    """CTAs an SM and the resource that sets the number."""

    ctas: int
    limited_by: str


@dataclass(frozen=True, slots=True)
class Residency:
    """Clusters of one size that are resident on the chip at once.

    Attributes:
        resident_clusters: the number a plan may count on; the low end where topology is unknown.
        resident_clusters_max: the high end; equal when the topology is known.
        ctas_per_sm: CTA slots an SM for this launch.
        sms_used: SMs that hold a CTA when every resident cluster runs.
        portable: the size needs no attribute.
        limited_by: the resource that would have to grow for one more.
        decides: what turns an interval into a number; empty when it is one.
    """

    cluster_size: int
    resident_clusters: int
    resident_clusters_max: int
    ctas_per_sm: int
    sms_used: int
    portable: bool
    limited_by: str
    decides: str = ""


def ctas_per_sm(cta: CtaResources, device: Device) -> Limit:
    """CTAs of a launch without clusters that fit one SM.

    Raises:
        NoFit: one CTA alone exceeds a limit; names it and what would fit.
    """
    _check_one_fits(cta, device)
    warps = -(-cta.threads // 32)
    regs_a_warp = _round_up(cta.regs * 32, device.reg_granularity)
    warps_by_regs = _round_down(device.regs_per_sm // regs_a_warp, device.warp_granularity)
    smem = _round_up(
        cta.smem_bytes + device.smem_reserved_per_cta_bytes, device.smem_granularity_bytes
    )
    limits = [
        Limit(device.ctas_per_sm_max, "CTA slots"),
        Limit(device.threads_per_sm // cta.threads, "threads"),
        Limit(device.warps_per_sm // warps, "warps"),
        Limit(warps_by_regs // warps, "registers"),
        Limit(device.smem_per_sm_bytes // smem, "shared memory"),
    ]
    if cta.tmem_columns:
        limits.append(Limit(_tmem_ctas(cta, device), "TMEM"))
    least = min(limit.ctas for limit in limits)
    return Limit(least, ", ".join(limit.limited_by for limit in limits if limit.ctas == least))


def _tmem_ctas(cta: CtaResources, device: Device) -> int:
    by_columns = (device.tmem_columns or 0) // cta.tmem_columns
    reported = device.tmem_ctas_per_sm
    return by_columns if reported is None else min(by_columns, reported)


def _check_one_fits(cta: CtaResources, device: Device) -> None:
    checks = (
        ("threads", cta.threads, device.threads_per_cta_max),
        ("bytes of shared memory", cta.smem_bytes, device.smem_per_cta_max_bytes),
        ("registers a thread", cta.regs, device.regs_per_thread_max),
        ("TMEM columns", cta.tmem_columns, device.tmem_columns or 0),
    )
    for what, given, allowed in checks:
        if given > allowed:
            raise NoFit(
                f"a CTA with {given} {what} fits nowhere: {device.name} allows {allowed}",
                given=given,
                allowed=str(allowed),
                nearest=str(allowed),
            )
    if cta.threads < 1 or cta.smem_bytes < 0 or cta.regs < 1:
        raise BadInput(f"a CTA needs at least 1 thread and 1 register; given: {cta}", given=cta)
    regs = _round_up(cta.regs * 32, device.reg_granularity) * -(-cta.threads // 32)
    if regs > device.regs_per_sm:
        most = device.regs_per_sm // -(-cta.threads // 32) // device.reg_granularity
        fit = most * device.reg_granularity // 32
        raise NoFit(
            f"{cta.threads} threads of {cta.regs} registers need {regs}; an SM of {device.name} has "
            f"{device.regs_per_sm}. {fit} registers a thread fit",
            given=cta.regs,
            allowed=str(fit),
            nearest=str(fit),
        )


def cluster_slots(cta: CtaResources, device: Device) -> Limit:
    """CTAs an SM for a launch that carries a cluster attribute."""
    limit = ctas_per_sm(cta, device)
    cap = device.cluster_ctas_per_sm_max
    if cap is not None and limit.ctas > cap:
        return Limit(cap, f"the cap of {cap} CTAs an SM for cluster launches")
    return limit


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


def check_cluster_size(cluster_size: int, device: Device, *, nonportable: bool = True) -> bool:
    """Whether the size is portable.

    Raises:
        Unsupported: the device has no clusters, or none of this size.
        BadInput: above the portable size with the attribute off.
    """
    if cluster_size < 1:
        raise BadInput(f"cluster size {cluster_size} must be at least 1", given=cluster_size)
    if cluster_size > 1 and not device.clusters:
        raise Unsupported(
            f"{device.name} (compute capability {'.'.join(map(str, device.compute_capability))}) "
            f"has no thread block clusters; cluster size 1 is what works",
            given=cluster_size,
            allowed="1",
            nearest="1",
        )
    if cluster_size > device.cluster_size_max:
        raise Unsupported(
            f"cluster size {cluster_size}: {device.name} allows at most {device.cluster_size_max}",
            given=cluster_size,
            allowed=f"1 to {device.cluster_size_max}",
            nearest=str(device.cluster_size_max),
        )
    portable = cluster_size <= device.cluster_size_portable_max
    if not portable and not nonportable:
        raise BadInput(
            f"cluster size {cluster_size} is above the portable {device.cluster_size_portable_max}: set the "
            f"attribute cudaFuncAttributeNonPortableClusterSizeAllowed, or use "
            f"{device.cluster_size_portable_max}",
            given=cluster_size,
            allowed=f"1 to {device.cluster_size_portable_max} without the attribute",
            nearest=str(device.cluster_size_portable_max),
        )
    return portable


def find_residency(
    cta: CtaResources,
    cluster_size: int,
    device: Device,
    *,
    busy_sms: int = 0,
    busy_by_group: Sequence[int] | None = None,
    sm_budget: int | None = None,
    nonportable: bool = True,
) -> Residency:
    """Clusters of `cluster_size` CTAs resident at once.

    Args:
        busy_sms: SMs wholly held by foreign kernels; where they lie is unknown, so clusters of more
            than one CTA give an interval between the kindest and the worst placement.
        busy_by_group: the same where it is known: busy SMs of each entry of `device.gpc_sms`.
        sm_budget: SMs that this kernel may use (a carve-out); the rest count as busy.
        nonportable: the non-portable attribute is set.
    Raises:
        NoFit, Unsupported, BadInput: see `ctas_per_sm` and `check_cluster_size`.
    """
    return residency_of_slots(
        cluster_slots(cta, device),
        cluster_size,
        device,
        busy_sms=busy_sms,
        busy_by_group=busy_by_group,
        sm_budget=sm_budget,
        nonportable=nonportable,
    )


def residency_of_slots(
    slots: Limit,
    cluster_size: int,
    device: Device,
    *,
    busy_sms: int = 0,
    busy_by_group: Sequence[int] | None = None,
    sm_budget: int | None = None,
    nonportable: bool = True,
) -> Residency:
    """`find_residency` for a kernel of which the CTAs an SM are known already."""
    portable = check_cluster_size(cluster_size, device, nonportable=nonportable)
    busy = _busy(device, busy_sms, sm_budget)
    if busy_by_group is not None:
        low = high = _with_busy_groups(device, slots.ctas, cluster_size, busy_by_group)
        why = ""
    else:
        low, high, why = _bounds(device, slots.ctas, cluster_size, busy)
    return Residency(
        cluster_size=cluster_size,
        resident_clusters=low,
        resident_clusters_max=high,
        ctas_per_sm=slots.ctas,
        sms_used=_sms_used(device, slots.ctas, cluster_size, low),
        portable=portable,
        limited_by=_limiting(slots, device, cluster_size, low),
        decides=why,
    )


def _busy(device: Device, busy_sms: int, sm_budget: int | None) -> int:
    total = device.sm_count
    if sm_budget is not None and not 1 <= sm_budget <= total:
        raise BadInput(
            f"an SM budget of {sm_budget} is not possible: {device.name} has {total} SMs",
            given=sm_budget,
            allowed=f"1 to {total}",
            nearest=str(min(max(sm_budget, 1), total)),
        )
    if not 0 <= busy_sms <= total:
        raise BadInput(
            f"{busy_sms} busy SMs: {device.name} has {total}",
            given=busy_sms,
            allowed=f"0 to {total}",
        )
    return min(total, busy_sms + (total - sm_budget if sm_budget is not None else 0))


def _bounds(device: Device, slots: int, size: int, busy: int) -> tuple[int, int, str]:
    if size == 1:
        exact = slots * (device.sm_count - busy)
        return exact, exact, ""
    if device.gpc_sms is None:
        low, high = unknown_topology_bounds(
            device.sm_count - busy, device.gpc_sms_max or device.sm_count, slots, size
        )
        if low == high:
            return low, high, ""
        return low, high, "this unit's GPC sizes: query cudaOccupancyMaxActiveClusters on it"
    if not busy:
        exact = clusters_resident(device.gpc_sms, slots, size)
        return exact, exact, ""
    low, high = busy_bounds(device.gpc_sms, slots, size, busy)
    why = "" if low == high else f"which GPCs and SM pairs the {busy} unavailable SMs lie in"
    return low, high, why


def _with_busy_groups(device: Device, slots: int, size: int, busy: Sequence[int]) -> int:
    groups = device.gpc_sms
    if groups is None:
        raise BadInput(f"busy SMs by GPC need a known topology; {device.name} has none")
    if len(busy) != len(groups) or any(not 0 <= b <= g for b, g in zip(busy, groups, strict=False)):
        raise BadInput(
            f"busy SMs by GPC {list(busy)} do not match the GPC sizes {list(groups)}",
            given=busy,
            allowed=f"{len(groups)} numbers, each at most the GPC's size",
        )
    return sum(
        clusters_in_group([slots] * (g - b) + [0] * b, size)
        for g, b in zip(groups, busy, strict=True)
    )


def _limiting(slots: Limit, device: Device, size: int, resident: int) -> str:
    if resident == 0 and size > 1:
        return "GPC size: no GPC has enough SMs for one cluster"
    if size > 1 and resident * size < slots.ctas * device.sm_count:
        return f"{slots.limited_by}; GPC boundaries leave {slots.ctas * device.sm_count - resident * size} CTA slots empty"
    return slots.limited_by


def _sms_used(device: Device, slots: int, size: int, resident: int) -> int:
    """SMs that hold at least one CTA: each cluster takes `size` distinct SMs of a GPC first."""
    if device.gpc_sms is None or size == 1:
        return min(device.sm_count, resident * size)
    usable = sum(min(sms, (slots * sms // size) * size) for sms in device.gpc_sms if sms >= size)
    return min(usable, resident * size)


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


@dataclass(frozen=True, slots=True)
class GridBarrier:
    """The largest grid in which every CTA is resident at once, so that a grid-wide barrier ends.

    Attributes:
        grid_clusters, grid_ctas: the largest feasible launch.
    """

    grid_clusters: int
    grid_ctas: int


def grid_barrier(residency: Residency) -> GridBarrier:
    """What a software barrier over the whole grid may launch; one more cluster never ends."""
    return GridBarrier(
        residency.resident_clusters, residency.resident_clusters * residency.cluster_size
    )


def check_grid_barrier(grid_clusters: int, residency: Residency) -> None:
    """Refuse a grid barrier that cannot end.

    Raises:
        NoFit: names the largest feasible grid.
    """
    most = residency.resident_clusters
    if grid_clusters > most:
        raise NoFit(
            f"a barrier over {grid_clusters} clusters of {residency.cluster_size} cannot end: "
            f"{most} are resident at once. Launch at most {most}",
            given=grid_clusters,
            allowed=f"1 to {most}",
            nearest=str(most),
        )


def check_cluster_chain(
    grid_ctas: tuple[int, int, int],
    preferred: tuple[int, int, int],
    fallback: tuple[int, int, int],
) -> None:
    """The grid must divide by the preferred cluster, and that by the fallback, on every axis.

    Raises:
        BadInput: names the axis and the nearest grid that passes.
    """
    for axis, grid, large, small in zip("xyz", grid_ctas, preferred, fallback, strict=True):
        if large % small:
            raise BadInput(
                f"preferred cluster {preferred} is no multiple of fallback {fallback} on {axis} "
                f"({large} % {small})",
                given=preferred,
            )
        if grid % large:
            up = _round_up(grid, large)
            raise BadInput(
                f"grid {grid_ctas} does not divide by the preferred cluster {preferred} on {axis} "
                f"({grid} % {large}); {axis}={up} passes",
                given=grid_ctas,
                nearest=str(up),
            )


def describe_groups(gpc_sms: Sequence[int]) -> str:
    """GPC sizes in short: "20x3, 18x4, 10, 2x3"."""
    counts = Counter(gpc_sms)
    return ", ".join(
        f"{sms}x{n}" if n > 1 else f"{sms}" for sms, n in sorted(counts.items(), reverse=True)
    )


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _round_down(value: int, step: int) -> int:
    return value // step * step
