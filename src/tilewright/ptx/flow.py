"""Control flow of one function: its instructions in a line, where each may go next, and what dominates what.

Nested scopes are flattened and vector registers are their components (`scopes`), so that a name means one
thing in the whole function. The graph is between single instructions, with a node on each side of a
conditional branch, so that "only when the predicate holds" is a dominance.

    for op in flow.ops: op.node, op.facts, op.role("mbar"), op.guard
    flow.path(start, goals, avoid)   is there a way that avoids these?
    flow.conditions(op)              predicates that must have held for op to be reached
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from tilewright.ptx.nodes import (
    Block,
    Directive,
    Instruction,
    Integer,
    Label,
    Name,
    Unary,
    Variable,
)
from tilewright.ptx.opcodes import OpcodeFacts, find_facts, operands_by_role
from tilewright.ptx.scopes import Scope, resolve, resolve_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from tilewright.ptx.nodes import Function, Module, Operand, Statement
    from tilewright.ptx.source import Span

ENDS = frozenset({"ret", "exit", "trap"})


class Condition(NamedTuple):
    """A predicate register as it was at a branch or guard, and whether it held."""

    register: str
    at: int
    holds: bool


@dataclass(frozen=True, eq=False)
class Op:
    """One instruction of a function.

    Attributes:
        index: its place in the line.
        operands: with every name resolved to its scope.
        guard: predicate register of `@p`, resolved; "" without.
        guard_holds: False for `@!p`.
        facts: what the opcode table knows; None for instructions that it does not have.
    """

    index: int
    node: Instruction
    operands: tuple[Operand, ...]
    guard: str = ""
    guard_holds: bool = True
    facts: OpcodeFacts | None = None

    @property
    def name(self) -> str:
        """The opcode as written."""
        return str(self.node.opcode)

    @property
    def entry(self) -> str:
        """The opcode table's name of it, or the root of one that it does not have."""
        return self.facts.name if self.facts is not None else self.node.opcode.root

    @property
    def span(self) -> Span:
        """Where it stands."""
        return self.node.span

    def has(self, *modifiers: str) -> bool:
        """Whether every modifier is written."""
        return self.node.opcode.has(*modifiers)

    def is_a(self, *entries: str) -> bool:
        """Whether its entry is one of these or begins with one and a dot."""
        return any(self.entry == entry or self.entry.startswith(entry + ".") for entry in entries)

    @cached_property
    def roles(self) -> dict[str, Operand]:
        """Operands by the roles of the opcode table; empty without facts."""
        if self.facts is None:
            return {}
        plain = Instruction(self.node.at, self.node.opcode, self.operands, None)
        return operands_by_role(self.facts, plain)

    def role(self, name: str) -> Operand | None:
        """One operand by its role."""
        return self.roles.get(name)


