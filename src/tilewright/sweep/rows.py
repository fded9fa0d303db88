"""The problems of a sweep: one a line of a CSV or JSON Lines file, or the layers of a model.

A line gives the fields of a problem (`kind`, m, n, k, counts, seqlens, …; `kind` is gemm unless given) and may say
`layer`, `name` and `repeat`: how often it occurs, for totals. In a CSV a list is "512 512 0" or in runs "64x1024 128",
and a `counts` or `seqlens` cell may name a file instead. A malformed line is a row with an error; only a file that
cannot be read, or a column that no problem has, refuses the sweep.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.errors import BadInput, TilewrightError, UnknownName
from tilewright.lists import parse_integers
from tilewright.problem import Attention, Gemm, GroupedGemm, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

KINDS: dict[str, type[Gemm | GroupedGemm | Attention]] = {
    "gemm": Gemm,
    "grouped-gemm": GroupedGemm,
    "attention": Attention,
}
LABELS = ("layer", "name", "repeat")
LISTS = ("counts", "seqlens", "seqlens_k")
FIELDS = sorted({field for kind in KINDS.values() for field in kind.model_fields} | {*LABELS})
MAX_REPEAT = 1_000_000_000
MAX_DIGITS = 24  # of a run in a list


@dataclass(frozen=True, slots=True)
class Row:
    """One line.

    Attributes:
        where: the line in the file, for messages.
        layer: groups rows in the summary.
        repeat: how often the problem occurs.
        problem: None where `error` says what is wrong with the line.
    """

    where: str
    layer: str = ""
    name: str = ""
    repeat: int = 1
    problem: Workload | None = None
    error: str = ""


def read_rows(path: Path) -> list[Row]:
    """The rows of a .csv, .jsonl or .json (a model's) file.

    Raises:
        BadInput: an unreadable file, another ending, a column that no problem has, or no row at all.
    """
    from tilewright.sweep.transformer import read_model  # noqa: PLC0415  (it makes rows of its own)

    readers = {".csv": _csv_rows, ".jsonl": _json_rows, ".json": read_model}
    if path.suffix not in readers:
        raise BadInput(
            f"{path} is none of {', '.join(readers)}", given=path, allowed=", ".join(readers)
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}", given=path) from None
    rows = list(readers[path.suffix](text, path))
    if not rows:
        raise BadInput(f"{path} has no problem in it", given=path)
    return rows


def _csv_rows(text: str, path: Path) -> Iterator[Row]:
    csv.field_size_limit(
        max(csv.field_size_limit(), len(text))
    )  # a list of a hundred thousand lengths is one cell
    lines = csv.reader(io.StringIO(text, newline=""))
    header = [column.strip() for column in next(lines, [])]
    for column in header:
        if column not in FIELDS:
            raise UnknownName(f"column of {path}", column, FIELDS)
    for cells in lines:
        if not any(cell.strip() for cell in cells):
            continue
        where = f"{path.name}:{lines.line_num}"
        if len(cells) > len(header):
            yield Row(where, error=f"{len(cells)} cells under {len(header)} columns")
            continue
        given = zip(header, (cell.strip() for cell in cells), strict=False)
        yield make_row(where, {name: cell for name, cell in given if cell}, path.parent)


def _json_rows(text: str, path: Path) -> Iterator[Row]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path.name}:{number}"
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield Row(where, error=f"not valid JSON: {error}")
            continue
        if isinstance(values, dict):
            yield make_row(where, values, path.parent)
        else:
            yield Row(where, error="not a JSON object")


def make_row(where: str, values: Mapping[str, Any], folder: Path) -> Row:
    """The row of one line; what cannot be meant becomes its error.

    Args:
        folder: where files named by `counts` or `seqlens` are.
    """
    values = dict(values)
    layer, name = (str(values.pop(label, "")) for label in ("layer", "name"))
    kind = str(values.pop("kind", "gemm"))
    try:
        repeat = _repeat(values.pop("repeat", 1))
        if kind not in KINDS:
            raise UnknownName("kind", kind, KINDS)
        for field in LISTS:
            if isinstance(values.get(field), str):
                values[field] = _parse_list(field, values[field], folder)
        problem = KINDS[kind].of(values)
    except TilewrightError as error:
        return Row(where, layer or kind, name, error=str(error))
    return Row(where, layer or kind, name, repeat, problem)


def _repeat(given: Any) -> int:
    try:
        repeat = int(given)
    except (TypeError, ValueError):
        repeat = 0
    if not 1 <= repeat <= MAX_REPEAT or str(repeat) != str(given):
        raise BadInput(
            f'repeat "{given}" is not a whole number from 1 to {MAX_REPEAT}',
            given=given,
            allowed=f"1 to {MAX_REPEAT}",
        )
    return repeat


def _parse_list(field: str, text: str, folder: Path) -> tuple[int, ...]:
    """A list like "512 512 0", runs like "64x1024 128", or a file of one list."""
    if text.endswith((".csv", ".json", ".txt")):
        return parse_integers(field, str(folder / text))
    found: list[int] = []
    for part in text.replace(";", " ").replace(",", " ").split():
        times, _, value = part.rpartition("x")
        short = len(part) <= MAX_DIGITS
        if not (short and value.isdecimal() and (times.isdecimal() or part == value)):
            raise BadInput(
                f'{field}: "{part}" is neither a number nor a run like 64x1024', given=part
            )
        if int(times or 1) + len(found) > 1_000_000:
            raise BadInput(f"{field}: more than 1000000 entries", given=part)
        found += [int(value)] * int(times or 1)
    return tuple(found)
