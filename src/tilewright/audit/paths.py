"""Ways through a kernel that one kind of thread can take, with what it knows of its predicates on the way.

Threads that agree on every known predicate are one `Crowd`. `Paths.find` walks the graph for one crowd and keeps,
along each way, the predicates that a branch or a constant decided, so that `@p bra` here and `@!p bra` there are
not both taken. A *certain* way turns at unknown predicates only where the caller allows it: on it an error can be
said. Without `certain` every turn is open: nothing found then means that there is no way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tilewright.audit.logic import BOTH, Logic
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
Known = frozenset[tuple[str, bool]]
"""Predicate registers that are decided."""

WAITS = ("mbarrier.try_wait", "mbarrier.test_wait")
STATES_MAX = 20_000
_NOTHING: Known = frozenset()


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
        """CTA rank of its first thread."""
        return self.first[0]

    def may(self, mask: np.ndarray) -> bool:
        """Whether some of them are in a mask."""
        return bool(np.any(self.members & mask))


class Paths:
    """The ways of one kernel's threads."""

    def __init__(self, kernel: Kernel) -> None:
        """Everything is computed when asked for."""
        self.kernel = kernel
        self.flow, self.values = kernel.flow, kernel.values
        self.logic = Logic(kernel.flow, kernel.values)
        self._facts: dict[tuple[str, int, bool], tuple[tuple[str, bool], ...]] = {}
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

    # --- the walk ---------------------------------------------------------------------------------

    def find(  # noqa: PLR0913  (what the ways may do)
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
        walk = _Walk(self, crowd, set(goals), set(avoid), set(closed))
        allowed = self.done | set(open_) if certain else None
        return walk.run(starts, allowed)

    def passes(  # noqa: PLR0913, PLR0917  (a way's start, end and middle)
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

    def follows(self, register: str, at: int, *, holds: bool) -> tuple[tuple[str, bool], ...]:
        """Predicate registers that are decided once one is, itself first."""
        key = register, at, holds
        if key not in self._facts:
            self._facts[key] = tuple(self._follow(register, at, holds, 0))
        return self._facts[key]

    def _follow(
        self, register: str, at: int, holds: bool, depth: int
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
                yield from self._follow(name, op.index, truth, depth + 1)

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
    def tracked(self) -> frozenset[str]:
        """Predicates worth following: guards, and the predicates that they are made of."""
        found: set[str] = set()
        stack = [op.guard for op in self.flow.ops if op.guard]
        while stack:
            name = stack.pop()
            if name in found:
                continue
            found.add(name)
            for op in self.values.definitions(name):
                if op.has("pred") or op.node.opcode.root == "selp":
                    stack.extend(each.name for each in op.operands[1:] if isinstance(each, Name))
                if op.node.opcode.root == "setp":
                    stack.extend(each.name for each in op.operands[1:2] if isinstance(each, Name))
        return frozenset(found)

    @cached_property
    def writes(self) -> tuple[tuple[str, ...], ...]:
        """Tracked registers that each instruction writes."""
        return tuple(
            tuple(name for name in defined_by(op) if name in self.tracked) for op in self.flow.ops
        )


class _Walk:
    """One search."""

    def __init__(
        self, paths: Paths, crowd: Crowd, goals: set[int], avoid: set[int], closed: set[Edge]
    ) -> None:
        self.paths, self.crowd, self.flow = paths, crowd, paths.flow
        self.goals, self.avoid, self.closed = goals, avoid, closed

    def run(self, starts: Iterable[Start], allowed: Collection[Edge] | None) -> bool:
        stack: list[tuple[int, Known]] = []
        for start in starts:
            stack.extend(self._behind(start))
        seen: set[tuple[int, Known]] = set()
        while stack:
            state = stack.pop()
            if state in seen:
                continue
            seen.add(state)
            if len(seen) > STATES_MAX:
                return allowed is None
            index, known = state
            op = self.flow.ops[index]
            if op.guard and (self._turns(op) or index in self.goals or index in self.avoid):
                for holds in self._ways(op, known, allowed):
                    if holds == op.guard_holds and index in self.goals:
                        return True
                    if holds == op.guard_holds and index in self.avoid:
                        continue
                    stack.extend(self._take(op, known, holds=holds))
                continue
            if index in self.goals:
                return True
            if index in self.avoid:
                continue
            after = self._written(op, known)
            stack.extend((each, after) for each in self.flow.following(index))
        return False

    def _behind(self, start: Start) -> Iterator[tuple[int, Known]]:
        if isinstance(start, tuple):
            op = self.flow.ops[start[0]]
            if self.crowd.decided.get(op.index, start[1]) == start[1]:
                yield from self._take(op, _NOTHING, holds=start[1])
        elif start < 0:
            yield 0, _NOTHING
        else:
            op = self.flow.ops[start]
            if op.guard:
                yield from self._take(op, _NOTHING, holds=op.guard_holds)
            else:
                known = self._written(op, _NOTHING)
                yield from ((each, known) for each in self.flow.following(start))

    @staticmethod
    def _turns(op: Op) -> bool:
        return op.node.opcode.root == "bra" or op.node.opcode.root in ENDS

    def _ways(
        self, op: Op, known: Known, allowed: Collection[Edge] | None
    ) -> Iterator[bool]:
        decided = self.crowd.decided.get(op.index)
        if decided is None:
            decided = dict(known).get(op.guard)
        for holds in (True, False) if decided is None else (decided,):
            edge = op.index, holds
            if edge in self.closed:
                continue
            if decided is None and allowed is not None and edge not in allowed:
                continue
            yield holds

    def _take(self, op: Op, known: Known, *, holds: bool) -> Iterator[tuple[int, Known]]:
        facts = dict(known)
        for name, truth in self.paths.follows(op.guard, op.index, holds=holds):
            if facts.setdefault(name, truth) != truth:
                return
        after = frozenset(item for item in facts.items() if item[0] in self.paths.tracked)
        executes, root = holds == op.guard_holds, op.node.opcode.root
        if executes and root in ENDS:
            return
        if executes and root == "bra":
            target = self.flow.sides(op)[0 if op.guard_holds else 1]
            if target is not None and target < len(self.flow.ops):
                yield target, after
            return
        if executes and root != "bra":
            after = self._written(op, after)
        if op.index + 1 < len(self.flow.ops):
            yield op.index + 1, after

    def _written(self, op: Op, known: Known) -> Known:
        names = self.paths.writes[op.index]
        if not names:
            return known
        facts = dict(known)
        result = self._evaluate(op, facts)
        for name in names:
            facts.pop(name, None)
            if result is not None and len(names) == 1 and not op.guard:
                facts[name] = result
        return frozenset(facts.items())

    def _operand(self, operand: Operand, op: Op, facts: dict[str, bool]) -> bool | None:
        if isinstance(operand, Name) and operand.name in facts:
            return facts[operand.name]
        return self.paths.constant_of(operand, op, self.crowd)

    def _evaluate(self, op: Op, facts: dict[str, bool]) -> bool | None:
        root, sources = op.node.opcode.root, op.operands[1:]
        if root == "mov" and len(sources) == 1:
            return self._operand(sources[0], op, facts)
        if root in {"not", "and", "or", "xor"} and op.has("pred"):
            given = [self._operand(each, op, facts) for each in sources]
            return _logic(root, given)
        if root == "setp" and len(sources) == 2 and constant(sources[1]) == 0:
            given = [self._operand(sources[0], op, facts)]
            if op.has("ne"):
                return given[0]
            return None if given[0] is None or not op.has("eq") else not given[0]
        if root == "selp":
            chosen = self._operand(sources[2], op, facts)
            if chosen is not None:
                return self._operand(sources[0 if chosen else 1], op, facts)
        return None


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