class Flow:
    """The control flow of one function with a body."""

    def __init__(self, function: Function, module: Module | None = None) -> None:
        """Lower the function; `module` gives the variables outside it, dynamic shared memory among them."""
        self.function = function
        self.variables: dict[str, Variable] = {
            declared.name: item
            for item in (module.items if module is not None else ())
            if isinstance(item, Variable)
            for declared in item.declarators
        }
        self.labels: dict[str, int] = {}
        self.tables: dict[str, tuple[str, ...]] = {}  # of `.branchtargets`
        self._types: dict[str, str] = {}  # of `%r<10>` by prefix and scope, of others by name
        self._scopes = 0
        self._conditions: dict[int, tuple[Condition, ...]] = {}
        self._around: dict[int, list[tuple[int, frozenset[int]]]] = {}
        lowered: list[tuple[Instruction, tuple[Operand, ...], str, bool]] = []
        if function.body is not None:
            self._lower(function.body, [], lowered)
        self.ops = tuple(
            Op(i, node, operands, guard, holds, find_facts(node.opcode))
            for i, (node, operands, guard, holds) in enumerate(lowered)
        )
        self._following = [
            tuple(i for i in self._next_of(op) if i < len(self.ops)) for op in self.ops
        ]

    # --- lowering ---------------------------------------------------------------------------------

    def _lower(
        self,
        block: Block,
        outer: list[Scope],
        out: list[tuple[Instruction, tuple[Operand, ...], str, bool]],
    ) -> None:
        scope = Scope(self._scopes)
        self._scopes += 1
        scopes = [*outer, scope]
        self._declare(block.statements, scope)
        label = ""
        for statement in block.statements:
            if isinstance(statement, Block):
                self._lower(statement, scopes, out)
            elif isinstance(statement, Label):
                label = scope.names[statement.name]
                self.labels[label] = len(out)
            elif isinstance(statement, Directive) and statement.name == ".branchtargets":
                names = (each.name for each in statement.arguments if isinstance(each, Name))
                self.tables[label] = tuple(resolve_name(name, scopes) for name in names)
            elif isinstance(statement, Instruction):
                operands = tuple(resolve(operand, scopes) for operand in statement.operands)
                guard, holds = "", True
                if statement.guard is not None:
                    predicate = resolve(statement.guard.predicate, scopes)
                    guard = predicate.name if isinstance(predicate, Name) else ""
                    holds = not statement.guard.negated
                out.append((statement, operands, guard, holds))

    def _declare(self, statements: Iterable[Statement], scope: Scope) -> None:
        for statement in statements:
            if isinstance(statement, Label):
                scope.names[statement.name] = statement.name + scope.suffix
            elif isinstance(statement, Variable):
                scope.declare(statement)
                for declared in statement.declarators:
                    self._types[declared.name + scope.suffix] = statement.type
                    if declared.count is None:
                        self.variables[declared.name + scope.suffix] = statement

    def type_of(self, name: str) -> str:
        """The type that a register or variable of the body was declared with; "" for other names."""
        base, mark, scope = name.partition("@")
        base = base.partition(".")[0]  # of a component, its vector's
        found = self._types.get(base + mark + scope)
        return found or self._types.get(base.rstrip("0123456789") + mark + scope, "")

    # --- graph ------------------------------------------------------------------------------------

    def _next_of(self, op: Op) -> Iterator[int]:
        root = op.node.opcode.root
        falls = bool(op.guard) or (root not in ENDS and root not in {"bra", "brx"})
        if root == "bra":
            target = op.operands[0]
            if isinstance(target, Name) and target.name in self.labels:
                yield self.labels[target.name]
        elif root == "brx":
            table = next(
                (e.name for e in op.operands if isinstance(e, Name) and e.name in self.tables), ""
            )
            yield from (self.labels[name] for name in self.tables.get(table, self.labels))
        if falls and op.index + 1 < len(self.ops):
            yield op.index + 1

    def following(self, index: int) -> tuple[int, ...]:
        """Where control may go after an instruction; a label at the very end leads nowhere."""
        return self._following[index]

    @cached_property
    def _preceding(self) -> list[list[int]]:
        before: list[list[int]] = [[] for _ in self.ops]
        for op in self.ops:
            for after in self.following(op.index):
                before[after].append(op.index)
        return before

    def preceding(self, index: int) -> list[int]:
        """Where control may come from."""
        return self._preceding[index]

    @cached_property
    def exits(self) -> tuple[Op, ...]:
        """Instructions that may end the function."""
        last = len(self.ops) - 1
        return tuple(op for op in self.ops if op.node.opcode.root in ENDS or op.index == last)

    def path(
        self, starts: Iterable[int], goals: Collection[int], avoid: Collection[int] = ()
    ) -> bool:
        """Whether control can pass from behind one of `starts` to one of `goals` without `avoid`.

        Use -1 as a start for the function's entry. A goal counts when it is reached, even if it is to be
        avoided; a start may be a goal only by coming round to it.
        """
        goal_set, avoid_set = set(goals), set(avoid)
        stops = goal_set | avoid_set
        seen: set[int] = set()
        stack = [n for s in starts for n in ((0,) if s < 0 and self.ops else self.following(s))]
        while stack:
            here = stack.pop()
            if here in seen:
                continue
            seen.add(here)
            end = self.straight[here]
            if not stops.isdisjoint(range(here, end + 1)):
                stop = next(i for i in range(here, end + 1) if i in stops)
                if stop in goal_set:
                    return True
                continue
            stack.extend(self._following[end])
        return False

    @cached_property
    def straight(self) -> list[int]:
        """The last instruction of the straight line that each one is in: no thread leaves or enters it before."""
        last = list(range(len(self.ops)))
        for index in range(len(self.ops) - 2, -1, -1):
            alone = self._following[index] == (index + 1,) and len(self._preceding[index + 1]) == 1
            if alone and self.ops[index].node.opcode.root not in ENDS:
                last[index] = last[index + 1]
        return last

    def reachable(self, starts: Iterable[int], avoid: Collection[int] = ()) -> set[int]:
        """Every instruction that control can pass to from behind `starts` without `avoid`."""
        seen: set[int] = set()
        avoid_set = set(avoid)
        stack = [n for s in starts for n in ((0,) if s < 0 and self.ops else self.following(s))]
        while stack:
            here = stack.pop()
            if here in seen or here in avoid_set:
                continue
            seen.add(here)
            stack.extend(self.following(here))
        return seen

    def reaching(self, goal: int, avoid: Collection[int] = ()) -> set[int]:
        """Every instruction from which control can come to `goal` without passing one of `avoid` or `goal` again."""
        seen: set[int] = set()
        stack = list(self.preceding(goal))
        while stack:
            here = stack.pop()
            if here in seen or here in avoid:
                continue
            seen.add(here)
            if here != goal:
                stack.extend(self.preceding(here))
        return seen

    def always_between(self, start: int, goal: int, through: Collection[int]) -> bool:
        """Whether every way from behind `start` to `goal` passes one of `through`. -1 is the entry."""
        return not self.path((start,), (goal,), through)

    def sides(self, op: Op) -> tuple[int | None, int | None]:
        """Of a conditional branch: where it goes when its predicate holds, and when it does not."""
        jump = self._next_of(op)
        target = next(jump, None)
        after = op.index + 1 if op.index + 1 < len(self.ops) else None
        return (target, after) if op.guard_holds else (after, target)

    # --- dominance --------------------------------------------------------------------------------

    @cached_property
    def _dominators(self) -> dict[int, int]:
        """Immediate dominators over instructions and, as negative numbers, the two edges of each branch."""
        return immediate_dominators(self._edges, len(self.ops))

    @cached_property
    def _edges(self) -> dict[int, tuple[int, ...]]:
        """The graph with a node on each edge of a conditional branch: -(2 i + 1) taken, -(2 i + 2) not."""
        graph: dict[int, tuple[int, ...]] = {}
        for op in self.ops:
            after = self.following(op.index)
            if op.guard and op.node.opcode.root in {"bra", *ENDS}:
                taken = [n for n in after if n != op.index + 1 or op.node.opcode.root == "bra"]
                target = taken[0] if op.node.opcode.root == "bra" and taken else None
                yes, no = -(2 * op.index + 1), -(2 * op.index + 2)
                graph[op.index] = (yes, no)
                graph[yes] = (target,) if target is not None else ()
                graph[no] = (op.index + 1,) if op.index + 1 < len(self.ops) else ()
            else:
                graph[op.index] = after
        return graph

    def dominates(self, first: int, second: int) -> bool:
        """Whether every way from the entry to `second` passes `first`."""
        if first == second:
            return True
        if first not in self._spans or second not in self._spans:
            return False
        begin, end = self._spans[first]
        return begin <= self._spans[second][0] < end

    @cached_property
    def _spans(self) -> dict[int, tuple[int, int]]:
        """Places in a walk down the tree of dominators: a node's own, and where its subtree ends."""
        below: dict[int, list[int]] = {}
        for node, above in self._dominators.items():
            if node != above:
                below.setdefault(above, []).append(node)
        found: dict[int, tuple[int, int]] = {}
        begins: dict[int, int] = {}
        stack = [(0, False)] if self._dominators else []
        while stack:
            node, left = stack.pop()
            if left:
                found[node] = begins[node], len(begins)
                continue
            begins[node] = len(begins)
            stack.append((node, True))
            stack.extend((each, False) for each in below.get(node, ()))
        return found

    def entered(self, index: int) -> bool:
        """Whether any way leads to an instruction."""
        return index in self._dominators

    def conditions(self, op: Op) -> list[Condition]:
        """Predicates that held, or not, on every way to the instruction; its own guard last."""
        held = self._held(op.index)
        if op.guard and op.node.opcode.root != "bra":
            held = (*held, Condition(op.guard, op.index, op.guard_holds))
        return list(held)

    def _held(self, index: int) -> tuple[Condition, ...]:
        """What the edges of branches above it in the tree of dominators decide, outermost first."""
        above: list[int] = []
        node: int | None = index
        while node is not None and node not in self._conditions:
            above.append(node)
            parent = self._dominators.get(node)
            node = parent if parent != node else None
        held = self._conditions[node] if node is not None else ()
        for each in reversed(above):
            if each < 0:
                branch = self.ops[(-each - 1) // 2]
                taken = -each % 2 == 1
                held = (*held, Condition(branch.guard, branch.index, taken == branch.guard_holds))
            self._conditions[each] = held
        return held

    # --- loops ------------------------------------------------------------------------------------

    @cached_property
    def _loops(self) -> list[tuple[int, frozenset[int]]]:
        """Natural loops: header and members."""
        found: dict[int, set[int]] = {}
        for op in self.ops:
            for after in self.following(op.index):
                if self.dominates(after, op.index):
                    members = found.setdefault(after, {after})
                    stack = [op.index]
                    while stack:
                        here = stack.pop()
                        if here not in members:
                            members.add(here)
                            stack.extend(self.preceding(here))
        return [(header, frozenset(members)) for header, members in found.items()]

    def loops(self, index: int) -> list[tuple[int, frozenset[int]]]:
        """Loops around an instruction, the innermost first: header and members."""
        if index not in self._around:
            around = [loop for loop in self._loops if index in loop[1]]
            self._around[index] = sorted(around, key=lambda loop: len(loop[1]))
        return self._around[index]


def immediate_dominators(graph: dict[int, tuple[int, ...]], count: int) -> dict[int, int]:
    """The immediate dominator of each node that node 0 reaches, itself for node 0.

    Cooper, Harvey and Kennedy's iteration over a reverse postorder.
    """
    if not count:
        return {}
    order = _reverse_postorder(graph)
    place = {node: i for i, node in enumerate(order)}
    before: dict[int, list[int]] = {node: [] for node in order}
    for node in order:
        for child in graph.get(node, ()):
            before[child].append(node)
    above: dict[int, int] = {0: 0}
    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            known = [parent for parent in before[node] if parent in above]
            best = known[0]
            for parent in known[1:]:
                best = _meet(parent, best, above, place)
            if above.get(node) != best:
                above[node] = best
                changed = True
    return above


def _reverse_postorder(graph: dict[int, tuple[int, ...]]) -> list[int]:
    order: list[int] = []
    seen = {0}
    stack: list[tuple[int, Iterator[int]]] = [(0, iter(graph.get(0, ())))]
    while stack:
        node, after = stack[-1]
        child = next((each for each in after if each not in seen), None)
        if child is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(child)
            stack.append((child, iter(graph.get(child, ()))))
    order.reverse()
    return order


def _meet(a: int, b: int, above: dict[int, int], place: dict[int, int]) -> int:
    while a != b:
        while place[a] > place[b]:
            a = above[a]
        while place[b] > place[a]:
            b = above[b]
    return a


def constant(operand: Operand | None) -> int | None:
    """The value of an integer literal, signed or not; None for anything else."""
    if isinstance(operand, Integer):
        return operand.value
    if isinstance(operand, Unary) and operand.operator == "-":
        inner = constant(operand.operand)
        return None if inner is None else -inner
    return None
