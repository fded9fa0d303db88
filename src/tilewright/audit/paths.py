"""Ways through a kernel that one kind of thread can take, with what it knows of its predicates on the way.

Threads that agree on every known predicate are one `Crowd`. `Paths.find` walks the graph for one crowd and keeps,
along each way, the predicates that a branch or a constant decided: `@p bra` here and `@!p bra` there are not both
taken. A *certain* way turns at unknown predicates only where the caller allows it: on it an error can be said.
Without `certain` every turn is open: nothing found then means that there is no way.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tilewright.audit.logic import BOTH, Logic
from tilewright.audit.signals import WAITS
from tilewright.ptx.flow import ENDS, constant
from tilewright.ptx.nodes import Name
from tilewright.ptx.values import defined_by

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from tilewright.audit.kernel import Kernel
    from tilewright.ptx.flow import Op
    from tilewright.ptx.nodes import Operand

Edge = tuple[int, bool]
"""A guarded instruction, and what its predicate register was."""

Start = int | Edge
_State = tuple[int, int, int]
"""An instruction, and the tracked registers that hold and that do not when control comes to it."""

_Ops = frozenset[int]
_Key = tuple[frozenset[Start], _Ops, _Ops, frozenset[Edge], bool, frozenset[Edge]]

STATES_MAX = 20_000
"""Beyond, a certain way counts as not found and an open one as found."""


@dataclass(frozen=True, eq=False)
class Crowd:
    """Threads that every known predicate treats alike.

    Attributes:
        members: (ranks, threads) of bool.
        first: one of them.
        decided: of guarded instructions, what the predicate register is in these threads.
    """

    members: np.ndarray
    first: tuple[int, int]
    decided: dict[int, bool]

    @property
    def rank(self) -> int:
        """Their CTA."""
        return self.first[0]

    def may(self, mask: np.ndarray) -> bool:
        """Whether some of them are in a mask."""
        return bool(np.any(self.members & mask))


class Paths:
    """The ways of one kernel's threads."""

    def __init__(self, kernel: Kernel) -> None:
        """Everything is computed on demand and kept."""
        self.kernel = kernel
        self.flow, self.values = kernel.flow, kernel.values
        self.logic = Logic(kernel.flow, kernel.values)
        self._facts: dict[tuple[str, int, bool], tuple[int, int]] = {}
        self._searched: dict[_Key, list[tuple[dict[tuple[int, str], bool | None], bool]]] = {}
        self._asked: dict[frozenset[int], dict[Edge, frozenset[bool]]] = {}

    @cached_property
    def crowds(self) -> tuple[Crowd, ...]:
        """All threads of the cluster, by what they do."""
        shape = self.kernel.shape
        full = shape.ranks, max(shape.threads, 1)
        guarded: list[int] = []
        rows: list[np.ndarray] = []
        for op in self.flow.ops:
            if op.guard:
                value = self.values.register(op.guard, op.index)
                if value.known:
                    guarded.append(op.index)
                    rows.append(np.broadcast_to(value.constant != 0, full).ravel())
        rows.append(np.repeat(np.arange(shape.ranks), full[1]))  # the CTAs are kept apart
        table = np.array(rows, dtype=np.int64)
        columns, which = np.unique(table, axis=1, return_inverse=True)
        which = np.asarray(which).ravel()
        found = []
        for i in range(columns.shape[1]):
            members = (which == i).reshape(full)
            rank, thread = (int(n) for n in np.argwhere(members)[0])
            decided = {at: bool(columns[row, i]) for row, at in enumerate(guarded)}
            found.append(Crowd(members, (rank, thread), decided))
        return tuple(found)

    def crowds_of(self, *ops: Op) -> list[Crowd]:
        """Crowds that may execute all of these instructions."""
        masks = [self.kernel.threads(op)[0] for op in ops]
        return [crowd for crowd in self.crowds if all(crowd.may(mask) for mask in masks)]

    @cached_property
    def done(self) -> frozenset[Edge]:
        """Edges on which a barrier wait has succeeded: what a waiting loop ends by."""
        waits = frozenset(op.index for op in self.kernel.ops(*WAITS))
        return self.when(waits, answer=True) if waits else frozenset()

    def when(self, asked: frozenset[int], *, answer: bool) -> frozenset[Edge]:
        """Edges that prove an answer of the instructions asked."""
        fitting = {frozenset({answer})}
        return frozenset(edge for edge, found in self._edges(asked).items() if found in fitting)

    def unclear(self, asked: frozenset[int]) -> frozenset[Edge]:
        """Edges whose predicate has to do with the instructions asked, and proves neither answer."""
        return frozenset(
            edge
            for edge, found in self._edges(asked).items()
            if found == BOTH and self.logic.slice(self.flow.ops[edge[0]].guard, edge[0]) & asked
        )

    def _edges(self, asked: frozenset[int]) -> dict[Edge, frozenset[bool]]:
        if asked not in self._asked:
            self._asked[asked] = self.logic.edges(asked)
        return self._asked[asked]

    def find(
        self,
        crowd: Crowd,
        starts: Iterable[Start],
        goals: Collection[int],
        *,
        avoid: Collection[int] = (),
        closed: Collection[Edge] = (),
        certain: bool = False,
        open_: Collection[Edge] = (),
    ) -> bool:
        """Whether the crowd can come from behind `starts` to one of `goals`.

        Args:
            starts: -1 is the entry; an edge is a guarded instruction and what its predicate was.
            avoid: a goal counts before this does.
            closed: edges that are not taken.
            certain: unknown predicates turn only onto edges of `open_`, and waiting loops end.
        """
        key = (
            frozenset(starts), frozenset(goals), frozenset(avoid), frozenset(closed), certain,
            frozenset(open_),
        )  # fmt: skip
        earlier = self._searched.setdefault(key, [])
        for used, found in earlier:
            if all(self._rests(crowd, *each) == what for each, what in used.items()):
                return found
        walk = _Walk(self, crowd, set(key[1]), set(key[2]), set(key[3]))
        found = walk.run(key[0], self.done | key[5] if certain else None)
        earlier.append((walk.rests, found))
        return found

    def _rests(self, crowd: Crowd, index: int, name: str) -> bool | None:
        """What a search may use of a crowd: a guard, or an operand of an instruction."""
        if not name:
            return crowd.decided.get(index)
        return self.constant_of(Name(name), self.flow.ops[index], crowd)

    def passes(
        self,
        crowd: Crowd,
        starts: Collection[Start],
        goals: Collection[int],
        through: Iterable[int],
        avoid: Collection[int] = (),
    ) -> bool:
        """Whether some way from behind `starts` to one of `goals` passes one of `through` before."""
        return any(
            self.find(crowd, starts, (each,), avoid={*goals, *avoid} - {each})
            and self.find(crowd, (each,), goals)
            for each in through
        )

    def must(self, goal: Op, outside: Collection[int]) -> frozenset[Edge]:
        """Edges that every way to `goal` takes, those in a loop with an instruction of `outside` left out."""
        found = set()
        for condition in self.flow.conditions(goal):
            around = self.flow.loops(condition.at)
            if not any(set(outside) & members for _, members in around):
                found.add((condition.at, condition.holds))
        return frozenset(found)

    # --- predicates -------------------------------------------------------------------------------

    def bit(self, register: str) -> int:
        """The bit of a tracked register; 0 of any other."""
        return self._bits.get(register, 0)

    def follows(self, register: str, at: int, *, holds: bool) -> tuple[int, int]:
        """Tracked registers that are decided once one is, itself among them: those that hold, those that do not."""
        key = register, at, holds
        if key not in self._facts:
            yes = no = 0
            for name, truth in self._follow(register, at, 0, holds=holds):
                yes, no = (yes | self.bit(name), no) if truth else (yes, no | self.bit(name))
            self._facts[key] = yes, no
        return self._facts[key]

    def _follow(
        self, register: str, at: int, depth: int, *, holds: bool
    ) -> Iterator[tuple[str, bool]]:
        yield register, holds
        defs = self.values.reaching(register, at)
        if len(defs) != 1 or depth > 20:
            return
        op = self.flow.ops[defs[0]]
        if op.guard:
            return
        for name, truth in _implied(op, holds=holds):
            if self._still(name, op.index, at):
                yield from self._follow(name, op.index, depth + 1, holds=truth)

    def _still(self, name: str, read: int, at: int) -> bool:
        """Whether a register at `at` is what it was when `read` used it."""
        before, now = self.values.reaching(name, read), self.values.reaching(name, at)
        return before == now and all(self.flow.always_between(d, at, {read}) for d in now)

    def constant_of(self, operand: Operand, op: Op, crowd: Crowd) -> bool | None:
        """Whether an operand is not zero in the crowd's threads, where that is known without a path."""
        number = constant(operand)
        if number is not None:
            return number != 0
        value = self.values.of(operand, op)
        if not value.known:
            return None
        shape = self.kernel.shape.ranks, max(self.kernel.shape.threads, 1)
        return bool(np.broadcast_to(value.constant, shape)[crowd.first] != 0)

    @cached_property
    def _bits(self) -> dict[str, int]:
        """Predicates worth following: guards, and the predicates that they are made of."""
        found: dict[str, int] = {}
        stack = [op.guard for op in self.flow.ops if op.guard]
        while stack:
            name = stack.pop()
            if name in found:
                continue
            found[name] = 1 << len(found)
            for op in self.values.definitions(name):
                stack.extend(_made_of(op))
        return found

    @cached_property
    def writes(self) -> tuple[int, ...]:
        """Tracked registers that each instruction writes."""
        return tuple(_sum(self.bit(name) for name in defined_by(op)) for op in self.flow.ops)

    @cached_property
    def live(self) -> list[int]:
        """Tracked registers that may still decide something, before each instruction."""
        reads = [
            self.bit(op.guard)
            | (_sum(self.bit(name) for name in _made_of(op)) if self.writes[op.index] else 0)
            for op in self.flow.ops
        ]
        live = [0] * len(self.flow.ops)
        changed = True
        while changed:
            changed = False
            for op in reversed(self.flow.ops):
                ahead = 0
                for each in self.flow.following(op.index):
                    ahead |= live[each]
                if not op.guard:
                    ahead &= ~self.writes[op.index]
                now = ahead | reads[op.index]
                if now != live[op.index]:
                    live[op.index], changed = now, True
        return live

    @cached_property
    def block_ends(self) -> list[int]:
        """The next instruction, itself included, that turns, writes a tracked register or comes before a label."""
        ops = self.flow.ops
        ends = list(range(len(ops)))
        for op in reversed(ops[:-1]):
            index = op.index
            plain = not _turns(op) and self.flow.following(index) == (index + 1,)
            if plain and not self.writes[index] and len(self.flow.preceding(index + 1)) == 1:
                ends[index] = ends[index + 1]
        return ends


