"""Cluster launch control in one kernel: requests, the barriers and buffers they name, and what reads a response.

A handle is followed back to the loads that made it, so that `query_cancel` belongs to a buffer and the buffer to the
requests that write it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from tilewright.audit.signals import ARRIVES, CTA_BARRIERS, WAITS
from tilewright.audit.trace import sources
from tilewright.ptx.nodes import Name, Vector

if TYPE_CHECKING:
    from tilewright.audit.kernel import Kernel, Ring
    from tilewright.audit.paths import Edge
    from tilewright.ptx.flow import Op
    from tilewright.ptx.values import Value

RESPONSE_BYTES = 16
REQUEST = "clusterlaunchcontrol.try_cancel"
QUERY = "clusterlaunchcontrol.query_cancel"


@dataclass(frozen=True, eq=False)
class Request:
    """One try_cancel.

    Attributes:
        ring: the barrier object that its answer completes; None when its address is not understood.
        multicast: whether every CTA of the cluster is answered.
    """

    op: Op
    response: Value
    mbar: Value
    ring: Ring | None
    multicast: bool


class Responses:
    """What one kernel does with cluster launch control."""

    def __init__(self, kernel: Kernel) -> None:
        """Everything is computed when asked for."""
        self.kernel = kernel
        self._good: dict[Ring, frozenset[Edge]] = {}

    @cached_property
    def requests(self) -> tuple[Request, ...]:
        """Every try_cancel, in order."""
        found = []
        for op in self._reached(REQUEST):
            response, mbar = self.kernel.value(op, "response"), self.kernel.value(op, "mbar")
            if response is not None and mbar is not None:
                multicast = op.has("multicast::cluster::all")
                found.append(Request(op, response, mbar, self.kernel.ring(op), multicast))
        return tuple(found)

    def _reached(self, *entries: str) -> list[Op]:
        reached = self.kernel.flow.reachable((-1,))
        return [op for op in self.kernel.ops(*entries) if op.index in reached]

    @cached_property
    def is_canceled(self) -> tuple[Op, ...]:
        """Queries whether a response is a success."""
        return tuple(op for op in self._reached(QUERY) if op.has("is_canceled"))

    @cached_property
    def coordinates(self) -> tuple[Op, ...]:
        """Queries of the first CTA's coordinates."""
        return tuple(op for op in self._reached(QUERY) if not op.has("is_canceled"))

    # --- reads ------------------------------------------------------------------------------------

    def loads_of(self, query: Op) -> tuple[Op, ...]:
        """Loads that the handle of a query was made by; empty when it comes from elsewhere."""
        handle = query.role("response")
        found: set[int] = set()
        seen: set[int] = set()
        stack = [(each, query.index) for each in _registers(handle)]
        while stack:
            name, at = stack.pop()
            for index in self.kernel.values.reaching(name, at):
                op = self.kernel.flow.ops[index]
                if op.node.opcode.root == "ld":
                    found.add(index)
                elif op.node.opcode.root in {"mov", "cvt", "or", "shl"} and index not in seen:
                    seen.add(index)
                    stack.extend(
                        (each, index) for operand in op.operands[1:] for each in _registers(operand)
                    )
        return tuple(self.kernel.flow.ops[i] for i in sorted(found))

    def torn(self, query: Op) -> tuple[Op, Op] | None:
        """Two loads that each bring a part of the handle."""
        made = [i for each in _registers(query.role("response"))
                for i in self.kernel.paths.logic.slice(each, query.index)]  # fmt: skip
        for index in made:
            op = self.kernel.flow.ops[index]
            if op.node.opcode.root != "mov" or not isinstance(op.operands[1], Vector):
                continue
            parts = [
                self.kernel.values.reaching(name, index) for name in _registers(op.operands[1])
            ]
            if all(parts) and not set(parts[0]).intersection(*parts[1:]):
                first, second = (self.kernel.flow.ops[min(part)] for part in (parts[0], parts[-1]))
                if first.node.opcode.root == second.node.opcode.root == "ld":
                    return first, second
        return None

    @cached_property
    def reads(self) -> tuple[Op, ...]:
        """Loads that bring a response into registers."""
        queries = (*self.is_canceled, *self.coordinates)
        found = {op.index: op for query in queries for op in self.loads_of(query)}
        return tuple(found[i] for i in sorted(found))

    @cached_property
    def last_reads(self) -> tuple[Op, ...]:
        """The last load of each response that is taken apart in several."""
        loads = (self.loads_of(query) for query in (*self.is_canceled, *self.coordinates))
        found = {each[-1].index: each[-1] for each in loads if each}
        return tuple(found[i] for i in sorted(found))

    def address(self, read: Op) -> Value | None:
        """Where a load reads."""
        return self.kernel.value(read, "src")

    def requests_of(self, read: Op) -> tuple[Request, ...]:
        """Requests that may write what a load reads: of the same place, else of the same symbol."""
        where = self.address(read)
        if where is None or not where.base or where.cta is not None:
            return ()
        near = [r for r in self.requests if r.response.base == where.base]
        exact = [r for r in near if within(r.response, where)]
        return tuple(exact if any(r.ring is not None for r in exact) else near)

    def rings_of(self, read: Op) -> tuple[Ring, ...]:
        """Barrier objects that the answers to those requests complete."""
        found = {id(r.ring): r.ring for r in self.requests_of(read) if r.ring is not None}
        return tuple(found.values())

    # --- waits ------------------------------------------------------------------------------------

    def waits(self, ring: Ring) -> list[Op]:
        """Waits on a barrier object."""
        return self.kernel.of_ring(ring, *WAITS)

    def success(self, ring: Ring) -> frozenset[Edge]:
        """Edges on which an acquiring wait on the barrier has succeeded."""
        if ring not in self._good:
            good = frozenset(op.index for op in self.waits(ring) if not op.has("relaxed"))
            self._good[ring] = self.kernel.paths.when(good, answer=True) if good else frozenset()
        return self._good[ring]

    def arrivals(self, ring: Ring) -> list[Op]:
        """Ordinary arrivals on a barrier object."""
        return list(self.kernel.of_ring(ring, *ARRIVES))

    @cached_property
    def calls(self) -> frozenset[int]:
        """Calls: anything may happen in them."""
        return frozenset(op.index for op in self.kernel.flow.ops if op.node.opcode.root == "call")

    @cached_property
    def unknown_barriers(self) -> bool:
        """Whether some instruction names a barrier that is not understood."""
        return bool(self.calls) or any(
            "mbar" in op.roles and self.kernel.ring(op) is None for op in self.kernel.flow.ops
        )

    @cached_property
    def cluster_waits(self) -> frozenset[int]:
        """Waits on the barrier of the cluster."""
        return frozenset(self.kernel.indices(self.kernel.ops("barrier.cluster.wait")))

    @cached_property
    def consumed(self) -> tuple[Ring, ...]:
        """Barriers that issuing threads wait on, other than those the answers complete: what readers release."""
        own = {id(r.ring) for r in self.requests}
        found: dict[int, Ring] = {}
        for op in self.kernel.ops(*WAITS):
            ring = self.kernel.ring(op)
            if ring is None or id(ring) in own:
                continue
            if any(self.kernel.together(op, r.op) for r in self.requests):
                found[id(ring)] = ring
        return tuple(found.values())

    def released_by_others(self, ring: Ring) -> bool:
        """Whether some arrival on a barrier may come from another CTA, or when hardware is done."""
        for op in self.kernel.flow.ops:
            if "mbar" not in op.roles or op.is_a("mbarrier.init", "mbarrier.inval", *WAITS):
                continue
            if self.kernel.ring(op) is not ring:
                continue
            value = self.kernel.value(op, "mbar")
            if not op.is_a(*ARRIVES) or value is None or value.cta is not None:
                return True
        return False

    @cached_property
    def waited(self) -> frozenset[int]:
        """Waits whose success some branch depends on."""
        paths = self.kernel.paths
        slices = (paths.logic.slice(self.kernel.flow.ops[i].guard, i) for i, _ in paths.done)
        return frozenset().union(*slices)

    @cached_property
    def cta_barriers(self) -> frozenset[int]:
        """Barriers of one CTA."""
        return frozenset(self.kernel.indices(self.kernel.ops(*CTA_BARRIERS)))

    # --- granted or declined ----------------------------------------------------------------------

    @cached_property
    def asked(self) -> frozenset[int]:
        """All is_canceled queries."""
        return frozenset(op.index for op in self.is_canceled)

    @cached_property
    def granted(self) -> frozenset[Edge]:
        """Edges that prove a success, or that cannot be taken."""
        return self.kernel.paths.when(self.asked, answer=True) if self.asked else frozenset()

    @cached_property
    def declined(self) -> frozenset[Edge]:
        """Edges that prove a failure."""
        return self.kernel.paths.when(self.asked, answer=False) if self.asked else frozenset()

    @cached_property
    def unclear(self) -> frozenset[Edge]:
        """Edges that depend on a success in a way that is not understood."""
        return self.kernel.paths.unclear(self.asked) if self.asked else frozenset()


