"""What ends a run early: something that the kernel did wrong, or something that is not modelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.errors import TilewrightError

if TYPE_CHECKING:
    from tilewright.ptx.finding import Finding
    from tilewright.ptx.source import Span


class NotModelled(TilewrightError):
    """An instruction, form or value that the emulator does not know.

    Attributes:
        span: where it stands.
    """

    def __init__(self, what: str, span: Span) -> None:
        super().__init__(f"{span}: {what} is not emulated", given=what)
        self.span = span


class Violation(Exception):
    """A break of the contract after which the machine's state means nothing; ends the schedule."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding
