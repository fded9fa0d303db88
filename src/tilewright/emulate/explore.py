"""Many schedules of one launch: which orders, how many clusters at once, which requests are declined early.

Every schedule begins with the arrays as they were. Its seed decides all of it: seed 0 lets everybody act in
turn with everything resident; others go round the strategies of `schedule` and, where a kernel uses cluster
launch control, vary the resident clusters and let requests decline. The first failing schedule is shrunk: the
fewest decisions away from "in turn" that still fail in the same way.
"""

from __future__ import annotations

import math
import multiprocessing
import random
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulate.machine import Options
from tilewright.emulate.report import Outcome, Report
from tilewright.emulate.schedule import (
    ExhaustiveStrategy,
    Node,
    Redundant,
    ReplayStrategy,
    following,
)
from tilewright.ptx.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tilewright.emulate.launch import Launch
    from tilewright.emulate.registers import Array
    from tilewright.emulate.schedule import Strategy

SHRINK_RUNS_MAX = 200

STEPS_MIN = 5000
"""A replay with other decisions may take this many steps and ten times those of the original."""


@dataclass(frozen=True)
class Expected:
    """What an array must hold at the end.

    Attributes:
        atol, rtol: as numpy.allclose takes them; both 0 asks for the same bytes.
    """

    array: Array
    values: Array
    name: str = "output"
    atol: float = 0.0
    rtol: float = 0.0

    def mismatch(self) -> str:
        """What is wrong, or ""."""
        found, wanted = self.array, np.broadcast_to(self.values, self.array.shape)
        if self.atol or self.rtol:
            wrong = ~np.isclose(found, wanted, rtol=self.rtol, atol=self.atol, equal_nan=True)
        else:
            wrong = (found != wanted) & ~((found != found) & (wanted != wanted))  # noqa: PLR0124  (NaN)
        if not wrong.any():
            return ""
        first = tuple(int(i) for i in np.argwhere(wrong)[0])
        return (
            f"{self.name}: {np.count_nonzero(wrong)} of {found.size} elements are wrong; "
            f"{list(first)} is {found[first]}, not {wanted[first]}"
        )


def vary(
    seed: int, clusters: int, resident: int | None, decline_at: frozenset[int] | None
) -> tuple[int | None, frozenset[int]]:
    """Clusters at once and early declines of a seed's schedule, where they are left open (None).

    What is given changes nothing of what is left open, so that a seed and the part of both that its run had to be
    told give that run again.
    """
    rng = random.Random(seed)  # noqa: S311  (a schedule, no secret)
    most = max(1, min(clusters, 4))
    drawn = rng.randint(1, most) if seed and rng.random() < 0.8 else None
    declines = seed and rng.random() < 0.4
    early = frozenset(i for i in range(2 * clusters) if declines and rng.random() < 0.3)
    return drawn if resident is None else resident, early if decline_at is None else decline_at