def _made_of(op: Op) -> Iterator[str]:
    """Registers that a predicate's definition is followed to."""
    root, sources = op.node.opcode.root, op.operands[1:]
    if root == "setp":
        sources = sources[:1]
    elif not op.has("pred") and root != "selp":
        return
    yield from (each.name for each in sources if isinstance(each, Name))


def _sum(bits: Iterable[int]) -> int:
    found = 0
    for bit in bits:
        found |= bit
    return found


class _Walk:
    """One search. What is known of predicates is two sets of bits: those that hold, those that do not."""

    def __init__(
        self, paths: Paths, crowd: Crowd, goals: set[int], avoid: set[int], closed: set[Edge]
    ) -> None:
        self.paths, self.crowd, self.ops = paths, crowd, paths.flow.ops
        self.goals, self.avoid, self.closed = goals, avoid, closed
        self.stops = sorted(goals | avoid)
        self.rests: dict[tuple[int, str], bool | None] = {}  # what it used of the crowd

    def run(self, starts: Iterable[Start], allowed: Collection[Edge] | None) -> bool:
        stack: list[_State] = []
        for start in starts:
            stack.extend(self._behind(start))
        seen: set[_State] = set()
        ends, live = self.paths.block_ends, self.paths.live
        while stack:
            index, holds, fails = stack.pop()
            state = index, holds & live[index], fails & live[index]
            if state in seen:
                continue
            seen.add(state)
            if len(seen) > STATES_MAX:
                return allowed is None
            last = ends[index]
            place = bisect_left(self.stops, index)
            if place < len(self.stops) and self.stops[place] < last:
                if self.stops[place] in self.goals:
                    return True
                continue
            if self._at(last, state[1], state[2], allowed, stack):
                return True
        return False

    def _at(
        self,
        index: int,
        holds: int,
        fails: int,
        allowed: Collection[Edge] | None,
        stack: list[_State],
    ) -> bool:
        """Go on from the last instruction of a block; whether that is a goal."""
        op = self.ops[index]
        stops = index in self.goals or index in self.avoid
        if not op.guard or not (stops or _turns(op)):
            if index in self.goals:
                return True
            if index not in self.avoid:
                stack.extend(self._onwards(op, holds, fails))
            return False
        for truth in self._ways(op, holds, fails, allowed):
            if truth == op.guard_holds and index in self.goals:
                return True
            if truth != op.guard_holds or index not in self.avoid:
                stack.extend(self._take(op, holds, fails, truth=truth))
        return False

    def _behind(self, start: Start) -> Iterator[_State]:
        if isinstance(start, tuple):
            op = self.ops[start[0]]
            if self._decided(op) in {None, start[1]}:
                yield from self._take(op, 0, 0, truth=start[1])
        elif start < 0:
            yield 0, 0, 0
        elif self.ops[start].guard:
            op = self.ops[start]
            yield from self._take(op, 0, 0, truth=op.guard_holds)
        else:
            yield from self._onwards(self.ops[start], 0, 0)

    def _onwards(self, op: Op, holds: int, fails: int) -> Iterator[_State]:
        after = self._written(op, holds, fails)
        for each in self.paths.flow.following(op.index):
            yield each, *after

    def _decided(self, op: Op) -> bool | None:
        key = op.index, ""
        if key not in self.rests:
            self.rests[key] = self.crowd.decided.get(op.index)
        return self.rests[key]

    def _ways(
        self, op: Op, holds: int, fails: int, allowed: Collection[Edge] | None
    ) -> Iterator[bool]:
        decided = self._decided(op)
        if decided is None:
            bit = self.paths.bit(op.guard)
            decided = True if holds & bit else False if fails & bit else None
        for truth in (True, False) if decided is None else (decided,):
            edge = op.index, truth
            if edge not in self.closed and (
                decided is not None or allowed is None or edge in allowed
            ):
                yield truth

    def _take(self, op: Op, holds: int, fails: int, *, truth: bool) -> Iterator[_State]:
        yes, no = self.paths.follows(op.guard, op.index, holds=truth)
        holds, fails = holds | yes, fails | no
        if holds & fails:
            return
        executes, root = truth == op.guard_holds, op.node.opcode.root
        if executes and root in ENDS:
            return
        if executes and root == "bra":
            target = self.paths.flow.sides(op)[0 if op.guard_holds else 1]
            if target is not None and target < len(self.ops):
                yield target, holds, fails
            return
        after = self._written(op, holds, fails) if executes else (holds, fails)
        if op.index + 1 < len(self.ops):
            yield op.index + 1, *after

    def _written(self, op: Op, holds: int, fails: int) -> tuple[int, int]:
        mask = self.paths.writes[op.index]
        if not mask:
            return holds, fails
        result = None if op.guard or mask & (mask - 1) else self._evaluate(op, holds, fails)
        holds, fails = holds & ~mask, fails & ~mask
        if result is None:
            return holds, fails
        return (holds | mask, fails) if result else (holds, fails | mask)

    def _operand(self, operand: Operand, op: Op, holds: int, fails: int) -> bool | None:
        if isinstance(operand, Name):
            bit = self.paths.bit(operand.name)
            if (holds | fails) & bit:
                return bool(holds & bit)
            key = op.index, operand.name
            if key not in self.rests:
                self.rests[key] = self.paths.constant_of(operand, op, self.crowd)
            return self.rests[key]
        return self.paths.constant_of(operand, op, self.crowd)

    def _evaluate(self, op: Op, holds: int, fails: int) -> bool | None:
        root, sources = op.node.opcode.root, op.operands[1:]
        if root == "mov" and len(sources) == 1:
            return self._operand(sources[0], op, holds, fails)
        if root in {"not", "and", "or", "xor"} and op.has("pred"):
            return _logic(root, [self._operand(each, op, holds, fails) for each in sources])
        if root == "setp" and len(sources) == 2 and constant(sources[1]) == 0:
            given = self._operand(sources[0], op, holds, fails)
            if op.has("ne"):
                return given
            return None if given is None or not op.has("eq") else not given
        if root == "selp":
            chosen = self._operand(sources[2], op, holds, fails)
            if chosen is not None:
                return self._operand(sources[0 if chosen else 1], op, holds, fails)
        return None


