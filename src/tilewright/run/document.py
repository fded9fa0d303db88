"""Documents of `probe`, `compile`, `run` and `bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.report.document import Block, Bullets, Heading, Paragraph, Table
from tilewright.run.device_file import probed_facts
from tilewright.topology import describe_groups

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tilewright.device import Fact
    from tilewright.run.bench import BenchRecord
    from tilewright.run.calibrate import CalibrationRecord
    from tilewright.run.check import Checked
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


def check_document(gpu: str, kernel: str, checked: Checked) -> Iterator[Block]:
    """Whether the kernel computes what it should, and what was compared."""
    yield Heading(f"{gpu}: {'right' if checked.passed else 'WRONG'}")
    yield Bullets(
        (
            f"kernel: {kernel}",
            f"launch: {checked.grid_clusters} clusters for {checked.tiles} cluster tiles",
            f"{checked.rows} rows against a float64 reference: largest error {checked.worst:.3g} of its bound",
            f"norm of the error {checked.relative:.2e} of the result's",
            f"elements not written: {checked.unwritten}",
        )
    )


def bench_document(record: BenchRecord) -> Iterator[Block]:
    """Predicted against measured, option by option, and the library."""
    yield Heading(f"{record.gpu}, driver {record.driver}, {record.date}")
    rows = [
        (
            row.option,
            row.kernel,
            row.scheduler,
            f"{row.predicted_us:.1f}",
            f"{row.measured_us:.1f}",
            f"{row.spread:.1%}",
            f"{row.predicted_us / row.measured_us - 1:+.1%}",
            f"{record.library_us / row.measured_us:.3f}" if record.library_us else "",
            "right" if row.worst <= 1 else "WRONG",
        )
        for row in record.rows
    ]
    columns = ("option", "kernel", "scheduler", "predicted us", "measured us", "spread", "model",
               "library / this", "result")  # fmt: skip
    yield Table(columns, tuple(rows), frozenset({3, 4, 5, 6, 7}))
    if record.library_us:
        yield Paragraph(
            f"{record.library}: {record.library_us:.1f} us, spread {record.library_spread:.1%}."
        )
    else:
        yield Paragraph(record.note)
    yield Bullets(
        (
            f"medians of {record.rounds} rounds, one launch of each a round, L2 flushed before",
            f"SM clock just after: {record.clock_mhz:.0f} MHz, not locked",
            f"predicted for {record.planned_for}, with {record.launch_us:g} us of launch latency",
        )
    )


def calibration_document(record: CalibrationRecord) -> Iterator[Block]:
    """The fitted values, and how well they give back the launches."""
    yield Heading(f"{record.gpu}, driver {record.driver}, NVRTC {record.toolkit}, {record.date}")
    yield Table(
        ("value", "cycles", "kind"),
        tuple((name, f"{value:g}", "measured") for name, value in record.fitted.items()),
        frozenset({1}),
    )
    launches, spread = len(record.launches), max(record.spreads)
    yield Bullets(
        (
            f"{launches} launches of spinning tiles, medians of five; spread at most {spread:.1%}",
            f"simulated makespans: mean error {record.mean_error:.2%}, worst {record.worst_error:.2%}",
            f"SM clock {record.clock_mhz:.0f} MHz, not locked; other values from {record.fitted_for}",
        )
    )