class Explorer:
    """Schedules of one launch.

    Args:
        resident: clusters at once in every schedule; None lets the seed vary it where that can matter.
        decline_at: requests that are declined early in every schedule; None leaves it to the seed likewise.
        expected: arrays compared after each schedule.
    """

    def __init__(
        self,
        launch: Launch,
        *,
        expected: Sequence[Expected] = (),
        resident: int | None = None,
        decline_at: Iterable[int] | None = None,
        races: bool = True,
    ) -> None:
        self.launch = launch
        self.expected = tuple(expected)
        self.resident = resident
        self.decline_at = None if decline_at is None else frozenset(decline_at)
        self.races = races
        self._before = [array.copy() for array in launch.buffers.arrays()]
        self._requests = any(
            step.op.node.opcode.root == "clusterlaunchcontrol" for step in launch.program.steps
        )
        cluster, grid = launch.cluster, launch.grid
        self._clusters = math.prod(grid) // math.prod(cluster)

    # --- one schedule -----------------------------------------------------------------------------

    def options(self, seed: int) -> Options:
        """How a seed's schedule is run."""
        seeded = seed if self._requests else 0
        resident, declines = vary(seeded, self._clusters, self.resident, self.decline_at)
        return Options(resident=resident, decline_at=declines, races=self.races)

    def run(self, seed: int) -> Outcome:
        """The schedule of a seed."""
        return self._run(self.launch.strategy(seed), self.options(seed))

    def replay(self, outcome: Outcome, picks: Sequence[int] | None = None) -> Outcome:
        """A schedule again, or with other decisions."""
        options = Options(
            resident=outcome.resident,
            decline_at=frozenset(outcome.decline_at),
            races=self.races,
            steps_max=STEPS_MIN + 10 * outcome.steps,
        )
        given = outcome.picks if picks is None else picks
        return self._run(ReplayStrategy(given, outcome.seed), options)

    def _run(self, strategy: Strategy, options: Options) -> Outcome:
        for array, before in zip(self.launch.buffers.arrays(), self._before, strict=True):
            np.copyto(array, before)
        outcome = self.launch.run(strategy, options)
        if not outcome.ended:
            return outcome
        wrong = [text for each in self.expected if (text := each.mismatch())]
        if not wrong:
            return outcome
        span = self.launch.program.function.span
        found = [Finding("RESULT", "error", text, span, self.launch.program.name) for text in wrong]
        return replace(outcome, findings=(*outcome.findings, *found))

    # --- many -------------------------------------------------------------------------------------

    def explore(
        self,
        schedules: int,
        *,
        first_seed: int = 0,
        processes: int = 1,
        stop_at_failure: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> Report:
        """Schedules of `schedules` seeds from the first on.

        Args:
            processes: run beside one another; each has arrays of its own, so the caller's stay as they were.
            progress: called with the number of schedules done.
        """
        report = Report(self.launch.program.name)
        seeds = range(first_seed, first_seed + schedules)
        for outcome in self._outcomes(seeds, processes):
            report.outcomes.append(outcome)
            if progress is not None:
                progress(len(report.outcomes))
            if stop_at_failure and outcome.verdict == "fail":
                break
        return report

    def _outcomes(self, seeds: Sequence[int], processes: int) -> Iterator[Outcome]:
        if processes <= 1 or "fork" not in multiprocessing.get_all_start_methods():
            yield from map(self.run, seeds)
            return
        _SHARED.append(self)
        try:
            with multiprocessing.get_context("fork").Pool(processes) as pool:
                yield from pool.imap(_run_shared, seeds, chunksize=1)
        finally:
            _SHARED.pop()

    def exhaust(self, runs_max: int = 10_000, *, reduces: bool = True) -> tuple[Report, bool]:
        """Every order of a small launch, each once up to steps that do not touch one another.

        Returns:
            the report, whose outcomes are the orders that were run to an end, and whether those are all.
        """
        report = Report(self.launch.program.name)
        resident, declines = vary(0, self._clusters, self.resident, self.decline_at)
        options = Options(resident=resident, decline_at=declines, races=self.races)
        stack: list[Node] = []
        for _ in range(runs_max):
            with suppress(Redundant):
                strategy = ExhaustiveStrategy(stack, reduces=reduces)
                report.outcomes.append(self._run(strategy, options))
            if not following(stack):
                return report, True
        return report, False

    def shrink(self, failing: Outcome, runs_max: int = SHRINK_RUNS_MAX) -> Outcome:
        """The same failure with as few decisions away from "in turn" as can be found."""
        rule = failing.errors[0].rule if failing.errors else ""
        best = failing
        runs = 0

        def fails(picks: Sequence[int]) -> bool:
            nonlocal best, runs
            runs += 1
            outcome = self.replay(failing, picks)
            if outcome.errors and outcome.errors[0].rule == rule:
                best = replace(outcome, picks=_without_tail(picks))
                return True
            return False

        picks = list(_without_tail(failing.picks))
        if not fails(picks):  # not a matter of decisions alone
            return failing
        block = max(1, len(picks) // 2)
        while block and runs < runs_max:
            start = len(picks)
            while start > 0 and runs < runs_max:
                start = max(0, start - block)
                piece = picks[start : start + block]
                if any(piece):
                    tried = [*picks[:start], *[0] * len(piece), *picks[start + block :]]
                    if fails(tried):
                        picks = tried
            block //= 2
        return best


_SHARED: list[Explorer] = []
"""What forked processes run: a program holds functions, which cannot be sent."""


def _run_shared(seed: int) -> Outcome:
    return _SHARED[-1].run(seed)


def _without_tail(picks: Sequence[int]) -> tuple[int, ...]:
    """Decisions up to the last that is not the plain one."""
    end = max((i + 1 for i, pick in enumerate(picks) if pick), default=0)
    return tuple(picks[:end])