def responses(kernel: Kernel) -> Responses:
    """The view of one kernel, made once."""
    return kernel.view(Responses)


def reads_own_rank(kernel: Kernel, value: Value, op: Op) -> bool | None:
    """Whether an address moved by mapa is in the executing CTA: in all threads, in not all, unknown (None)."""
    if value.cta is None:
        return True
    own = np.arange(kernel.shape.ranks)[:, None]
    mask = kernel.threads(op)[0]
    if value.cta.base == "leader":
        return bool(np.all((own % 2 == 0) | ~mask))
    if not value.cta.known:
        return None
    return bool(np.all((value.cta.constant == own) | ~mask))


def covers(view: Responses, *, everywhere: bool) -> frozenset[int]:
    """Waits by which issuing threads hear from readers: of the whole cluster, or of their own CTA as well."""
    own = {id(r.ring) for r in view.requests}
    found = set(view.cluster_waits)
    for op in view.kernel.ops(*WAITS):
        ring = view.kernel.ring(op)
        if op.index not in view.waited:  # its result is thrown away
            continue
        if ring is None or (
            id(ring) not in own and (not everywhere or view.released_by_others(ring))
        ):
            found.add(op.index)
    if not everywhere:
        found |= view.cta_barriers
    return frozenset(found)


def splits(kernel: Kernel, op: Op, differ: frozenset[str]) -> bool:
    """Whether an unknown condition of the instruction may tell threads apart by one of these sources.

    A wait that succeeded and a response that was granted are the same to all.
    """
    view = responses(kernel)
    alike = kernel.paths.done | view.granted | view.declined
    return any(
        not kernel.values.register(condition.register, condition.at).known
        and (condition.at, condition.holds) not in alike
        and bool(sources(kernel, condition.register, condition.at) & differ)
        for condition in kernel.flow.conditions(op)
    )


def warps_of(mask: np.ndarray) -> dict[tuple[int, int], int]:
    """Of each warp, as CTA rank and number: how many of its threads are in a mask."""
    found: dict[tuple[int, int], int] = {}
    for rank, thread in np.argwhere(mask):
        key = int(rank), int(thread) // 32
        found[key] = found.get(key, 0) + 1
    return found


def within(response: Value, read: Value) -> bool:
    """Whether an address lies in a response of the same symbol; of stages in any of them."""
    if response.unknown or read.unknown:
        a, b = response.single, read.single
        step = gcd(*(coefficient for _, coefficient in (*response.unknown, *read.unknown)))
        return a is not None and b is not None and (b - a) % step < RESPONSE_BYTES
    a, b = response.single, read.single
    return a is not None and b is not None and a <= b < a + RESPONSE_BYTES


def _registers(operand: object) -> list[str]:
    match operand:
        case Name():
            return [operand.name]
        case Vector():
            return [name for element in operand.elements for name in _registers(element)]
        case _:
            return []
