"""The registry: every rule with its id, severity, section and help; each family file adds its own.

    @rule("CLC-07", "error", section="9.7.13.18", help="read the coordinates only where is_canceled held")
    def coordinates_when_granted(kernel: Kernel) -> Iterator[Outcome]: ...

A rule yields a `Finding` for each break, and `NotDecided` where the analysis cannot know. It never guesses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tilewright.audit.kernel import Kernel
from tilewright.ptx.finding import Finding, NotDecided, Severity

Outcome = Finding | NotDecided
Check = Callable[[Kernel], Iterator[Outcome]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of the catalogue.

    Attributes:
        severity: of its findings, unless one says otherwise.
        section: of the PTX ISA.
        help: what to do, in one line.
        what: the rule in one sentence, from its function's docstring.
    """

    id: str
    severity: Severity
    section: str
    help: str
    what: str
    check: Check


RULES: dict[str, Rule] = {}


def rule(id_: str, severity: Severity, *, section: str, help: str) -> Callable[[Check], Check]:  # noqa: A002
    """Register a check under its id."""

    def register(check: Check) -> Check:
        what = (check.__doc__ or "").strip().splitlines()[0]
        RULES[id_] = Rule(id_, severity, section, help, what, check)
        return check

    return register
