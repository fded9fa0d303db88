"""One kernel as the rules see it: instructions by kind, values, who executes them, barriers by object.

A barrier object is a ring: neighbouring mbarriers that are initialised alike and walked by one index. An
instruction names the whole ring where its slot is not known, one slot where it is. Everything here says
"unknown" with None; a rule that needs it yields `NotDecided`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from tilewright.audit.paths import Paths
from tilewright.audit.reach import Reach
from tilewright.ptx.finding import Finding, NotDecided
from tilewright.ptx.flow import Flow, Op, constant
from tilewright.ptx.values import Shape, Value, Values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tilewright.ptx.finding import Severity
    from tilewright.ptx.nodes import Directive, Function, Module
    from tilewright.ptx.source import Span

T = TypeVar("T")

MBARRIER_BYTES = 8
THREADS_ASSUMED = 128
"""Of a kernel that says nothing about its block: enough to tell one lane from one warp from all."""


_FUNCTION_LOCAL = re.compile(r"^_ZZ.*E(\d+)([A-Za-z_]\w*)$")
"""A static variable of a function, as C++ compilers mangle it: its own name stands last."""


@dataclass(frozen=True)
class Options:
    """What the caller adds to the text.

    Attributes:
        cluster, block: launch facts for kernels that do not carry them.
        ptx_isa: text of the ISA to judge by where versions differ.
        strict: what shipping code does against the letter is an error.
    """

    cluster: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    ptx_isa: tuple[int, int] = (9, 1)
    strict: bool = False


@dataclass(frozen=True, eq=False)
class Ring:
    """Neighbouring mbarriers that one index walks.

    Attributes:
        base: shared symbol.
        start: offset of the first slot.
        slots: how many; None where the initialisation is a loop of unknown length.
        count: arrivals a phase that they are initialised with; None when it is not a constant.
        inits: the instructions that initialise them.
    """

    base: str
    start: int
    slots: int | None
    count: int | None
    inits: tuple[Op, ...]

    @property
    def name(self) -> str:
        """How a reader finds it: the symbol, and the offset in dynamic shared memory."""
        symbol = self.base.partition(":")[2]
        if local := _FUNCTION_LOCAL.search(symbol):
            symbol = local[2][: int(local[1])]
        return f"{symbol}+{self.start}" if self.start else symbol

    def holds(self, value: Value) -> bool:
        """Whether an address is in the ring."""
        offset = value.single
        if value.base != self.base or offset is None:
            return False
        if self.slots is None:
            return offset >= self.start
        return self.start <= offset < self.start + MBARRIER_BYTES * self.slots


@dataclass
class Kernel:
    """A function with a body, its launch shape, and what is derived from them."""

    module: Module
    function: Function
    options: Options = field(default_factory=Options)
    _by_entry: dict[tuple[str, ...], list[Op]] = field(default_factory=dict, init=False, repr=False)
    _views: dict[object, object] = field(default_factory=dict, init=False, repr=False)
    _ring_of: dict[tuple[int, str], Ring | None] = field(
        default_factory=dict, init=False, repr=False
    )
    _value_of: dict[tuple[int, str], Value | None] = field(
        default_factory=dict, init=False, repr=False
    )
    _elsewhere: dict[bytes, frozenset[int]] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def flow(self) -> Flow:
        """Its control flow."""
        return Flow(self.function, self.module)

    @cached_property
    def shape(self) -> Shape:
        """Cluster and block: of the directives, else of the options, else assumed."""
        cluster = self._triple(".reqnctapercluster") or self.options.cluster
        block = self._triple(".reqntid") or self.options.block or self._triple(".maxntid")
        return Shape(
            cluster or (1, 1, 1),
            block or (THREADS_ASSUMED, 1, 1),
            cluster_known=cluster is not None,
            block_known=self._triple(".reqntid") is not None or self.options.block is not None,
        )

    @property
    def block_bounded(self) -> bool:
        """Whether the text or the caller bounds the threads of a CTA."""
        return self.shape.block_known or self.directive(".maxntid") is not None

    @cached_property
    def values(self) -> Values:
        """What its registers hold."""
        return Values(self.flow, self.shape)

    @cached_property
    def reach(self) -> Reach:
        """Where each of its threads can come."""
        return Reach(self)

    @cached_property
    def paths(self) -> Paths:
        """Ways that one kind of thread can take, with the predicates decided on them."""
        return Paths(self)

    def view(self, make: Callable[[Kernel], T]) -> T:
        """What a family derives from the kernel for its own rules, made once."""
        if make not in self._views:
            self._views[make] = make(self)
        return cast("T", self._views[make])

    def _triple(self, name: str) -> tuple[int, int, int] | None:
        found = self.function.directive(name)
        if found is None:
            return None
        numbers = [constant(argument) or 1 for argument in found.arguments]
        return tuple((*numbers, 1, 1, 1)[:3])  # type: ignore[return-value]

    def directive(self, name: str) -> Directive | None:
        """A performance directive of the function."""
        return self.function.directive(name)

    # --- instructions ----------------------------------------------------------------------------

    def ops(self, *entries: str) -> list[Op]:
        """Instructions of these entries of the opcode table, longer ones included, in order."""
        if entries not in self._by_entry:
            found = [op for ops in self._entries.values() if ops[0].is_a(*entries) for op in ops]
            self._by_entry[entries] = sorted(found, key=lambda op: op.index)
        return list(self._by_entry[entries])

    @cached_property
    def _entries(self) -> dict[str, list[Op]]:
        found: dict[str, list[Op]] = {}
        for op in self.flow.ops:
            found.setdefault(op.entry, []).append(op)
        return found

    def indices(self, ops: Iterable[Op]) -> set[int]:
        """Their places in the line."""
        return {op.index for op in ops}

    def value(self, op: Op, role: str) -> Value | None:
        """What an operand holds, by its role; None where the instruction has none."""
        key = op.index, role
        if key not in self._value_of:
            operand = op.role(role)
            self._value_of[key] = None if operand is None else self.values.of(operand, op)
        return self._value_of[key]

    def threads(self, op: Op) -> tuple[np.ndarray, bool]:
        """Threads that may execute it, (ranks, threads) of bool, and whether nothing unknown decides besides."""
        return self.values.executes(op)

    def per_cta(self, op: Op) -> list[int]:
        """Threads of each CTA that may execute it."""
        return [int(row.sum()) for row in self.threads(op)[0]]

    def ranks(self, op: Op) -> list[int]:
        """CTA ranks in which some thread may execute it."""
        return [rank for rank, count in enumerate(self.per_cta(op)) if count]

    def together(self, a: Op, b: Op) -> bool:
        """Whether some thread may execute both."""
        return bool(np.any(self.threads(a)[0] & self.threads(b)[0]))

    def elsewhere(self, op: Op) -> frozenset[int]:
        """Instructions that no thread of `op` executes: not on its ways. For `avoid` of `flow.path`."""
        mine = self.threads(op)[0]
        key = mine.tobytes()
        if key not in self._elsewhere:
            self._elsewhere[key] = frozenset(
                other.index for other in self.flow.ops if not np.any(mine & self.threads(other)[0])
            )
        return self._elsewhere[key]

    # --- barriers ---------------------------------------------------------------------------------

    @cached_property
    def rings(self) -> tuple[Ring, ...]:
        """Every initialised barrier object."""
        sites: dict[str, dict[int, list[Op]]] = {}
        loops: set[tuple[str, int]] = set()
        for op in self.ops("mbarrier.init"):
            value = self.value(op, "mbar")
            if value is None or not value.base or value.single is None:
                continue
            sites.setdefault(value.base, {}).setdefault(value.single, []).append(op)
            if value.unknown:
                loops.add((value.base, value.single))
        walked = self._walked()
        return tuple(
            ring for base, at in sites.items() for ring in self._split(base, at, loops, walked)
        )

    def _walked(self) -> set[tuple[str, int]]:
        """Offsets from which an unknown index walks: where a ring begins."""
        found = set()
        for op in self.flow.ops:
            value = self.value(op, "mbar") if "mbar" in op.roles else None
            if value is not None and value.base and value.unknown and value.single is not None:
                found.add((value.base, value.single))
        return found

    def _split(
        self,
        base: str,
        at: dict[int, list[Op]],
        loops: set[tuple[str, int]],
        walked: set[tuple[str, int]],
    ) -> Iterable[Ring]:
        run: list[int] = []
        for offset in [*sorted(at), None]:
            begins = (
                offset is None
                or not run
                or offset != run[-1] + MBARRIER_BYTES
                or (base, offset) in walked
                or self._count(at[offset][0]) != self._count(at[run[0]][0])
            )
            if begins and run:
                inits = tuple(op for each in run for op in at[each])
                endless = (base, run[-1]) in loops
                yield Ring(
                    base, run[0], None if endless else len(run), self._count(inits[0]), inits
                )
                run = []
            if offset is not None:
                run.append(offset)

    def _count(self, init: Op) -> int | None:
        value = self.value(init, "count")
        return None if value is None else value.number()

    def ring(self, op: Op, role: str = "mbar") -> Ring | None:
        """The barrier object that an instruction names; None when its address is not understood."""
        key = op.index, role
        if key not in self._ring_of:
            self._ring_of[key] = self._find_ring(op, role)
        return self._ring_of[key]

    def _find_ring(self, op: Op, role: str) -> Ring | None:
        value = self.value(op, role)
        if value is None or not value.base:
            return None
        fitting = [ring for ring in self.rings if ring.holds(value)]
        return max(fitting, key=lambda ring: ring.start) if fitting else None

    def of_ring(self, ring: Ring, *entries: str) -> list[Op]:
        """Instructions of these entries on one barrier object."""
        return [op for op in self.ops(*entries) if self.ring(op) is ring]

    # --- findings ---------------------------------------------------------------------------------

    def finding(
        self,
        rule: str,
        message: str,
        at: Op | Span,
        other: Op | Span | None = None,
        other_says: str = "",
        severity: Severity = "error",
    ) -> Finding:
        """A finding at an instruction."""
        return Finding(
            rule, severity, message, _span(at), self.function.name,
            None if other is None else _span(other), other_says,
        )  # fmt: skip

    def undecided(self, rule: str, why: str, at: Op | Span) -> NotDecided:
        """A rule that could not be applied here."""
        return NotDecided(rule, why, _span(at), self.function.name)


def _span(at: Op | Span) -> Span:
    return at.span if isinstance(at, Op) else at
