"""The exception tree: every error carries what was given, what is allowed and what would work.

    TilewrightError
    ├── UnknownName      a device, dtype, scheduler or option that does not exist
    ├── BadInput         a value, file or shape that cannot be meant
    ├── DeviceDataError  a device TOML that does not parse or lacks a required value
    ├── Unsupported      the device lacks the capability or the dtype
    ├── NoFit            nothing fits the device; names the closest miss
    ├── UnknownValue     an answer needs a device value that nobody has a source for
    └── ProtocolError    a ledger that contradicts itself (protocol.model): a defect here, not of the input

The command line maps each of them to exit code 2 in one place. Nothing in the library prints or exits.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class TilewrightError(Exception):
    """Base of everything this package raises on purpose.

    Attributes:
        given: the value that was refused, as text.
        allowed: what would have been accepted, as text; empty when there is no finite list.
        nearest: the closest thing that works; empty when none is known.
    """

    def __init__(
        self, message: str, *, given: object = "", allowed: str = "", nearest: str = ""
    ) -> None:
        super().__init__(message)
        self.given = str(given)
        self.allowed = allowed
        self.nearest = nearest

    def as_dict(self) -> dict[str, str]:
        """The same error as a JSON object, for programs that call the library."""
        return {
            "error": type(self).__name__,
            "message": str(self),
            "given": self.given,
            "allowed": self.allowed,
            "nearest": self.nearest,
        }


class UnknownName(TilewrightError):
    """A name outside a known list."""

    def __init__(self, what: str, given: str, known: Iterable[str]) -> None:
        names = sorted(known)
        close = difflib.get_close_matches(given, names, n=1, cutoff=0.4)
        hint = f'. Did you mean "{close[0]}"?' if close else ""
        super().__init__(
            f'unknown {what} "{given}"; known: {", ".join(names)}{hint}',
            given=given,
            allowed=", ".join(names),
            nearest=close[0] if close else "",
        )


class BadInput(TilewrightError):
    """A value, file or shape that cannot be meant."""


class DeviceDataError(TilewrightError):
    """A device TOML that does not parse, or lacks a required value."""


class Unsupported(TilewrightError):
    """The device lacks the capability or the data type."""


class NoFit(TilewrightError):
    """Nothing fits the device; the message names the closest miss."""


class UnknownValue(TilewrightError):
    """An answer needs a device value that nobody has a source for."""
