"""Documents of the smaller commands: residency, simulate, devices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tilewright.report.document import (
    Block,
    Bullets,
    Code,
    Figure,
    Heading,
    Paragraph,
    Table,
    residency_blocks,
    sourced_table,
)
from tilewright.residency import CtaResources, Residency, find_residency
from tilewright.topology import describe_groups, preferred_mix

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tilewright.device import Device
    from tilewright.launch import Simulation


def residency_rows(
    cta: CtaResources,
    sizes: Sequence[int],
    device: Device,
    *,
    busy_sms: int = 0,
    sm_budget: int | None = None,
    nonportable: bool = True,
) -> list[Residency]:
    """One row a cluster size. A range that runs past what the device has stops there."""
    most = max(device.cluster_size_max, 1)
    within = [size for size in sizes if size <= most] or list(sizes)
    return [
        find_residency(
            cta, size, device, busy_sms=busy_sms, sm_budget=sm_budget, nonportable=nonportable
        )
        for size in within
    ]


def residency_document(
    rows: Sequence[Residency], cta: CtaResources, device: Device
) -> Iterator[Block]:
    """The rows, where the topology comes from, and the attribute that large clusters need."""
    yield Heading(
        f"Residency on {device.product}: {cta.threads} threads, {cta.smem_bytes} bytes of shared memory, "
        f"{cta.regs} registers"
    )
    yield from residency_blocks(rows)
    if any(not r.portable for r in rows):
        yield Paragraph(
            f"Sizes over {device.cluster_size_portable_max} need "
            "cudaFuncAttributeNonPortableClusterSizeAllowed; without it the launch fails with "
            "cudaErrorInvalidClusterSize."
        )
    yield _topology(device)


def preferred_document(
    cta: CtaResources,
    preferred: tuple[int, int, int],
    fallback: tuple[int, int, int],
    device: Device,
) -> Iterator[Block]:
    """What a launch with both cluster shapes holds at once, beside each alone."""
    large, small = math.prod(preferred), math.prod(fallback)
    yield Heading(f"Preferred cluster {preferred} with fallback {fallback} on {device.product}")
    rows = [
        (f"{shape} alone", find_residency(cta, math.prod(shape), device))
        for shape in (preferred, fallback)
    ]
    table = [
        (name, str(r.resident_clusters), str(r.resident_clusters * r.cluster_size))
        for name, r in rows
    ]
    if device.gpc_sms is not None:
        mix = preferred_mix(device.gpc_sms, rows[0][1].ctas_per_sm, large, small)
        table.append(("both", f"{mix.preferred} + {mix.fallback}", str(mix.ctas)))
    yield Table(("launch", "clusters resident", "CTAs"), tuple(table), frozenset({2}))
    yield Paragraph(
        "The grid divides by the preferred cluster and that by the fallback, on every axis. Which clusters "
        "become preferred ones is the hardware's choice: kernels must be right for either."
    )


def topology_document(found: Sequence[tuple[int, ...]]) -> Iterator[Block]:
    """GPC sizes that give the counts, as lines of a device file."""
    yield Heading("GPC sizes that give these counts")
    yield Bullets(tuple(describe_groups(groups) for groups in found))
    if len(found) == 1:
        yield Paragraph("The only one. In a device file of your own:")
        yield Code(f"[gpc_sms]\nvalue = {list(found[0])}")
    else:
        yield Paragraph("Not unique: give the counts of more cluster sizes.")


def _topology(device: Device) -> Paragraph:
    fact = device.facts.get("gpc_sms")
    if fact is None or device.gpc_sms is None:
        return Paragraph(f"GPC sizes of {device.name} are unknown: clusters are an interval.")
    return Paragraph(
        f"GPC sizes {describe_groups(device.gpc_sms)} [{fact.kind}]: {fact.source}. {fact.note}".rstrip()
    )


def simulation_subject(found: Simulation) -> str:
    """What was simulated, in a line."""
    return f"{found.num_tiles} tiles on {found.where}"


def simulation_document(found: Simulation) -> Iterator[Block]:
    """Metrics by scheduler, and what the model was given."""
    yield Heading(simulation_subject(found))
    yield Paragraph("Schedulers, simulated [derived]:")
    yield Figure("schedulers")
    yield Table(
        (
            "scheduler",
            "makespan us",
            "efficiency",
            "tail us",
            "tail",
            "fairness",
            "drift us",
            "tiles min-max",
        ),
        tuple(
            (
                name,
                f"{m.makespan_us:.2f}",
                f"{m.efficiency:.1%}",
                f"{m.tail_us:.2f}",
                f"{m.tail_fraction:.1%}",
                f"{m.fairness:.4f}",
                f"{m.drift_us:.2f}",
                f"{m.tiles_min}-{m.tiles_max}",
            )
            for name, m in found.metrics.items()
        ),
        frozenset(range(1, 8)),
    )
    yield Figure("timeline")
    if found.worst:
        yield Paragraph("With the worst placement of the busy SMs:")
        yield Table(
            ("scheduler", "makespan us"),
            tuple((name, f"{m.makespan_us:.2f}") for name, m in found.worst.items()),
            frozenset({1}),
        )
    if found.notes:
        yield Bullets(tuple(found.notes))


def devices_document(chips: Sequence[Device]) -> Iterator[Block]:
    """A line a device."""
    yield Heading("Devices")
    yield Table(
        ("name", "product", "cc", "SMs", "GPCs", "clusters", "capabilities"),
        tuple(
            (
                d.name,
                d.product,
                ".".join(map(str, d.compute_capability)),
                str(d.sm_count),
                describe_groups(d.gpc_sms) if d.gpc_sms else "unknown",
                f"{d.cluster_size_portable_max}, {d.cluster_size_max} non-portable"
                if d.cluster_size_max > d.cluster_size_portable_max
                else str(d.cluster_size_max),
                ", ".join(
                    name
                    for name in ("tma", "multicast", "wgmma", "tcgen05", "cta_group_2", "clc")
                    if getattr(d, name)
                ),
            )
            for d in chips
        ),
        frozenset({3}),
    )


def device_document(device: Device) -> Iterator[Block]:
    """Every value of a device with its kind and source."""
    yield Heading(f"{device.name}: {device.product}, {device.arch}")
    rows = []
    for f in device.facts.values():
        value = ", ".join(map(str, f.value)) if isinstance(f.value, list) else str(f.value)
        plausible = "" if f.plausible is None else f"{f.plausible[0]:g} to {f.plausible[1]:g}"
        source = f"{f.source}. {f.note}" if f.note else f.source
        rows.append(((f.name, value, f.unit, f.kind, plausible), source))
    yield from sourced_table(("name", "value", "unit", "kind", "plausible"), rows)
