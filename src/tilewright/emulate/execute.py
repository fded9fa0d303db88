"""Running lanes: one group from one visible instruction to the next, and how groups part and meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulate.instructions import GONE
from tilewright.emulate.program import NOWHERE, lanes_of
from tilewright.emulate.registers import PRED, U32
from tilewright.emulate.warp import Group, Join

if TYPE_CHECKING:
    from tilewright.emulate.instructions import Outcome
    from tilewright.emulate.machine import Machine
    from tilewright.emulate.program import Step
    from tilewright.emulate.registers import Array, Where
    from tilewright.emulate.warp import Warp


def run_group(machine: Machine, group: Group) -> bool:  # noqa: C901, PLR0912, PLR0915  (the loop that all runs in)
    """Run a group until the next visible instruction, or until it waits, parks or leaves.

    Returns:
        whether it can go on.
    """
    warp = group.warp
    warp.group = group
    steps = machine.program.steps
    step_number = group.step
    if group.wait is not None:
        wait, group.wait = group.wait, None
        if wait.resume is not None:
            wait.resume()
            step_number += 1
    fresh = True
    predicates = warp.rows[PRED]
    covered = machine.covered
    budget = machine.options.private_steps
    while True:
        if step_number == group.join_step and not _rejoin(group, step_number):
            return False
        step = steps[step_number]
        if step.visible:
            if not fresh:
                group.step = step_number
                return True
            fresh = False
        covered[step_number] = 1
        machine.executed += 1
        budget -= 1
        if budget < 0:
            machine.stop("HANG", f"{group.who} runs without end in private code", step.op)
        where = group.where
        if step.guard >= 0:
            held = predicates[step.guard]
            active = held if step.holds else ~held
            if where is not True:
                active = active & where
            count = np.count_nonzero(active)
            if count == 0:
                step_number += 1
                continue
            if count != 32 and (where is True or count != np.count_nonzero(where)):
                outcome = _run_guarded(machine, group, step, step_number, active)
                if isinstance(outcome, int):
                    step_number = outcome
                    continue
                return outcome is not GONE and machine.hold(group, outcome, step_number)
        if step.target != NOWHERE:
            step_number = step.target
            continue
        if step.meets is not None and not _gather(machine, group, step, step_number, where):
            return False
        if step.meets is not None:
            where = group.where
        outcome = step.run(warp, where)
        if outcome is None:
            step_number += 1
        elif outcome.__class__ is int:
            step_number = outcome
        elif outcome is GONE:
            return False
        else:
            return machine.hold(group, outcome, step_number)


def _run_guarded(
    machine: Machine, group: Group, step: Step, step_number: int, active: Array
) -> Outcome:
    """An instruction whose guard holds in some lanes only: the next step, GONE, or a Wait."""
    if step.target != NOWHERE:
        split(machine, group, active, step.target, step.join)
        return step_number + 1
    if step.meets == "warp":
        machine.stop(
            "CLU-04",
            f"{group.who} executes an .aligned instruction under a predicate that not all lanes share",
            step.op,
        )
    if step.meets is not None or step.visible:
        # Lanes without the predicate stand behind the instruction until the others are through.
        split(machine, group, ~active & group.lanes, step_number + 1, step_number + 1)
        where: Where = group.where
        if step.meets is not None and not _gather(machine, group, step, step_number, where):
            return GONE
        where = group.where
    else:
        where = active
    outcome = step.run(group.warp, where)
    if outcome is None:
        return step_number + 1
    return outcome


def _note_warp(warp: Warp) -> None:
    """For exhaustive runs: groups of a warp part or meet, which its other groups can tell."""
    warp.machine.note((warp.cta.who, warp.index), writes=True)


# --- parting and meeting ------------------------------------------------------------------------------


def split(machine: Machine, group: Group, away: Array, target: int, join: int) -> Group:
    """Lanes `away` go on at another step; both parts meet again at `join` if there is one."""
    _note_warp(group.warp)
    joins = group.joins
    if join == NOWHERE and group.frames:
        join = group.frames[-1].back_to
    if join != NOWHERE and not (joins and joins[-1].step == join):
        joins = (*joins, Join(join, group.lanes.copy()))
    other = Group(group.warp, away.copy(), target, joins, group.frames)
    group.set_lanes(group.lanes & ~away)
    group.set_joins(joins)
    group.warp.groups.append(other)
    machine.add_agent(other)
    return other


def _rejoin(group: Group, step_number: int) -> bool:
    """At the end of a branch's sides: whether the group goes on, with those that waited for it."""
    _note_warp(group.warp)
    while group.join_step == step_number:
        here = group.joins[-1]
        if _frames_differ(group, here):
            return True
        together = group.lanes.copy()
        for other in here.parked:
            together |= other.lanes
        if not np.array_equal(together, here.lanes):
            here.parked.append(group)
            group.parked = here
            group.step = step_number
            return False
        _absorb(group, here.parked, together)
        here.parked = []
        group.set_joins(group.joins[:-1])
    return True


