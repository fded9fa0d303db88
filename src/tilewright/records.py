"""Tables of a plan, an audit, a simulation or a sweep, for pandas, polars, Arrow and notebooks.

    pandas.DataFrame(plan.table("schedule.options"))
    polars.DataFrame(plan.table("contract.residency"))

Rows are plain dicts. A column keeps its numbers, truths or words when it has one kind of them; what is nested or mixed is
its JSON text, so that every column has one type.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload

from tilewright.errors import BadInput


class Records(Sequence[dict[str, Any]]):
    """Rows of equal columns."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        given = [dict(row) for row in rows]
        columns = dict.fromkeys(name for row in given for name in row)
        plain = {name: _one_kind(row.get(name) for row in given) for name in columns}
        self._rows = [
            {name: _cell(row.get(name), keep=plain[name]) for name in columns} for row in given
        ]
        self.columns = tuple(columns)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        return self._rows[index]

    def __repr__(self) -> str:
        return f"<{len(self)} records: {', '.join(self.columns)}>"

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows as an Arrow stream; needs pyarrow.

        Raises:
            BadInput: names the extra.
        """
        try:
            import pyarrow as pa  # noqa: PLC0415  (an extra)
        except ImportError:
            raise BadInput(
                "an Arrow stream needs pyarrow: pip install 'tilewright[sweep]', or take the rows: list(table)"
            ) from None
        return pa.Table.from_pylist(self._rows).__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        from tilewright.report.document import Table  # noqa: PLC0415  (only notebooks show)
        from tilewright.report.fragment import render_fragment  # noqa: PLC0415

        numeric = {
            i for i, name in enumerate(self.columns) if isinstance(self._first(name), int | float)
        }
        rows = tuple(tuple(_shown(row[name]) for name in self.columns) for row in self._rows)
        return render_fragment([Table(self.columns, rows, frozenset(numeric))])

    def _first(self, name: str) -> Any:
        return next((row[name] for row in self._rows if row[name] is not None), None)


def records_of(found: Any, what: str) -> Records:
    """A list of mappings, or a mapping of mappings, whose keys become the column `name`.

    Raises:
        BadInput: it is no table.
    """
    if isinstance(found, Mapping) and found and all(isinstance(v, Mapping) for v in found.values()):
        return Records({"name": name, **row} for name, row in found.items())
    if isinstance(found, list | tuple) and all(isinstance(row, Mapping) for row in found):
        return Records(found)
    raise BadInput(f"{what} is no table of rows", given=what)


def _one_kind(values: Iterable[Any]) -> bool:
    """Whether a column has truths alone, numbers alone or words alone, beside what is missing."""
    kinds = {
        "truth" if isinstance(v, bool) else "number" if isinstance(v, int | float) else type(v)
        for v in values
        if v is not None
    }
    return len(kinds) <= 1 and kinds <= {"truth", "number", str}


def _cell(value: Any, *, keep: bool) -> Any:
    return value if keep or value is None else json.dumps(value, default=str)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
