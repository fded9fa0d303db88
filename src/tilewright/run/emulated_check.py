"""A kernel checked on the emulator: what the `check` command and the agents' tool of that name have in common."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright.audit.locate import Locator
from tilewright.emulate.explore import Explorer
from tilewright.ptx import parse_ptx
from tilewright.timeline import of_history

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilewright.emulate.errors import NotModelled
    from tilewright.emulate.report import Outcome, Report
    from tilewright.emulate.spec import LaunchSpec, ReadFile
    from tilewright.run.inputs import PtxText
    from tilewright.timeline import Timeline


@dataclass(frozen=True)
class Schedules:
    """Which schedules are run.

    Attributes:
        count, first_seed: as many seeds, from the first on.
        resident: clusters at once; the seed varies it unless given.
        decline_at: launch control requests that are declined; likewise.
        processes: run beside one another.
        races: hold accesses against one another.
    """

    count: int = 20
    first_seed: int = 0
    resident: int | None = None
    decline_at: tuple[int, ...] | None = None
    processes: int = 1
    races: bool = True


class Replay(NamedTuple):
    """What gives one schedule again."""

    seed: int
    resident: int | None = None
    decline_at: tuple[int, ...] = ()


@dataclass(frozen=True)
class Checked:
    """What the schedules came to.

    Attributes:
        smallest: the first failure with as few decisions away from "in turn" as were found.
        replay: of the first failure.
        locator: places in the source that the kernel came from, where its reader has that.
        remarks: what else is worth saying, a line each.
        timed: of a kernel that keeps its tiles' times.
    """

    report: Report
    smallest: Outcome | None
    replay: Replay | None
    locator: Locator | None
    remarks: tuple[str, ...]
    timed: Timeline | None = None

    @property
    def timeline(self) -> Timeline:
        """What `timed` says, else who was where in the first failure, or in the first schedule where none fails."""
        if self.timed is not None:
            return self.timed
        return of_history((self.report.failing or self.report.outcomes[0]).history)

    @property
    def summary(self) -> str:
        """One line."""
        report, count = self.report, len(self.report.outcomes)
        return f"{report.kernel}: {report.verdict} after {count} schedule{'s' if count > 1 else ''}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What the schedules came by, and what else is worth saying."""
        return (*self.report.coverage.sentences, *self.remarks)

    @property
    def last_steps(self) -> tuple[str, ...]:
        """Of the smallest failure, before its first error."""
        failing = self.report.failing
        if failing is None or self.smallest is None:
            return ()
        return self.smallest.trace or failing.trace

    def as_dict(self) -> dict[str, Any]:
        """The JSON, with places in the source that the reader has."""
        found = self.report.as_dict()
        if self.locator is not None:
            for entry, finding in zip(found["findings"], self.report.findings, strict=True):
                located = self.locator.locate(finding)
                entry["file"], entry["line"] = located.place.file, located.place.line
                entry["other_line"] = located.other.line if located.other is not None else None
        return found


def check_ptx(
    text: PtxText,
    launch: LaunchSpec,
    read: ReadFile,
    schedules: Schedules,
    *,
    progress: Callable[[int], None] | None = None,
    **given: Any,
) -> Checked:
    """Run a kernel under many schedules.

    Args:
        read: the content of a file that the launch names.
        progress: called with the number of schedules done.
        given: as `LaunchSpec.prepare`.
    Raises:
        BadInput, UnknownName: a launch or a text that cannot be meant.
        NotModelled: an instruction that the emulator does not have.
    """
    module = parse_ptx(text.ptx, text.name)
    ready, expected = launch.prepare(module, read, **given)
    explorer = Explorer(
        ready,
        expected=expected,
        resident=schedules.resident,
        decline_at=schedules.decline_at,
        races=schedules.races,
    )
    start = time.perf_counter()
    report = explorer.explore(
        schedules.count,
        first_seed=schedules.first_seed,
        processes=schedules.processes,
        progress=progress,
    )
    took = time.perf_counter() - start
    instructions = sum(outcome.instructions for outcome in report.outcomes)
    failing = report.failing
    return Checked(
        report,
        None if failing is None else explorer.shrink(failing),
        None if failing is None else Replay(failing.seed, failing.resident, failing.decline_at),
        Locator(module, text.sources),
        (f"{instructions} warp instructions in {took:.1f} s",),
    )


def unsupported(stopped: NotModelled) -> dict[str, Any]:
    """The JSON where an instruction is not emulated: nothing was run."""
    return {
        "verdict": "unsupported",
        "schedules": 0,
        "findings": [],
        "seed": 0,
        "message": str(stopped),
    }
