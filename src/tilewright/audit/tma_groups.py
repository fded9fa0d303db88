"""Bulk groups as the copying thread counts them: whether a store's reads are done where its tile is written again.

`wait_group N` leaves the N youngest groups of the executing thread open. From a copy every way of its thread is
walked with the groups committed since; a break is one that is on all of them.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from tilewright.audit.logic import registers_read
from tilewright.audit.signals import CTA_BARRIERS, WAITS
from tilewright.ptx.flow import ENDS, constant
from tilewright.ptx.nodes import Name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel
    from tilewright.audit.paths import Crowd
    from tilewright.ptx.flow import Op
    from tilewright.ptx.nodes import Operand
    from tilewright.ptx.values import Value

COMMIT, WAIT = "cp.async.bulk.commit_group", "cp.async.bulk.wait_group"
COMMITS_MAX = 8
STATES_MAX = 4000


class Place(NamedTuple):
    """An instruction and the address that it uses."""

    op: Op
    operand: Operand
    value: Value


class State(NamedTuple):
    """What one way has brought since the copy.

    Attributes:
        commits: groups committed, the copy's own among them.
        done: a wait has seen the copy's reads complete.
        synced: and the threads of the CTA have met behind it.
        odd: a buffer index that alternates stands at the other buffer.
        again: the copy was executed again, from the other buffer.
    """

    commits: int = 0
    done: bool = False
    synced: bool = False
    odd: bool = False
    again: bool = False


class Walk:
    """Ways of one crowd from a copy to the next writes of its tile, and to the exits."""

    def __init__(self, kernel: Kernel, crowd: Crowd, copy: Place, writes: list[Place]) -> None:
        self.kernel, self.flow, self.crowd, self.copy = kernel, kernel.flow, crowd, copy
        self.flips: frozenset[int] = frozenset()
        self.goals: dict[int, bool] = {}  # whether it counts where the index is even only
        for write in writes:
            flips = self._instance(write)
            if flips is not None:
                self.goals[write.op.index] = bool(flips)
                self.flips |= flips
        self.ends = kernel.indices(kernel.flow.exits)
        waits = {op.index: _number(op) for op in kernel.ops(WAIT)}
        self.waits = waits
        self.commits = kernel.indices(kernel.ops(COMMIT))
        self.syncs = kernel.indices(kernel.ops(*CTA_BARRIERS, *WAITS, "barrier.cluster.wait"))
        self.calls = {op.index for op in kernel.flow.ops if op.node.opcode.root == "call"}
        self.stops = sorted(
            {*waits, *self.commits, *self.syncs, *self.goals, *self.ends, *self.flips, *self.calls}
            | {copy.op.index}
        )
        self.found: dict[int, set[State]] = {}
        self.whole = self._run()

    # --- which buffer -----------------------------------------------------------------------------

    def _instance(self, write: Place) -> frozenset[int] | None:
        """Where an index alternates between the two addresses, if they name one buffer; None if that is not sure."""
        if not write.value.unknown:
            return frozenset()
        inside = self.kernel.reach.between(self.copy.op, write.op)
        flips: set[int] = set()
        for term, _ in write.value.unknown:
            name = term.replace(" = ", " by ").partition(" by ")[0]
            reads = [_reads_of(self.kernel, each, name) for each in (self.copy, write)]
            if reads[0] == reads[1] and not reads[0] & inside:
                continue  # the index was read once for both
            within = [op for op in self.kernel.values.definitions(name) if op.index in inside]
            if not all(_alternates(op, name) for op in within) or any(
                self._stale(read, each.op, name)
                for each, some in zip((self.copy, write), reads, strict=True)
                for read in some
            ):
                return None
            flips |= {op.index for op in within}
        return frozenset(flips) if len(write.value.unknown) <= 1 or not flips else None

    def _stale(self, read: int, op: Op, name: str) -> bool:
        """Whether the index may have changed since the address was computed from it."""
        between = self.kernel.reach.between(self.flow.ops[read], op)
        return any(each.index in between for each in self.kernel.values.definitions(name))

    # --- ways -------------------------------------------------------------------------------------

    def _run(self) -> bool:
        seen: set[tuple[int, State]] = set()
        ends = self.kernel.paths.block_ends
        stack = [(index, State()) for index in self.flow.following(self.copy.op.index)]
        while stack:
            index, state = stack.pop()
            if (index, state) in seen:
                continue
            seen.add((index, state))
            if len(seen) > STATES_MAX:
                return False
            last = ends[index]
            now: State | None = state
            place = bisect_left(self.stops, index)
            while now is not None and place < len(self.stops) and self.stops[place] <= last:
                now = self._pass(self.stops[place], now)
                place += 1
            if now is not None:
                stack.extend((each, now) for each in self._next(last))
        return True

    def _next(self, index: int) -> Iterator[int]:
        op = self.flow.ops[index]
        held = self.crowd.decided.get(index) if op.guard else None
        if held is None or op.node.opcode.root not in {"bra", *ENDS}:
            yield from self.flow.following(index)
            return
        side = self.flow.sides(op)[0 if held else 1]
        if op.node.opcode.root == "bra":
            yield from () if side is None else (side,)
        elif held != op.guard_holds:
            yield from self.flow.following(index)

    def _pass(self, index: int, state: State) -> State | None:
        """The state behind an instruction; None where the way ends."""
        op = self.flow.ops[index]
        held = self.crowd.decided.get(index) if op.guard else None
        if (held is not None and held != op.guard_holds) or not self.crowd.may(
            self.kernel.threads(op)[0]
        ):
            return state
        at_copy = index == self.copy.op.index
        if index in self.calls or (at_copy and not state.odd):
            return None
        if index in self.goals and not (state.odd if self.goals[index] else state.again):
            self.found.setdefault(index, set()).add(state)
            return None
        if index in self.ends and not state.again:
            self.found.setdefault(-1, set()).add(state)
        return self._after(index, state._replace(again=state.again or at_copy))

    def _after(self, index: int, state: State) -> State:
        if index in self.flips:
            return state._replace(odd=not state.odd)
        if index in self.commits:
            return state._replace(commits=min(state.commits + 1, COMMITS_MAX))
        if index in self.syncs and state.done:
            return state._replace(synced=True)
        if index in self.waits:
            number = self.waits[index]
            if number is None or state.commits > number:
                return state._replace(done=True)
        return state

    # --- what is on all of them -------------------------------------------------------------------

    def never_done(self) -> int | None:
        """A write that comes with the copy's reads open on every way, or -1 for the exit; None if there is none."""
        for goal, states in sorted(self.found.items(), reverse=True):
            if self.whole and not any(state.done for state in states):
                return goal
        return None

    def never_synced(self) -> int | None:
        """A write that on every way comes with no meeting of threads behind the wait."""
        for goal, states in sorted(self.found.items()):
            if goal >= 0 and self.whole and all(s.done and not s.synced for s in states):
                return goal
        return None


def _number(wait: Op) -> int | None:
    return constant(wait.operands[0]) if wait.operands else 0


def _reads_of(kernel: Kernel, place: Place, name: str) -> frozenset[int]:
    """Instructions by which a register comes into an address."""
    found = kernel.view(_Slices).of(place)
    own = kernel.indices(kernel.values.definitions(name))
    return frozenset(i for i in found - own if name in registers_read(kernel.flow.ops[i]))


class _Slices:
    """What addresses are computed by, kept."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._kept: dict[int, frozenset[int]] = {}

    def of(self, place: Place) -> frozenset[int]:
        if place.op.index not in self._kept:
            part = getattr(place.operand, "parts", (place.operand,))[0]
            names = [n.name for n in (part, getattr(part, "left", None)) if isinstance(n, Name)]
            made = [self.kernel.paths.logic.slice(name, place.op.index) for name in names]
            self._kept[place.op.index] = frozenset().union(*made)
        return self._kept[place.op.index]


def _alternates(op: Op, name: str) -> bool:
    """`xor r, r, constant`."""
    if op.node.opcode.root != "xor" or op.guard:
        return False
    left, right = op.operands[1:3]
    return isinstance(left, Name) and left.name == name and constant(right) is not None
