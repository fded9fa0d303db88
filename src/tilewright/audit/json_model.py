"""What `audit --json` prints, as types: the output is made of them, and the published schema too."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from tilewright.audit.contract import KernelContract


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FindingRow(_Row):
    """One break of a rule, where its reader finds it: in the .cu where the PTX has lines of it."""

    id: str
    severity: Literal["error", "warning", "note"]
    file: str
    line: int
    column: int
    message: str
    kernel: str
    other_file: str | None
    other_line: int | None
    other_says: str
    section: str
    help: str


class NotDecidedRow(_Row):
    """A rule that could not be applied in a place, and why."""

    id: str
    file: str
    line: int
    kernel: str
    why: str


class AuditReport(_Row):
    """The output of `tilewright audit --json`; `differences` are those from the plan of --plan."""

    tilewright: str
    findings: tuple[FindingRow, ...]
    not_decided: tuple[NotDecidedRow, ...]
    contract: tuple[KernelContract, ...]
    differences: tuple[str, ...]
