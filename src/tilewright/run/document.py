"""Documents of `probe` and `compile`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.report.document import Block, Bullets, Heading, Paragraph, Table
from tilewright.run.device_file import probed_facts
from tilewright.topology import describe_groups

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tilewright.device import Fact
    from tilewright.run.compiler import Compiled
    from tilewright.run.record import ProbeRecord


def probe_document(record: ProbeRecord) -> Iterator[Block]:
    """What the unit said, value by value, and its resident clusters."""
    yield Heading(f"{record.gpu}, driver {record.driver}, NVRTC {record.toolkit}, {record.date}")
    facts = probed_facts(record)
    yield Table(
        ("name", "value", "unit", "kind", "plausible"),
        tuple(_fact_row(fact) for fact in facts),
        frozenset({1}),
    )
    if record.tiny is None or record.one_cta_per_sm is None:
        yield Paragraph("No thread block clusters.")
        return
    yield Heading("Clusters resident, as the driver says")
    filling, tiny = record.one_cta_per_sm, record.tiny
    yield Table(
        ("cluster", f"{filling.smem_bytes} bytes of shared memory", "none"),
        tuple(
            (str(size), str(filling.clusters.get(size, "")), str(tiny.clusters.get(size, "")))
            for size in sorted(tiny.clusters)
        ),
        frozenset({0, 1, 2}),
    )
    if not any(fact.name == "gpc_sms" for fact in facts):
        yield Paragraph("These counts do not settle the GPC sizes: gpc_sms stays unknown.")


def _fact_row(fact: Fact) -> tuple[str, ...]:
    value = describe_groups(fact.value) if fact.name == "gpc_sms" else str(fact.value)
    plausible = "" if fact.plausible is None else "{:g} to {:g}".format(*fact.plausible)
    return fact.name, value, fact.unit, fact.kind, plausible


def compile_document(
    name: str, results: Sequence[Compiled], written: Sequence[str]
) -> Iterator[Block]:
    """Each function's use by architecture, and what was written."""
    yield Heading(f"{name}, NVRTC {results[0].toolkit}")
    yield Table(
        (
            "arch",
            "function",
            "registers",
            "spill stores",
            "spill loads",
            "stack bytes",
            "static smem bytes",
        ),
        tuple(
            (
                result.arch,
                use.name if use.is_kernel else f"{use.name} (not inlined)",
                str(use.registers) if use.is_kernel else "",
                str(use.spill_store_bytes),
                str(use.spill_load_bytes),
                str(use.stack_bytes),
                str(use.static_smem_bytes) if use.is_kernel else "",
            )
            for result in results
            for use in result.functions
        ),
        frozenset({2, 3, 4, 5, 6}),
    )
    yield Bullets(
        tuple(
            f"{r.arch}: {r.seconds:.2f} s{', from the cache' if r.cached else ''}; "
            f"cubin {len(r.cubin)} bytes"
            for r in results
        )
    )
    if written:
        yield Paragraph(f"Written: {', '.join(written)}")
