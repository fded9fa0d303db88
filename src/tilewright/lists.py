"""Lists of counts, lengths and tile costs: inline, or from a CSV or JSON file."""

from __future__ import annotations

import csv
import io
import json
import re
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import BadInput
from tilewright.problem import MAX_TILES


def parse_integers(what: str, text: str) -> tuple[int, ...]:
    """Counts or lengths, inline ("1528,3516,508") or from a CSV or JSON file of one list.

    Raises:
        BadInput: an unreadable file, an empty list, or an entry that is not a whole number.
    """
    inline = not text.endswith((".csv", ".json", ".txt"))
    numbers = _numbers(what, text, text if inline else _read(what, text), headed=not inline)[1]
    for i, number in enumerate(numbers):
        if number != int(number):
            raise BadInput(f"{what}: entry {i} is {number}; a whole number is needed", given=number)
    return tuple(int(x) for x in numbers)


_EQUAL_TILES = re.compile(r"(\d+)x(\d+(?:\.\d+)?)(us)?")
_COSTS_FORMS = (
    "a CSV file with one column named cost_cycles or cost_us, or tiles inline: 594x20000 or "
    "594x20000,30x90000 in cycles, 594x10.5us in microseconds"
)


def parse_costs(text: str) -> dict[str, tuple[float, ...]]:
    """Tile costs, inline or from a CSV file; see `parse_cost_runs` and `parse_cost_table`.

    Returns:
        keyword arguments for `TileList`: costs_cycles or costs_us.
    Raises:
        BadInput: an unreadable file, another header, an entry that is not a number, mixed units.
    """
    inline = parse_cost_runs(text)
    if inline is not None:
        return inline
    if not Path(text).exists():
        raise BadInput(
            f"costs: no file {text}; give {_COSTS_FORMS}",
            given=text,
            allowed=_COSTS_FORMS,
            nearest="594x20000",
        )
    return parse_cost_table(text, _read("costs", text))


def parse_cost_runs(text: str) -> dict[str, tuple[float, ...]] | None:
    """Costs inline: "594x20000,30x90000" is 594 tiles and then 30 longer ones; None for anything else.

    A cost is cycles, or microseconds with a trailing us ("1024x49.4us").
    """
    runs = [_EQUAL_TILES.fullmatch(part.strip()) for part in text.split(",")]
    if not all(runs):
        return None
    parts = [run.groups() for run in runs if run]
    count = sum(int(tiles) for tiles, _, _ in parts)
    if count > MAX_TILES:
        raise BadInput(
            f"{count} tiles; at most {MAX_TILES} are simulated",
            given=count,
            allowed=str(MAX_TILES),
            nearest=str(MAX_TILES),
        )
    units = {us for _, _, us in parts}
    if len(units) > 1:
        raise BadInput(
            f"costs: {text} mixes cycles and microseconds; give all of them in one unit",
            given=text,
            allowed=_COSTS_FORMS,
        )
    costs = tuple(chain.from_iterable(repeat(float(cost), int(tiles)) for tiles, cost, _ in parts))
    return {"costs_us" if units == {"us"} else "costs_cycles": costs}


def parse_cost_table(name: str, content: str) -> dict[str, tuple[float, ...]]:
    """Costs of a CSV with one column named cost_cycles or cost_us; `name` is for messages."""
    column, numbers = _numbers(
        "costs", name, content, headed=True, column=("cost_cycles", "cost_us")
    )
    return {column.replace("cost_", "costs_"): tuple(numbers)}


def _numbers(
    what: str, name: str, content: str, *, headed: bool, column: tuple[str, ...] = ()
) -> tuple[str, list[float]]:
    """The header, which must be one of `column` where given, and the numbers.

    Args:
        headed: the first cell may be a name.
    """
    if content.lstrip().startswith("["):
        cells, header = _json_list(what, content), ""
    else:
        rows = [c.strip() for row in csv.reader(io.StringIO(content)) for c in row if c.strip()]
        header = rows[0] if headed and rows and not _is_number(rows[0]) else ""
        cells = rows[1:] if header else rows
    if column and header not in column:
        raise BadInput(
            f'{what}: the first line of {name} is "{header or (cells or [""])[0]}"; '
            f"one column named {' or '.join(column)} is needed",
            given=header,
            allowed=", ".join(column),
        )
    if not cells:
        raise BadInput(f"{what}: {name or 'the list'} is empty", given=name)
    numbers = []
    for i, cell in enumerate(cells):
        if not _is_number(cell):
            raise BadInput(f'{what}: entry {i} is "{cell}", not a number', given=cell)
        numbers.append(float(cell))
    return header, numbers


def _is_number(cell: Any) -> bool:
    try:
        return bool(np.isfinite(float(cell)))
    except (TypeError, ValueError):
        return False


def _json_list(what: str, content: str) -> list[Any]:
    try:
        value = json.loads(content)
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadInput(f"{what}: not valid JSON: {error}") from None
    return list(value)


def _read(what: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadInput(f"{what}: no file {path}", given=path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{what}: {path} cannot be read: {error}", given=path) from None
