"""What ends a run of the emulator: a kernel did what PTX leaves undefined, or what is not emulated."""

from __future__ import annotations

from tilewright.errors import TilewrightError


class Fault(TilewrightError):
    """Undefined behaviour at one instruction; whoever runs it adds the line and the lane.

    Attributes:
        rule: id in the catalogue of rules, like "TC-16"; empty where the catalogue has none.
    """

    def __init__(self, rule: str, message: str, *, given: object = "", allowed: str = "") -> None:
        super().__init__(message, given=given, allowed=allowed)
        self.rule = rule


class NotEmulated(TilewrightError):
    """PTX that has a meaning which the emulator does not know: `what`, with no trailing words."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not emulated", given=what)
        self.what = what
