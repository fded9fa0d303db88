"""What one or many schedules of a launch came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, Literal

from tilewright.emulate.coverage import Coverage
from tilewright.emulate.history import History
from tilewright.ptx.finding import Finding  # noqa: TC001  (a field of a dataclass)

Verdict = Literal["pass", "fail"]


@dataclass(frozen=True)
class Outcome:
    """One schedule.

    Attributes:
        seed: that replays it.
        picks: its decisions (see `schedule`): with `resident` and `decline_at` they replay it.
        findings: in the order found; the last ended the run if it did not end by itself.
        ended: whether every CTA has left.
        instructions, steps: warp instructions executed; turns that agents had.
        coverage: blocks that ran, waits that had to wait.
        trace: the steps before the first error, as text.
        history: who was where when, and asked for what.
    """

    seed: int
    picks: tuple[int, ...]
    findings: tuple[Finding, ...]
    ended: bool
    instructions: int
    steps: int = 0
    coverage: Coverage = field(default_factory=Coverage)
    trace: tuple[str, ...] = ()
    history: History = field(default_factory=lambda: History(1))
    resident: int | None = None
    decline_at: tuple[int, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Fail if there is an error or the run did not end."""
        return "fail" if self.errors or not self.ended else "pass"

    @property
    def errors(self) -> list[Finding]:
        """Findings that are errors."""
        return [f for f in self.findings if f.severity == "error"]


@dataclass
class Report:
    """All schedules that were run.

    Attributes:
        outcomes: the runs in order.
    """

    kernel: str
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def coverage(self) -> Coverage:
        """What some schedule came by."""
        return reduce(or_, (outcome.coverage for outcome in self.outcomes), Coverage())

    @property
    def failing(self) -> Outcome | None:
        """The first schedule that failed."""
        return next((o for o in self.outcomes if o.verdict == "fail"), None)

    @property
    def verdict(self) -> Verdict:
        """Fail if any schedule failed."""
        return "fail" if self.failing is not None else "pass"

    @property
    def findings(self) -> list[Finding]:
        """Every finding once, errors first."""
        seen: dict[tuple[object, ...], Finding] = {}
        for outcome in self.outcomes:
            for found in outcome.findings:
                seen.setdefault((found.rule, found.span, found.other), found)
        return sorted(seen.values(), key=lambda f: f.severity != "error")

    @property
    def seed(self) -> int:
        """Of the first schedule that failed, else of the first."""
        return self.failing.seed if self.failing is not None else self.outcomes[0].seed

    def as_dict(self) -> dict[str, Any]:
        """The JSON of `tilewright check`."""
        return {
            "verdict": self.verdict,
            "schedules": len(self.outcomes),
            "findings": [finding_as_dict(found) for found in self.findings],
            "seed": self.seed,
            "coverage": self.coverage.as_dict(),
        }


def finding_as_dict(found: Finding) -> dict[str, Any]:
    """One finding with both places."""
    return {
        "id": found.rule,
        "severity": found.severity,
        "file": found.span.file,
        "line": found.span.line,
        "message": found.message,
        "other_line": found.other.line if found.other is not None else None,
        "other_says": found.other_says,
    }


class CheckFailed(AssertionError):
    """A launch in which something was found; `report` has it all."""

    def __init__(self, report: Report) -> None:
        self.report = report
        super().__init__("\n".join(render_finding(found) for found in report.findings))


def render_finding(found: Finding) -> str:
    """One finding as text, with both lines."""
    text = f"{found.span}: {found.severity} {found.rule}: {found.message}"
    if found.other is not None:
        text += f"\n    {found.other}: {found.other_says or 'the other place'}"
    return text
