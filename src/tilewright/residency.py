"""Residency: how many CTAs fit an SM, and how many clusters fit the chip.

Two steps. First the classic occupancy of one SM: registers, shared memory, threads, warps, CTA slots,
TMEM; the smallest names itself. Then the cluster rule of `topology`. Any launch that carries a cluster
attribute, size 1 included, gets at most 8 CTAs an SM.

Checked against cudaOccupancyMaxActiveClusters on an H200 in every recorded configuration
(tests/data/h200/occupancy.csv). Left out: what other kernels do unless the caller says so.
Where a device's topology is unknown the answer is an interval over every topology that its known
limits admit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tilewright.errors import BadInput, NoFit, Unsupported
from tilewright.topology import (
    busy_bounds,
    clusters_in_group,
    clusters_resident,
    unknown_topology_bounds,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilewright.device import Device


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


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _round_down(value: int, step: int) -> int:
    return value // step * step
