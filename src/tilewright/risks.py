"""Risks and fallbacks: what may go wrong with a plan, what to do instead, what allows the planned path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.evidence import unknown
from tilewright.plan_model import Risk
from tilewright.sim import Busy, Disturbance
from tilewright.work import dynamic_scheduler

if TYPE_CHECKING:
    from tilewright.device import Device
    from tilewright.draft import Draft


def find_risks(draft: Draft, device: Device) -> list[Risk]:
    """Risks of a draft, the fallback chain to other architectures first."""
    return [
        *_chain(draft, device),
        *_cluster(draft, device),
        *_foreign(draft, device),
        *_scheduler(draft),
        *_unknown(draft, device),
    ]


def _chain(draft: Draft, device: Device) -> list[Risk]:
    """B200 -> Hopper -> anything else, from wherever the plan starts."""
    major, minor = device.compute_capability
    planned = f"compute capability {major}.{minor}"
    risks = []
    if device.tcgen05:
        risks.append(
            Risk(
                risk="the device is a Hopper: no tcgen05, no CTA pairs, no CLC",
                when="compute capability 9.0",
                fallback="wgmma with two consumer warpgroups, multicast over a cluster of (2, 1, 1), persistent "
                "static, or an atomic counter where this plan uses CLC; plan it with --device h200",
                enable_condition=f"{planned} and a cubin for {device.arch}: cuDeviceGetAttribute of "
                "COMPUTE_CAPABILITY_MAJOR and _MINOR",
            )
        )
    risks.append(
        Risk(
            risk="the device has no thread block clusters, or no matrix instruction of this plan",
            when="compute capability below 9.0, or 12.x, whose clusters come without multicast",
            fallback="single CTA, cp.async ring, mma.sync, persistent static; plan it with --device a100 or "
            "rtx_pro_6000",
            enable_condition=f"{planned}; cuDeviceGetAttribute(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) = 1"
            if draft.residency.cluster_size > 1
            else planned,
        )
    )
    return risks


def _cluster(draft: Draft, device: Device) -> list[Risk]:
    size = draft.residency.cluster_size
    if size == 1:
        return []
    smaller = f"a cluster of {size // 2}" if size > 2 else "one CTA, cta_group 1"
    risks = [
        Risk(
            risk=f"fewer than {draft.residency.resident_clusters} clusters of {size} are resident",
            when="another unit of this product has other GPCs fused off; MIG, a green context or another kernel "
            "holds SMs",
            fallback=f"launch what the driver reports as the grid of a persistent kernel; at 0 use {smaller}",
            enable_condition="cuOccupancyMaxActiveClusters of this kernel and configuration is at least 1",
        )
    ]
    if not draft.residency.portable:
        risks.append(
            Risk(
                risk=f"a cluster of {size} is above the portable {device.cluster_size_portable_max}",
                when="always: the launch fails with cudaErrorInvalidClusterSize without the attribute",
                fallback=f"a cluster of {device.cluster_size_portable_max}",
                enable_condition="cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1), "
                "then cuOccupancyMaxActiveClusters is at least 1",
            )
        )
    return risks


def _foreign(draft: Draft, device: Device) -> list[Risk]:
    """What one slot in sixteen held by another kernel does to static and to dynamic scheduling."""
    slots = draft.work.slots
    taken = max(1, slots // 16)
    if slots < 2 or draft.work.num_tiles < slots:
        return []
    held = Disturbance(busy=(Busy(slots=taken),))
    dynamic = dynamic_scheduler(device)
    chosen = draft.decision.chosen
    alone = chosen.us
    disturbed = draft.work.run(chosen.scheduler, order=chosen.order, disturbance=held).kernel_us
    with_dynamic = draft.work.run(dynamic, disturbance=held).kernel_us
    if chosen.scheduler in {"single_tile", dynamic}:
        fallback = "none needed: tiles move to the slots that are left"
    else:
        fallback = f"{dynamic} takes {with_dynamic:.1f} us then; or give the kernel a budget of the free SMs (--sm-budget)"
    return [
        Risk(
            risk=f"another kernel holds {taken} of {slots} cluster slots: {disturbed:.1f} us instead of "
            f"{alone:.1f} us",
            when="a collective, a copy kernel or a co-tenant runs beside this one",
            fallback=fallback,
            enable_condition="SMs are shared while this kernel runs",
        )
    ]


def _scheduler(draft: Draft) -> list[Risk]:
    scheduler = draft.decision.chosen.scheduler
    if scheduler == "clc":
        return [
            Risk(
                risk="a try_cancel is declined while clusters are still pending",
                when="a priority kernel or a co-tenant with queued CLC grids (seen on a B300)",
                fallback="stop asking and leave after the tiles already claimed; pending clusters launch by "
                "themselves. Never read the coordinate of a declined response, never take it for an empty queue",
                enable_condition="compute capability 10.0 or later; grid = all cluster tiles; every CTA arms 16 bytes "
                "with .multicast::cluster::all",
            )
        ]
    if scheduler == "dynamic_atomic":
        return [
            Risk(
                risk="the tile counter is not zero at launch",
                when="the previous launch was aborted, or two launches share a counter",
                fallback="one counter a launch, reset by the last worker of the launch before",
                enable_condition="a zeroed 32-bit counter in global memory",
            )
        ]
    return []


def _unknown(draft: Draft, device: Device) -> list[Risk]:
    names = unknown(device, draft.used_facts)
    relevant = [
        n
        for n in names
        if n not in {"tmem_columns", "tmem_ctas_per_sm", "hbm_read_gbps", "tensor_efficiency_max"}
    ]
    if not relevant:
        return []
    return [
        Risk(
            risk=f"unknown on {device.name}: {', '.join(relevant)}",
            when="nobody has published or measured them; what they would add is left out of the times",
            fallback=f'give them in a TOML with base = "{device.name}" and pass it as --device',
            enable_condition="measured values",
        )
    ]
