"""What registers hold, for every thread of a cluster at once.

A `Value` is base + constant + unknown terms. The base is a shared symbol, a parameter or nothing; the
constant is an array over (CTA rank, thread), so that masks, leaders and elected lanes are simply evaluated;
each unknown term is a coefficient and the identity of something that the program computes. Two slots of one
ring thus share base and constant and differ in an unknown term. What a predicate is for each thread says
who executes an instruction: `Values.executes`.

The elected lane of elect.sync is taken to be lane 0: the ISA promises one lane, the same each time.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilewright.ptx.flow import Condition, constant
from tilewright.ptx.nodes import Binary, Integer, Memory, Name, Pair, Sink, Unary, Vector

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tilewright.ptx.flow import Flow, Op
    from tilewright.ptx.nodes import Operand

Ints = Any
"""An int64 array that broadcasts over (ranks, threads)."""

_Key = tuple[str, tuple[int, ...]]
"""A register and the definitions of it that meet."""

DEPTH_MAX = 200
"""Definitions that are followed from one to the next; beyond, a value is unknown."""


class Shape(NamedTuple):
    """What the launch looks like.

    Attributes:
        cluster: CTAs along x, y, z.
        block: threads along x, y, z.
        cluster_known, block_known: whether the kernel or the caller said so.
    """

    cluster: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    cluster_known: bool = False
    block_known: bool = False

    @property
    def ranks(self) -> int:
        """CTAs of the cluster."""
        return self.cluster[0] * self.cluster[1] * self.cluster[2]

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.block[0] * self.block[1] * self.block[2]


@dataclass(frozen=True, eq=False)
class Value:
    """base + constant + sum of coefficient * unknown, in the CTA `cta` where it is an address.

    Attributes:
        base: "shared:name", "param:name", or "" for a plain number.
        constant: int64, broadcastable over (ranks, threads).
        unknown: term -> coefficient; empty when everything is known.
        cta: of an address that mapa or a masked leader bit moved to another CTA; None for the own one.
    """

    base: str
    constant: Ints
    unknown: tuple[tuple[str, int], ...] = ()
    cta: Value | None = None

    @property
    def known(self) -> bool:
        """A number that is known for every thread."""
        return not self.base and not self.unknown

    @property
    def single(self) -> int | None:
        """The one number that it is in all threads, unknown terms left aside; None when threads differ."""
        first = int(self.constant.flat[0])
        return first if bool(np.all(self.constant == first)) else None

    def number(self) -> int | None:
        """The number, if it is known and the same in all threads."""
        return self.single if self.known else None

    @property
    def place(self) -> tuple[str, int | None]:
        """Base and constant: the same for all slots of a ring that is walked by an unknown index."""
        return self.base, self.single

    def same_place(self, other: Value) -> bool:
        """The same base and constant in all threads, whatever the unknown terms."""
        return self.base == other.base and bool(np.all(self.constant == other.constant))


class Values:
    """The values of one function's registers under one launch shape."""

    def __init__(self, flow: Flow, shape: Shape) -> None:
        self.flow, self.shape = flow, shape
        self._defs: dict[str, list[int]] = {}
        for op in flow.ops:
            for name in defined_by(op):
                self._defs.setdefault(name, []).append(op.index)
        self._cache: dict[_Key, Value] = {}
        self._reaching: dict[tuple[int, str], tuple[int, ...]] = {}
        self._busy: set[_Key] = set()
        self._open: set[_Key] = set()  # met while busy: what rests on them is not kept
        self._masks: dict[int, tuple[NDArray[np.bool_], bool]] = {}
        x, y, _ = shape.block
        threads = np.arange(max(shape.threads, 1))
        ranks = np.arange(shape.ranks)[:, None]
        cx, cy, _ = shape.cluster
        self._special: dict[str, Ints] = {
            "%tid.x": (threads % x)[None, :],
            "%tid.y": (threads // x % y)[None, :],
            "%tid.z": (threads // (x * y))[None, :],
            "%laneid": (threads % 32)[None, :],
            "%warpid": (threads // 32)[None, :],
            "%cluster_ctarank": ranks,
            "%cluster_ctaid.x": ranks % cx,
            "%cluster_ctaid.y": ranks // cx % cy,
            "%cluster_ctaid.z": ranks // (cx * cy),
        }
        if shape.cluster_known:
            self._special["%cluster_nctarank"] = np.array([[shape.ranks]])
            for axis, extent in zip("xyz", shape.cluster, strict=True):
                self._special[f"%cluster_nctaid.{axis}"] = np.array([[extent]])
        if shape.block_known:
            for axis, extent in zip("xyz", shape.block, strict=True):
                self._special[f"%ntid.{axis}"] = np.array([[extent]])
        self._elected = (threads % 32 == 0)[None, :].astype(np.int64)

    # --- who executes ----------------------------------------------------------------------------

    def executes(self, op: Op) -> tuple[NDArray[np.bool_], bool]:
        """Threads that may execute an instruction, (ranks, threads), and whether that is all there is to it.

        Conditions on things that are not known (loop counts, data) are left aside: then the second part is
        False and the array says who may.
        """
        if op.index in self._masks:
            return self._masks[op.index]
        full = self.shape.ranks, max(self.shape.threads, 1)
        mask = np.full(full, self.flow.entered(op.index), dtype=bool)
        exact = True
        stack = list(self.flow.conditions(op))
        while stack:
            condition = stack.pop()
            value = self.register(condition.register, condition.at)
            if value.known:
                mask &= (value.constant != 0) == condition.holds
            else:
                exact = False
                stack.extend(self.implied(condition))
        self._masks[op.index] = mask, exact
        return mask, exact

    def implied(self, condition: Condition) -> list[Condition]:
        """What an `and` that held, an `or` that did not, and a `not` say of their operands."""
        defs = self.reaching(condition.register, condition.at)
        op = self.flow.ops[defs[0]] if len(defs) == 1 else None
        if op is None or op.guard or not op.has("pred"):
            return []
        root = op.node.opcode.root
        if root != "not" and (root not in {"and", "or"} or condition.holds != (root == "and")):
            return []
        holds = condition.holds != (root == "not")
        names = (each.name for each in op.operands[1:] if isinstance(each, Name))
        return [Condition(name, op.index, holds) for name in names]

    # --- values ----------------------------------------------------------------------------------

    def of(self, operand: Operand | None, op: Op) -> Value:
        """An operand as the instruction reads it; of `[address]` the address."""
        match operand:
            case Memory():
                return self._address(operand, op)
            case Name():
                return self._name(operand, op)
            case Integer() | Unary():
                number = constant(operand)
                return _number(number) if number is not None else _term(f"expression {op.index}")
            case Binary():
                return self._binary(operand, op)
            case _:
                return _term(f"operand {op.index}")

    def register(self, name: str, at: int) -> Value:
        """What a register holds just before instruction `at`.

        Where several definitions meet it is an unknown term, unless all of them give the same.
        """
        key = name, self.reaching(name, at)
        if key in self._cache:
            return self._cache[key]
        if key in self._busy or len(self._busy) > DEPTH_MAX:
            self._open.add(key)
            return _term(f"{name} by {key[1]}")
        self._busy.add(key)
        outer, self._open = self._open, set()
        value = self._meet(name, key[1])
        self._busy.discard(key)
        self._open.discard(key)
        if not self._open:  # what was cut short inside a loop is not the last word
            self._cache[key] = value
        self._open |= outer
        return value

    def _meet(self, name: str, defs: tuple[int, ...]) -> Value:
        if not defs:
            return _term(f"{name} undefined")
        first = self._result(self.flow.ops[defs[0]], name)
        for other in defs[1:]:
            if not _equal(first, self._result(self.flow.ops[other], name)):
                return _term(f"{name} by {defs}")
        return first

    def definitions(self, name: str) -> tuple[Op, ...]:
        """Every instruction that writes a register, wherever it stands."""
        return tuple(self.flow.ops[i] for i in self._defs.get(name, ()))

    def choices(self, name: str, at: int) -> list[Value]:
        """What each definition that reaches `at` gave the register."""
        return [self._result(self.flow.ops[i], name) for i in self.reaching(name, at)]

    def reaching(self, name: str, at: int) -> tuple[int, ...]:
        """Definitions of a register that may be its last before `at`."""
        defs = self._defs.get(name, [])
        if len(defs) <= 1:
            return tuple(defs)
        key = (at, name)
        if key not in self._reaching:
            self._reaching[key] = self._search(set(defs), at)
        return self._reaching[key]

    def _search(self, defs: set[int], at: int) -> tuple[int, ...]:
        found: set[int] = set()
        seen: set[int] = set()
        stack = list(self.flow.preceding(at))
        while stack:
            here = stack.pop()
            if here in seen:
                continue
            seen.add(here)
            if here in defs:
                found.add(here)
                if not self.flow.ops[here].guard:
                    continue
            stack.extend(self.flow.preceding(here))
        return tuple(sorted(found))

    # --- one definition --------------------------------------------------------------------------

    def _name(self, operand: Name, op: Op) -> Value:
        full = f"{operand.name}.{operand.component}" if operand.component else operand.name
        if full in self._special:
            return _number_array(self._special[full])
        if full.startswith("%ctaid.") and self.shape.cluster_known:
            return self._place_in_grid(full[-1])
        if operand.name.startswith("%") and operand.name not in self._defs:
            return _term(full)
        variable = self.flow.variables.get(operand.name)
        if operand.name in self._defs:
            return self.register(operand.name, op.index)
        if variable is not None and variable.space != ".reg":
            space = variable.space.lstrip(".").split("::")[0]
            return Value(f"{space}:{operand.name}", np.zeros((1, 1), np.int64))
        return Value(
            f"symbol:{operand.name}", np.zeros((1, 1), np.int64)
        )  # a function, or a parameter

    def _place_in_grid(self, axis: str) -> Value:
        """%ctaid: clusters are aligned in the grid, so it is the place in the cluster and whole clusters before it."""
        extent = self.shape.cluster["xyz".index(axis)]
        inside = self._special[f"%cluster_ctaid.{axis}"]
        return Value("", inside, ((f"%clusterid.{axis}", extent),))

    def _address(self, operand: Memory, op: Op) -> Value:
        return self.of(operand.parts[0], op)

    def _binary(self, operand: Binary, op: Op) -> Value:
        left, right = self.of(operand.left, op), self.of(operand.right, op)
        if operand.operator == "+":
            return _add(left, right, 1)
        if operand.operator == "-":
            return _add(left, right, -1)
        return _term(f"expression {op.index}")

    def _result(self, op: Op, name: str) -> Value:
        """What one instruction leaves in a register."""
        root, mods = op.node.opcode.root, op.node.opcode.modifiers
        if root == "elect":
            return _number_array(self._elected) if op.has("sync") else _term(f"elect {op.index}")
        if root == "mapa":
            address, rank = (self.of(operand, op) for operand in op.operands[1:3])
            return replace(address, cta=rank)
        if root == "ld" and "param" in "".join(mods):
            where = self.of(op.operands[1], op)
            return _term(f"param {where.base}+{where.single}")
        rest = [self.of(operand, op) for operand in op.operands[1:]]
        handler = _HANDLERS.get(root)
        value = handler(op, rest) if handler is not None else None
        if value is not None and not isinstance(op.operands[0], Vector | Pair):
            return value
        if root == "shfl" and rest:
            return self._broadcast(op, rest) or _term(f"{name} = {op.index}")
        return _term(f"{name} = {op.index}")

    def _broadcast(self, op: Op, rest: list[Value]) -> Value | None:
        """shfl.sync.idx with a constant lane: that lane's value in the whole warp."""
        lane = rest[1].number() if len(rest) > 1 else None
        if not op.has("idx") or lane is None or rest[0].unknown or rest[0].cta is not None:
            return None
        full = np.broadcast_to(rest[0].constant, (self.shape.ranks, max(self.shape.threads, 1)))
        source = np.minimum(np.arange(full.shape[1]) // 32 * 32 + lane, full.shape[1] - 1)
        return Value(rest[0].base, full[:, source])


def defined_by(op: Op) -> list[str]:
    """Registers that an instruction writes."""
    root = op.node.opcode.root
    if not op.operands or root in {"st", "bra", "ret", "exit", "bar", "barrier", "fence", "membar"}:
        return []
    facts = op.facts
    if facts is not None:
        return [
            name
            for role in facts.operands
            if role.access == "write" and role.name in op.roles
            for name in _names(op.roles[role.name])
        ]
    return _names(op.operands[0])


def _names(operand: Operand) -> list[str]:
    match operand:
        case Name():
            return [operand.name]
        case Vector():
            return [name for element in operand.elements for name in _names(element)]
        case Pair():
            return _names(operand.first) + _names(operand.second)
        case Sink():
            return []
        case _:
            return []


def _number(value: int) -> Value:
    return Value("", np.array([[value]], np.int64))


def _number_array(values: Ints) -> Value:
    return Value("", np.asarray(values, np.int64))


def _term(name: str) -> Value:
    return Value("", np.zeros((1, 1), np.int64), ((name, 1),))


def _equal(a: Value, b: Value) -> bool:
    return (
        a.base == b.base
        and a.unknown == b.unknown
        and bool(np.all(a.constant == b.constant))
        and (a.cta is None) == (b.cta is None)
        and (a.cta is None or b.cta is None or _equal(a.cta, b.cta))
    )


def _add(a: Value, b: Value, sign: int) -> Value:
    if b.base and (a.base or sign < 0):
        return _term(f"{a.base} and {b.base}")
    terms: dict[str, int] = dict(a.unknown)
    for name, coefficient in b.unknown:
        terms[name] = terms.get(name, 0) + sign * coefficient
    left = tuple(sorted((n, c) for n, c in terms.items() if c))
    return Value(a.base or b.base, a.constant + sign * b.constant, left, a.cta or b.cta)


def _scale(a: Value, factor: int) -> Value:
    return Value("", a.constant * factor, tuple((n, c * factor) for n, c in a.unknown))


def _arithmetic(op: Op, rest: list[Value]) -> Value | None:
    root = op.node.opcode.root
    if root in {"add", "sub"} and len(rest) == 2:
        return _add(rest[0], rest[1], 1 if root == "add" else -1)
    if root in {"mul", "mad"} and not op.has("hi"):
        for value, factor in ((rest[0], rest[1].number()), (rest[1], rest[0].number())):
            if factor is not None and not value.base:
                product = _scale(value, factor)
                return _add(product, rest[2], 1) if root == "mad" else product
    if root == "shl" and (bits := rest[1].number()) is not None and not rest[0].base:
        return _scale(rest[0], 1 << bits)
    return None


_BITWISE: dict[str, Callable[[Ints, Ints], Ints]] = {
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "shr": operator.rshift,
    "shl": operator.lshift,
}


def _bitwise(op: Op, rest: list[Value]) -> Value | None:
    root = op.node.opcode.root
    if root == "and" and len(rest) == 2 and (moved := _leader_address(rest)) is not None:
        return moved
    if root == "and" and len(rest) == 2:
        for value, mask in (rest, rest[::-1]):
            bits = mask.number()
            if bits is not None and bits > 0 and not bits & bits + 1 and not value.base:
                return _remainder(value, bits + 1)
    if not all(value.known for value in rest):
        return None
    if root == "not":
        value = rest[0].constant
        return _number_array((value == 0) if op.has("pred") else ~value)
    return _number_array(_BITWISE[root](rest[0].constant, rest[1].constant))


def _leader_address(rest: list[Value]) -> Value | None:
    """`address & 0xFEFFFFF8`: the same offset in the CTA whose rank has bit 0 cleared (CUTLASS's peer mask)."""
    for address, mask in (rest, rest[::-1]):
        bits = mask.number()
        if address.base.startswith("shared") and bits is not None:
            bits &= 0xFFFFFFFF
            if bits >> 24 == 0xFE:
                return replace(address, cta=Value("leader", np.zeros((1, 1), np.int64)))
            if bits >> 24 == 0xFF:
                return address
    return None


_COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip


def _compare(op: Op, rest: list[Value]) -> Value | None:
    how = next((m for m in op.node.opcode.modifiers if m in _COMPARE), None)
    if how is None or not all(value.known for value in rest[:2]):
        return None
    held = _COMPARE[how](rest[0].constant, rest[1].constant)
    if len(rest) > 2:
        combine = next((m for m in op.node.opcode.modifiers if m in {"and", "or", "xor"}), None)
        if combine is None or not rest[2].known:
            return None
        other = rest[2].constant != 0
        held = (
            held & other if combine == "and" else held | other if combine == "or" else held ^ other
        )
    return _number_array(held)


def _select(op: Op, rest: list[Value]) -> Value | None:
    if len(rest) != 3:
        return None
    if not rest[2].known:
        return _either(op, rest[0], rest[1])
    chosen = rest[2].constant != 0
    if rest[0].known and rest[1].known:
        return _number_array(np.where(chosen, rest[0].constant, rest[1].constant))
    if bool(np.all(chosen)):
        return rest[0]
    return rest[1] if not bool(np.any(chosen)) else None


def _either(op: Op, a: Value, b: Value) -> Value | None:
    """One of two addresses that differ in unknown terms alone: two slots of one ring."""
    if not a.base or a.base != b.base or a.cta is not None or b.cta is not None:
        return None
    step = gcd(*(factor for _, factor in (*a.unknown, *b.unknown)))
    if not step or np.any((a.constant - b.constant) % step):
        return None
    term = f"{op.operands[0].name} = {op.index}" if isinstance(op.operands[0], Name) else ""
    return Value(a.base, np.minimum(a.constant, b.constant), ((term, step),)) if term else None


def _same(_: Op, rest: list[Value]) -> Value | None:
    return rest[0] if rest else None


def _remainder(value: Value, by: int) -> Value | None:
    """Modulo a number that every unknown term is a multiple of."""
    if value.base or any(factor % by for _, factor in value.unknown):
        return None
    return _number_array(value.constant % by)


def _divide(op: Op, rest: list[Value]) -> Value | None:
    by = rest[1].number() if len(rest) > 1 else None
    if by is None or by == 0:
        return None
    if op.node.opcode.root == "rem" and op.has("u32") and by > 0:
        return _remainder(rest[0], by)
    if not rest[0].known:
        return None
    both = rest[0].constant, by
    return _number_array(both[0] // both[1] if op.node.opcode.root == "div" else both[0] % both[1])


_HANDLERS = {
    "mov": _same, "cvt": _same, "cvta": _same, "add": _arithmetic, "sub": _arithmetic,
    "mul": _arithmetic, "mad": _arithmetic, "shl": lambda o, r: _arithmetic(o, r) or _bitwise(o, r),
    "shr": _bitwise, "and": _bitwise, "or": _bitwise, "xor": _bitwise, "not": _bitwise,
    "setp": _compare, "selp": _select, "div": _divide, "rem": _divide,
}  # fmt: skip
