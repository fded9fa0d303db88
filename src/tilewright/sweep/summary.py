"""What a sweep says: total time by layer, where clusters pay, where a dynamic scheduler pays, what failed."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, Any

from tilewright.report.document import Block, Bullets, Heading, Paragraph, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Line = dict[str, Any]

MOST_ROWS = 10
"""Rows named in a table of the largest gains, and bad rows named."""


def sweep_subject(lines: Sequence[Line]) -> str:
    """How many problems on which devices."""
    rows = len({line["row"] for line in lines})
    return f"Sweep: {rows} problems on {', '.join(_devices(lines))}"


def _devices(lines: Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(line["device"] for line in lines))


def sweep_document(lines: Sequence[Line]) -> Iterator[Block]:
    """The summary of a results file's lines."""
    good = [line for line in lines if not line["error"]]
    failed = [line for line in lines if line["error"]]
    devices = _devices(lines)
    yield Heading(sweep_subject(lines))
    for device in devices:
        yield Paragraph(_totals([line for line in good if line["device"] == device], device))
    yield Paragraph("Times are predicted [derived], launch latency apart, times `repeat`.")
    yield from _by_layer(good, devices)
    yield from _where(
        "Where clusters pay", good, devices, "cluster_gain", lambda line: line["cluster"]
    )
    yield from _where(
        "Where a dynamic scheduler pays",
        good,
        devices,
        "dynamic_gain",
        lambda line: f"{line['scheduler']}, {line['tile_order']}",
    )
    if failed:
        yield Heading(f"Not answered: {len(failed)}")
        named = tuple(f"{line['name']}, {line['device']}: {line['error']}" for line in failed)
        more = len(named) - MOST_ROWS
        yield Bullets((*named[:MOST_ROWS], *((f"and {more} more",) if more > 0 else ())))


def _totals(lines: Sequence[Line], device: str) -> str:
    if not lines:
        return f"{device}: nothing answered."
    total, plain = _total_ms(lines, "predicted_us"), _total_ms(lines, "plain_us")
    left_alone = sum(line["answer"] == "leave-it-alone" for line in lines)
    unsure = sum(line["inside_error"] for line in lines)
    faster = f", {plain / total - 1:.1%} more with one CTA a tile launched plainly" if total else ""
    return (
        f"{device}: {total:.3f} ms in all{faster}; {left_alone} of {len(lines)} are best left alone, {unsure} rest on a "
        "gain inside the model's error."
    )


def _total_ms(lines: Iterable[Line], column: str) -> float:
    """Of a column; where it is missing, the prediction stands in."""
    total = 0.0
    for line in lines:
        us = line["predicted_us"] if line[column] is None else line[column]
        total += line["repeat"] * us / 1000
    return total


def _by_layer(lines: Sequence[Line], devices: Sequence[str]) -> Iterator[Block]:
    yield Heading("Total time by layer")
    totals: dict[str, dict[str, float]] = defaultdict(dict)
    for device in devices:
        for layer, members in _grouped(lines, device).items():
            totals[layer][device] = _total_ms(members, "predicted_us")
    all_of = {device: sum(t.get(device, 0.0) for t in totals.values()) for device in devices}
    columns = [name for device in devices for name in (f"{device} ms", "share")]
    order = sorted(totals, key=lambda layer: -max(totals[layer].values()))
    yield Table(
        ("layer", *columns),
        tuple((layer, *_shares(totals[layer], all_of)) for layer in order),
        frozenset(range(1, 1 + len(columns))),
    )


def _shares(of: dict[str, float], all_of: dict[str, float]) -> Iterator[str]:
    for device, total in all_of.items():
        ms = of.get(device, 0.0)
        yield f"{ms:.3f}"
        yield f"{ms / total:.1%}" if total else ""


def _grouped(lines: Iterable[Line], device: str) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if line["device"] == device:
            found[line["layer"]].append(line)
    return found


def _where(
    title: str, lines: Sequence[Line], devices: Sequence[str], gain: str, what: Any
) -> Iterator[Block]:
    """By layer and device how often it pays, and the rows with most time saved."""
    yield Heading(title)
    rows = []
    for device in devices:
        for layer, members in _grouped(lines, device).items():
            gains = [line[gain] for line in members if line[gain] is not None]
            if gains:
                rows.append(
                    (layer, device, f"{len(gains)} of {len(members)}", f"{median(gains):+.1%}", f"{max(gains):+.1%}")
                )  # fmt: skip
    if not rows:
        yield Paragraph("Nowhere here.")
        return
    yield Table(
        ("layer", "device", "rows", "median gain", "largest"), tuple(rows), frozenset({3, 4})
    )
    paying = [line for line in lines if line[gain] is not None]
    paying.sort(key=lambda line: -line[gain] * line["predicted_us"] * line["repeat"])
    yield Paragraph("Most time saved:")
    yield Table(
        ("problem", "device", "choice", "us", "gain", "measure first"),
        tuple(
            (
                line["name"],
                line["device"],
                what(line),
                f"{line['predicted_us']:.1f}",
                f"{line[gain]:+.1%}",
                "yes" if line["inside_error"] else "",
            )
            for line in paying[:MOST_ROWS]
        ),
        frozenset({3, 4}),
    )
