"""A deadlock as text: who waits where, for what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulate.warp import lanes_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.emulate.machine import Machine
    from tilewright.emulate.warp import Group
    from tilewright.ptx.finding import Finding

SHOWN_MAX = 12


def deadlock_story(machine: Machine) -> Finding:
    """Nobody can act: the finding that says who waits for what."""
    waits: dict[str, list[Group]] = {}
    for group in machine.groups():
        waits.setdefault(_reason(machine, group), []).append(group)
    lines = [f"{_names(groups)} {reason}" for reason, groups in list(waits.items())[:SHOWN_MAX]]
    if len(waits) > SHOWN_MAX:
        lines.append(f"and {len(waits) - SHOWN_MAX} more")
    if not waits:
        lines = ["no thread is left, and a CTA has not begun"]
    groups = machine.groups()
    first = machine.program.steps[groups[0].step] if groups else machine.program.steps[0]
    divergent = [g for g in groups if g.meeting is not None]
    rule = "DEADLOCK"
    if divergent and all(g.meeting is not None for g in groups if g.warp is divergent[0].warp):
        rule = "CLU-04"
    lasts = [g for g in groups if g.wait is not None]
    if lasts:
        first = machine.program.steps[lasts[0].step]
    return machine.finding(rule, "deadlock: " + "; ".join(lines), first.op)


def _reason(machine: Machine, group: Group) -> str:
    line = machine.program.steps[group.step].op.span.line
    if group.wait is not None:
        return f"waits at line {line}: {group.wait.story()}"
    if group.meeting is not None:
        missing = group.meeting & ~group.lanes
        return f"waits at line {line} for {lanes_text(missing)} of its warp"
    return f"stands at line {line}"


def _names(groups: list[Group]) -> str:
    """Groups as text, warps of a CTA together."""
    by_cta: dict[str, list[Group]] = {}
    for group in groups:
        by_cta.setdefault(group.warp.cta.who, []).append(group)
    parts = []
    for who, members in by_cta.items():
        if len(members) == 1:
            parts.append(members[0].who)
        else:
            warps = np.zeros(32, np.bool_)
            for member in members:
                warps[member.warp.index % 32] = True
            parts.append(f"{who} {lanes_text(warps).replace('lane', 'warp')}")
    return " and ".join(parts)


def trace_text(machine: Machine) -> Iterator[str]:
    """The last steps, oldest first: who acted, and the instruction."""
    for (cluster, rank, warp, lane), number in machine.trace:
        who = f"cluster {cluster} CTA {rank}"
        if number < 0:
            yield (
                f"{who} begins"
                if warp == -1
                else f"an operation issued in cluster {cluster} goes on"
            )
            continue
        step = machine.program.steps[number]
        yield f"{who} warp {warp} lane {lane}: line {step.op.span.line} {step.op.name}"