def _turns(op: Op) -> bool:
    return op.node.opcode.root == "bra" or op.node.opcode.root in ENDS


def _logic(root: str, given: list[bool | None]) -> bool | None:
    if root == "not":
        return None if given[0] is None else not given[0]
    if root == "xor":
        return None if None in given else given[0] != given[1]
    decisive = root == "or"
    if decisive in given:
        return decisive
    return None if None in given else not decisive


def _implied(op: Op, *, holds: bool) -> Iterator[tuple[str, bool]]:
    """Registers that one instruction's result decides: not zero, or zero."""
    root, sources = op.node.opcode.root, op.operands[1:]
    names = [each.name if isinstance(each, Name) else "" for each in sources]
    if root == "mov" and names and names[0]:
        yield names[0], holds
    elif root == "not" and op.has("pred"):
        yield names[0], not holds
    elif root in {"and", "or"} and op.has("pred") and holds == (root == "and"):
        yield from ((name, holds) for name in names if name)
    elif root == "setp" and len(sources) == 2 and constant(sources[1]) == 0 and names[0]:
        if op.has("ne") or op.has("eq"):
            yield names[0], holds == op.has("ne")
    elif root == "selp" and len(sources) == 3 and names[2]:
        yes, no = constant(sources[0]), constant(sources[1])
        if yes is not None and no is not None and (yes != 0) != (no != 0):
            yield names[2], holds == (yes != 0)
