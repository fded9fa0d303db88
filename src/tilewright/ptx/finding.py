"""What a check of PTX found: which rule, where, and what else it concerns. Audit and emulation share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tilewright.ptx.source import Span

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One break of a rule.

    Attributes:
        rule: its id, like "CLC-07".
        message: what is wrong here, with numbers; no trailing period.
        span: the instruction or declaration that it is about.
        other, other_says: the other place involved, and what it has to do with it.
        kernel: name of the function.
    """

    rule: str
    severity: Severity
    message: str
    span: Span
    kernel: str
    other: Span | None = None
    other_says: str = ""


@dataclass(frozen=True, slots=True)
class NotDecided:
    """A rule that this analysis could not apply, and why: neither an error nor a pass."""

    rule: str
    why: str
    span: Span
    kernel: str
