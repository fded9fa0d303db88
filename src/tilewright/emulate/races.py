"""Which rule a race breaks, and the sentence that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.emulate.clocks import ASYNC, HALF, LOOSE, SCOPED, SEEN, TENSOR
from tilewright.emulate.events import AsyncEvent, Event, Side

if TYPE_CHECKING:
    from tilewright.emulate.machine import Machine
    from tilewright.emulate.memory import Segment


def describe_race(machine: Machine, segment: Segment, new: Side, old: Side, level: int) -> None:
    """Report that `new` does not know of `old` at `level`."""
    rule, severity = race_rule(segment, new, old, level)
    (event, lane, writes), (before, old_lane, old_writes) = new, old
    acts, acted = "writes" if writes else "reads", "written" if old_writes else "read"
    if level in {SEEN, LOOSE}:
        pending = isinstance(before, AsyncEvent) and not before.marks
        missing = "which is not over" if pending else "and nothing orders the two"
    elif level == SCOPED:
        missing = "and a signal or wait of an mbarrier between the two has CTA scope only"
    elif level == TENSOR:
        missing = "with no tcgen05.fence::after_thread_sync between"
    elif level == HALF:
        missing = "and no proxy fence stands between"
    else:
        missing = "and the acquiring half of the proxy fence is missing"
    machine.report(
        rule,
        f"{event.who(lane)} {acts} {segment.name} that {before.who(old_lane)} has {acted}, {missing}",
        event.op,
        before.op,
        f"{acted} here",
        severity=severity,
        merged=level == SCOPED,
    )


def race_rule(segment: Segment, new: Side, old: Side, level: int) -> tuple[str, str]:  # noqa: PLR0911  (a rule a case)
    """The catalogue's id for a race, and its severity; RACE where the catalogue has no rule of its own.

    Two writes of one value are a race as well, but change nothing: a warning.
    """
    event, before = new[0], old[0]
    if before.who(0) == "the prerequisite grid":
        return "PDL-01", "error"
    if level == SCOPED:
        return "MBAR-08", "warning"
    answers = [e for e in (event, before) if isinstance(e, AsyncEvent) and e.what == "CLC answer"]
    if answers:
        return _answer_rule(new, old, level)
    if level == TENSOR:
        return "TC-12", "error"
    if level in {HALF, ASYNC}:
        reads_shared = isinstance(event, AsyncEvent) and event.what.endswith("store")
        return ("TMA-15" if reads_shared else "CLU-11"), "error" if level == HALF else "warning"
    severity = "warning" if event.silent and new[2] and old[2] else "error"
    rule = _copy_rule(event, before, overwrites=not old[2])
    if rule:
        return rule, severity
    if segment.cta is not None and event.warp.cta is not before.warp.cta:
        return "CLU-03", severity
    return "RACE", severity


def _answer_rule(new: Side, old: Side, level: int) -> tuple[str, str]:
    if level == HALF:
        return "CLC-09", "error"
    if level == ASYNC:
        return "CLC-09", "warning"
    if isinstance(old[0], AsyncEvent):  # read before it came, or a second answer over the first
        return ("CLC-11" if isinstance(new[0], AsyncEvent) else "CLC-06"), "error"
    far = old[0].warp.cta is not new[0].warp.cta
    return ("CLC-14" if far else "CLC-15"), "error"


_MATRIX = ("wgmma", "tcgen05.mma", "tcgen05.cp")


def _copy_rule(event: Event | AsyncEvent, before: Event | AsyncEvent, *, overwrites: bool) -> str:
    """The rule of a copy or matrix instruction that takes part; "" where none does.

    Args:
        overwrites: what `before` reads is written.
    """
    if overwrites and isinstance(before, AsyncEvent) and before.what in _MATRIX:
        if before.what != "wgmma":
            return "TC-10"
        if not before.marks:
            return "WG-02"
        return "WG-03" if event.warp.cta is before.warp.cta else "WG-04"
    return next(
        (
            _RULE_OF_COPY[side.what]
            for side in (event, before)
            if isinstance(side, AsyncEvent) and side.what in _RULE_OF_COPY
        ),
        "",
    )


_RULE_OF_COPY = {
    "multicast tensor copy": "TMA-07",
    "tensor copy": "TMA-07",
    "tensor store": "TMA-15",
    "bulk store": "TMA-15",
    "tcgen05.mma": "TC-10",
    "tcgen05.ld": "TC-14",
    "wgmma": "WG-03",
}
