"""Where answers are kept: a journal while a sweep runs, the results file when it is done.

The journal OUT.part has a JSON line an answer, written as each comes; a line that a kill cut short is left out. The
results file has a line for each row and device in the order asked for, is written whole and renamed into place, and is
itself read by a later sweep, which asks only what neither of them answers.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from tilewright.errors import BadInput
from tilewright.sweep.answer import Answered

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from tilewright.sweep.rows import Row

ENDINGS = (".csv", ".jsonl", ".parquet")
ROW_COLUMNS = ("row", "layer", "name", "repeat", "problem")
COLUMNS = (*ROW_COLUMNS, *(name for name in Answered.model_fields if name != "key"), "key")


@dataclass
class Store:
    """The answers of one results file.

    Attributes:
        out: the results file.
        known: answers by key.
    """

    out: Path
    known: dict[str, Answered] = field(default_factory=dict)
    _journal: IO[str] | None = None

    @property
    def part(self) -> Path:
        """The journal."""
        return self.out.with_name(self.out.name + ".part")

    @classmethod
    def open(cls, out: Path) -> Store:
        """Read what is known and open the journal.

        Raises:
            BadInput: another ending, a file that is no sweep's, a folder that cannot be written, no pyarrow.
        """
        if out.suffix not in ENDINGS:
            raise BadInput(
                f"--out {out} is none of {', '.join(ENDINGS)}",
                given=out,
                allowed=", ".join(ENDINGS),
            )
        if out.suffix == ".parquet":
            _pyarrow()
        store = cls(out)
        try:
            if out.exists():
                store._keep(_answers_of(out))
            if store.part.exists():
                store._keep(_journal_lines(store.part))
            store._journal = store.part.open("a", encoding="utf-8")
        except OSError as error:
            raise BadInput(f"--out {out}: {error.strerror}", given=out) from None
        if store.part.stat().st_size and not store.part.read_bytes().endswith(b"\n"):
            store._journal.write("\n")
        return store

    def _keep(self, found: Iterable[Answered]) -> None:
        self.known.update((each.key, each) for each in found if not each.retry)

    def add(self, found: Answered) -> None:
        """Remember an answer; it outlives this process from here on."""
        assert self._journal is not None  # noqa: S101  (open() opened it)
        self.known[found.key] = found
        self._journal.write(found.model_dump_json() + "\n")
        self._journal.flush()

    def close(self) -> None:
        """Close the journal, which stays."""
        if self._journal is not None:
            self._journal.close()

    def finish(self, lines: Sequence[dict[str, Any]]) -> None:
        """Write the results file in one step, and end the journal."""
        self.close()
        fresh = self.out.with_name(self.out.name + ".new")
        {".csv": _write_csv, ".jsonl": _write_jsonl, ".parquet": _write_parquet}[self.out.suffix](
            fresh, lines
        )
        fresh.replace(self.out)
        self.part.unlink()


def line_of(number: int, row: Row, found: Answered) -> dict[str, Any]:
    """One line of the results file."""
    return {
        "row": number,
        "layer": row.layer,
        "name": row.name or row.where,
        "repeat": row.repeat,
        "problem": ""
        if row.problem is None
        else row.problem.model_dump_json(exclude_defaults=True),
        **found.model_dump(exclude={"key"}),
        "key": found.key,
    }


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a results file as they were written, whatever its ending.

    Raises:
        BadInput: it is not a results file of a sweep.
    """
    try:
        raw = list(_read(path))
        lines = [_typed(line) for line in raw]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{path} is there and is not a results file of a sweep ({error}); name another --out",
            given=path,
        ) from None
    return lines


def _answers_of(path: Path) -> Iterator[Answered]:
    for line in read_lines(path):
        yield Answered.model_validate({name: line[name] for name in Answered.model_fields})


def _typed(line: dict[str, Any]) -> dict[str, Any]:
    """Cells of a CSV are text: an empty one is None where a number may be missing."""
    optional = {name for name, field in Answered.model_fields.items() if field.default is None}
    answered = {
        name: None if name in optional and line[name] == "" else line[name]
        for name in Answered.model_fields
    }
    typed = Answered.model_validate(answered).model_dump()
    row = {name: line[name] for name in ROW_COLUMNS}
    return {**row, "row": int(row["row"]), "repeat": int(row["repeat"]), **typed}


def _read(path: Path) -> Iterable[dict[str, Any]]:
    if path.suffix == ".parquet":
        found: list[dict[str, Any]] = _pyarrow().read_table(path).to_pylist()
        return found
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return map(json.loads, text.splitlines())
    return csv.DictReader(io.StringIO(text))


def _journal_lines(path: Path) -> Iterator[Answered]:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            yield Answered.model_validate_json(line)
        except ValueError:
            continue  # the line that was being written when the process was killed


def _write_csv(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(lines)


def _write_jsonl(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    text = "".join(json.dumps({name: line[name] for name in COLUMNS}) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")


def _write_parquet(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    import pyarrow as pa  # noqa: PLC0415  (an extra)

    kinds: dict[object, Any] = {int: pa.int64(), str: pa.string(), bool: pa.bool_()}
    python: dict[str, object] = dict.fromkeys(ROW_COLUMNS, str) | {"row": int, "repeat": int}
    python |= {name: field.annotation for name, field in Answered.model_fields.items()}
    schema = pa.schema([(name, kinds.get(python[name], pa.float64())) for name in COLUMNS])
    _pyarrow().write_table(pa.Table.from_pylist(list(lines), schema=schema), path)


def _pyarrow() -> Any:
    """The module `pyarrow.parquet`.

    Raises:
        BadInput: names the extra.
    """
    try:
        import pyarrow.parquet  # noqa: PLC0415  (an extra)
    except ImportError:
        raise BadInput(
            "a .parquet file needs pyarrow: pip install 'tilewright[sweep]', or write .csv or .jsonl",
            nearest=".csv",
        ) from None
    return pyarrow.parquet
