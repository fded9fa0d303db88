"""`sweep`: rows and devices in, a results file out; what is known already is not asked again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.records import Records
from tilewright.sweep.answer import Answered, key_of
from tilewright.sweep.on_ray import run_tasks_on_ray
from tilewright.sweep.processes import Task, run_tasks
from tilewright.sweep.store import Store, line_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import Any

    from tilewright.device import Device
    from tilewright.sweep.rows import Row


@dataclass(frozen=True)
class Swept:
    """A sweep that is done.

    Attributes:
        lines: of the results file: each row on each device.
        asked: questions that this run answered; `known` those answered before it.
    """

    lines: list[dict[str, Any]]
    asked: int
    known: int

    @property
    def failed(self) -> list[dict[str, Any]]:
        """Lines with an error."""
        return [line for line in self.lines if line["error"]]

    def table(self) -> Records:
        """The lines, for pandas, polars and notebooks."""
        return Records(self.lines)

    def _repr_html_(self) -> str:
        from tilewright.report.fragment import render_fragment  # noqa: PLC0415  (only notebooks show)
        from tilewright.sweep.summary import sweep_document  # noqa: PLC0415

        return render_fragment(sweep_document(self.lines))


def sweep(
    rows: Sequence[Row],
    devices: Sequence[Device],
    out: Path,
    *,
    processes: int,
    seconds: float = 300.0,
    ray: str | None = None,
    progress: Callable[[int, int, int], None] = lambda _done, _total, _failed: None,
) -> Swept:
    """Answer every row on every device; equal questions are asked once.

    Args:
        out: results file, .csv, .jsonl or .parquet; an earlier one is taken over.
        processes: of this machine, unless `ray` gives a cluster's address.
        seconds: most that a question may take.
        progress: told answered, all and failed questions, now and then.
    Raises:
        BadInput: the results file or the cluster.
    """
    store = Store.open(out)
    try:
        by_name = {device.name: device for device in devices}
        questions = {
            (number, device.name): Task(key_of(row.problem, device), row.problem, device.name)
            for number, row in enumerate(rows, 1)
            if row.problem is not None
            for device in devices
        }
        tasks = {task.key: task for task in questions.values()}
        missing = [task for task in tasks.values() if task.key not in store.known]
        known = len(tasks) - len(missing)
        failed = 0
        progress(known, len(tasks), failed)
        answers = (
            run_tasks_on_ray(missing, by_name, address=ray, seconds=seconds)
            if ray is not None
            else run_tasks(missing, by_name, processes=processes, seconds=seconds)
        )
        if missing:
            for done, found in enumerate(answers, 1):
                store.add(found)
                failed += bool(found.error)
                progress(known + done, len(tasks), failed)
        lines = [
            line_of(number, row, _found(row, questions.get((number, device.name)), device, store))
            for number, row in enumerate(rows, 1)
            for device in devices
        ]
        store.finish(lines)
    finally:
        store.close()
    return Swept(lines, len(missing), known)


def _found(row: Row, question: Task | None, device: Device, store: Store) -> Answered:
    if question is None:
        return Answered(key="", device=device.name, error=row.error)
    return store.known[question.key]