def _frames_differ(group: Group, here: Join) -> bool:
    """A step may be reached again inside a deeper call; that is not the place where the sides meet."""
    return any(other.frames != group.frames for other in here.parked)


def _absorb(group: Group, others: list[Group], together: Array) -> None:
    for other in others:
        if other is not group:
            other.parked = None
            group.warp.groups.remove(other)
    group.parked = None
    group.set_lanes(together)


def settle(machine: Machine, join: Join) -> None:
    """After lanes were taken out of a join: those parked there may now be complete."""
    if not join.parked:
        return
    together = np.logical_or.reduce([group.lanes for group in join.parked])
    if np.array_equal(together, join.lanes):
        first = join.parked[0]
        others, join.parked = join.parked[1:], []
        _absorb(first, others, together)
        first.set_joins(first.joins[:-1])
        machine.add_agent(first)


def let_go(machine: Machine, group: Group) -> None:
    """A parked group goes on alone."""
    join = group.parked
    if join is None:
        return
    join.parked.remove(group)
    join.lanes &= ~group.lanes
    group.parked = None
    group.set_joins(group.joins[:-1])
    machine.add_agent(group)
    settle(machine, join)


def _gather(machine: Machine, group: Group, step: Step, step_number: int, where: Where) -> bool:
    """Bring together the lanes that an instruction names: whether they are all there."""
    warp = group.warp
    needed = needed_lanes(warp, step, where)
    if step.meets != "warp" and (group.lanes & ~needed).any():
        machine.stop(
            "EL-01", f"{group.who}: not all of these lanes are in the member mask", step.op
        )
    if np.array_equal(group.lanes & needed, needed):
        return True
    _note_warp(warp)
    group.meeting = needed
    group.step = step_number
    return gather_at(machine, warp, step_number, group)


def needed_lanes(warp: Warp, step: Step, where: Where) -> Array:
    """The lanes that must execute an instruction together, of those that are alive."""
    if step.meets == "warp" or not isinstance(step.meets, int):
        return warp.alive.copy()
    return lanes_of(warp.first(step.meets, U32, where)) & warp.alive


def gather_at(machine: Machine, warp: Warp, step_number: int, runner: Group | None) -> bool:
    """Merge the groups that meet at a step once all their lanes are there.

    Args:
        runner: the group that is running, which goes on at once; without it the merged one becomes runnable.
    """
    groups = [g for g in warp.groups if g.meeting is not None and g.step == step_number]
    if not groups:
        return False
    wanted = [g.meeting for g in groups if g.meeting is not None]
    needed = np.logical_or.reduce(wanted) & warp.alive
    together = np.logical_or.reduce([g.lanes for g in groups])
    if not np.array_equal(together & needed, needed):
        return False
    first = runner if runner is not None else groups[0]
    _merge(machine, first, groups, together)
    if runner is None:
        machine.add_agent(first)
    return True


def _merge(machine: Machine, first: Group, groups: list[Group], together: Array) -> None:
    """Several groups become one, which meets others only where all of them were going to."""
    common = tuple(j for j in first.joins if all(j in other.joins for other in groups))
    for each in groups:
        each.meeting = None
        for join in each.joins:
            if join not in common:
                join.lanes &= ~each.lanes
                settle(machine, join)
        if each is not first:
            each.warp.groups.remove(each)
    first.set_lanes(together)
    first.set_joins(common)


def take_out(machine: Machine, group: Group, lanes: Array) -> None:
    """Lanes leave the program for good."""
    warp = group.warp
    _note_warp(warp)
    warp.alive &= ~lanes
    for join in group.joins:
        join.lanes &= ~lanes
    rest = group.lanes & ~lanes
    if rest.any():
        group.set_lanes(rest)
    else:
        warp.groups.remove(group)
    for join in group.joins:
        settle(machine, join)
    for step_number in {g.step for g in warp.groups if g.meeting is not None}:
        gather_at(machine, warp, step_number, None)
    warp.cta.lanes_left(warp, lanes)
