"""Rules of cluster launch control, last part: what becomes of the coordinates, and who is there at the end.

Whether every granted tile is processed once is a matter of execution. Here is what the text alone shows: a
coordinate that nobody uses or that no CTA makes its own, and an exit with a request in flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.audit.logic import registers_read
from tilewright.audit.responses import Responses, responses
from tilewright.audit.rules import Outcome, rule
from tilewright.audit.signals import ARRIVES, WAITS, where
from tilewright.ptx.flow import ENDS
from tilewright.ptx.nodes import Memory, Name, Vector
from tilewright.ptx.values import defined_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tilewright.audit.kernel import Kernel
    from tilewright.audit.paths import Crowd, Edge
    from tilewright.ptx.flow import Op
    from tilewright.ptx.nodes import Operand

GUIDE = "9.7.13.18"
OWN_PLACE = ("%cluster_ctaid", "%cluster_ctarank", "%ctaid")
"""Special registers that tell a CTA from the others of its cluster."""

AXES = "xyz"


class _Flowing:
    """Registers that a value flows into, through any instruction but memory."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.readers: dict[str, list[Op]] = {}
        for op in kernel.flow.ops:
            for name in set(registers_read(op)):
                self.readers.setdefault(name, []).append(op)

    def from_results(self, ops: Iterable[Op]) -> dict[int, set[str]]:
        """Of each instruction that the results of `ops` flow into: the registers that bring them."""
        found: dict[int, set[str]] = {}
        stack = [(op.index, name) for op in ops for name in defined_by(op)]
        seen = set(stack)
        while stack:
            made, name = stack.pop()
            for op in self.readers.get(name, ()):
                if made not in self.kernel.values.reaching(name, op.index):
                    continue
                found.setdefault(op.index, set()).add(name)
                if op.node.opcode.root in {"ld", "atom"}:
                    continue
                for result in defined_by(op):
                    if (op.index, result) not in seen:
                        seen.add((op.index, result))
                        stack.append((op.index, result))
        return found

    def from_specials(self) -> dict[int, set[str]]:
        """The same of the special registers that tell the CTAs of a cluster apart."""
        names = {name for name in self.readers if name.startswith(OWN_PLACE)}
        first = {op.index: op for name in names for op in self.readers[name]}
        found = self.from_results(first.values())
        for name in names:
            for op in self.readers[name]:
                found.setdefault(op.index, set()).add(name)
        return found


def flowing(kernel: Kernel) -> _Flowing:
    """Readers of every register, made once."""
    return kernel.view(_Flowing)


def _touches_memory(op: Op) -> bool:
    return op.node.opcode.root in {"ld", "st", "atom", "red", "cp"} and not op.has("param")


@rule(
    "CLC-12", "error", section=GUIDE,
    help="add %cluster_ctaid of the same dimension to each coordinate",
)  # fmt: skip
def each_cta_its_own(kernel: Kernel) -> Iterator[Outcome]:
    """The coordinates are those of the cluster's first CTA; every CTA adds its own place in the cluster."""
    view, shape = responses(kernel), kernel.shape
    if not shape.cluster_known or shape.ranks == 1 or view.calls:
        return
    queries = [op for op in view.coordinates if len(kernel.ranks(op)) > 1]
    if not queries:
        return
    flow = flowing(kernel)
    granted, own = flow.from_results(queries), flow.from_specials()
    used = [
        op for op in kernel.flow.ops
        if op.index in granted and _touches_memory(op) and granted[op.index] & _in_address(op)
    ]  # fmt: skip
    shared = [op for op in used if len(kernel.ranks(op)) > 1]
    if not shared or len(shared) != len(used):
        return
    if any(_joins(kernel, kernel.flow.ops[i], granted[i], own.get(i, set())) for i in granted):
        return
    if any(len(kernel.ranks(kernel.flow.ops[i])) < shape.ranks for i in granted):
        yield kernel.undecided("CLC-12", "CTAs of the cluster treat the coordinates differently", queries[0])
        return
    yield kernel.finding(
        "CLC-12",
        f"{shape.ranks} CTAs of the cluster use the coordinates of its first CTA as they are: all work"
        " on the same tile, and the others' are never processed",
        shared[0], queries[0], "gives the first CTA's coordinates",
    )  # fmt: skip


def _in_address(op: Op) -> set[str]:
    """Registers in the addresses and coordinates of an instruction."""
    found: set[str] = set()
    for operand in op.operands:
        if isinstance(operand, Memory):
            found |= set(_names(operand))
    return found


def _names(operand: Operand) -> Iterator[str]:
    match operand:
        case Name():
            yield operand.name
        case Vector():
            yield from (name for each in operand.elements for name in _names(each))
        case Memory():
            yield from (name for each in operand.parts for name in _names(each))
        case _:
            for each in ("left", "right"):
                inner = getattr(operand, each, None)
                if inner is not None:
                    yield from _names(inner)


def _joins(kernel: Kernel, op: Op, granted: set[str], own: set[str]) -> bool:
    """Whether an instruction brings a coordinate together with the CTA's place, or lets go of it in memory."""
    if op.node.opcode.root == "st":
        value = op.role("value")
        stored = set(_names(value)) if value is not None else set()
        return bool(stored & granted) or bool(_in_address(op) & own - granted)
    del kernel
    return bool(own - granted) or (len(own) > 1 and len(granted | own) > 1)


@rule(
    "CLC-17", "error", section=GUIDE,
    help="process the tile of every granted response: its cluster is cancelled and never launched",
)  # fmt: skip
def granted_is_processed(kernel: Kernel) -> Iterator[Outcome]:
    """The coordinates of a granted response are used."""
    view = responses(kernel)
    if not view.requests or view.calls or not view.reads:
        return
    if any(not view.loads_of(op) for op in (*view.is_canceled, *view.coordinates)):
        return
    if not view.coordinates:
        yield kernel.finding(
            "CLC-17",
            "no coordinates are read of any granted response: the clusters that this kernel cancels"
            " are processed by nobody",
            view.requests[0].op, view.reads[0], "the response is read here",
        )  # fmt: skip
        return
    flow = flowing(kernel)
    used = flow.from_results(view.coordinates)
    if not used:
        yield kernel.finding(
            "CLC-17",
            "the coordinates of granted responses are read and never used: the clusters that this"
            " kernel cancels are processed by nobody",
            view.coordinates[0], view.requests[0].op, "cancels a cluster",
        )  # fmt: skip
        return
    yield from _replaced(kernel, view, used)


def _replaced(kernel: Kernel, view: Responses, used: dict[int, set[str]]) -> Iterator[Outcome]:
    """A select that takes the launch's own coordinates where a condition on the granted ones holds."""
    launch = {
        op.index for op in kernel.flow.ops
        if op.node.opcode.root == "mov"
        and any(isinstance(each, Name) and each.name.startswith("%ctaid") for each in op.operands[1:])
    }  # fmt: skip
    for index, brought in used.items():
        op = kernel.flow.ops[index]
        if op.node.opcode.root != "selp":
            continue
        arms = [each.name if isinstance(each, Name) else "" for each in op.operands[1:4]]
        kept = [name in brought for name in arms]
        if kept[:2] not in ([True, False], [False, True]) or not kept[2]:
            continue
        other = arms[0] if kept[1] else arms[1]
        if other and set(kernel.values.reaching(other, index)) & launch:
            yield kernel.finding(
                "CLC-17",
                "where a condition on the granted coordinates holds, the tile of the launch is taken"
                " instead: the cancelled cluster's tile is then processed by nobody",
                op, view.coordinates[0], "gives the coordinates", severity="warning",
            )  # fmt: skip
            return


@rule(
    "CLC-20", "warning", section=GUIDE,
    help="read the coordinates of every dimension of the grid, with get_first_ctaid.v4 or ::y and ::z",
)  # fmt: skip
def every_dimension(kernel: Kernel) -> Iterator[Outcome]:
    """A kernel with a grid of more dimensions reads the coordinates of each."""
    view, flow = responses(kernel), flowing(kernel)
    if not view.coordinates:
        return
    for axis in AXES[1:]:
        own = flow.readers.get("%ctaid", []) + flow.readers.get(f"%ctaid.{axis}", [])
        own = [op for op in own if _reads_axis(op, axis)]
        if own and not any(_gives(kernel, query, axis) for query in view.coordinates):
            yield kernel.finding(
                "CLC-20",
                f"the kernel starts from %ctaid.{axis} but never reads the {axis} coordinate of a"
                " response: coordinates are one for each dimension, not linear",
                view.coordinates[0], own[0], f"reads %ctaid.{axis}", severity="warning",
            )  # fmt: skip


def _reads_axis(op: Op, axis: str) -> bool:
    return any(
        isinstance(each, Name)
        and (each.name == f"%ctaid.{axis}" or (each.name == "%ctaid" and axis in each.component))
        for each in op.operands[1:]
    )


def _gives(kernel: Kernel, query: Op, axis: str) -> bool:
    result = query.role("result")
    if not isinstance(result, Vector):
        return query.has(f"get_first_ctaid::{axis}")
    place = AXES.index(axis)
    element = result.elements[place] if place < len(result.elements) else None
    return isinstance(element, Name) and any(
        query.index in kernel.values.reaching(element.name, op.index)
        for op in flowing(kernel).readers.get(element.name, ())
    )


# --- the end --------------------------------------------------------------------------------------


@rule(
    "CLC-16", "error", section="9.7.13.17",
    help="wait for the answer of every request that was issued, then for the cluster, and exit",
)  # fmt: skip
def drained_before_exit(kernel: Kernel) -> Iterator[Outcome]:
    """No CTA exits with a request in flight, or while an arrival of another CTA is on its way to it."""
    view = responses(kernel)
    if not view.requests or view.calls or view.unknown_barriers:
        return
    yield from _in_flight(kernel, view)
    yield from _arrives_late(kernel, view)


def _in_flight(kernel: Kernel, view: Responses) -> Iterator[Outcome]:
    """Two requests before the first answer is read, and an exit after one declined answer."""
    paths = kernel.paths
    for first in view.requests:
        if first.ring is None:
            continue
        waits = kernel.indices(view.waits(first.ring))
        for second in view.requests:
            pair = second is not first and second.ring is first.ring
            crowds = paths.crowds_of(first.op, second.op) if pair else []
            if not any(
                paths.find(
                    crowd, (first.op.index,), (second.op.index,), avoid=waits, certain=True
                )
                for crowd in crowds
            ):
                continue
            leaving = _leave_when_declined(kernel, view, waits)
            if leaving is not None:
                yield kernel.finding(
                    "CLC-16",
                    "a second request is issued before the first is answered, and every thread leaves"
                    " at the first declined answer: the other answer may be written to a CTA that has"
                    " exited",
                    second.op, leaving, "leaves here when the response is declined",
                )  # fmt: skip
            return


def _leave_when_declined(kernel: Kernel, view: Responses, waits: set[int]) -> Op | None:
    """Where everyone that reads a response leaves at a declined one without waiting again; None if not all do."""
    paths = kernel.paths
    found: Op | None = None
    for crowd in paths.crowds:
        mine = [op for op in view.is_canceled if crowd.may(kernel.threads(op)[0])]
        if not mine and any(crowd.may(kernel.threads(kernel.flow.ops[i])[0]) for i in waits):
            return None
        for query in mine:
            edges = _declined_behind(kernel, view, crowd, query)
            ends = kernel.indices(kernel.flow.exits)
            stays = not edges or any(
                not paths.find(crowd, (edge,), ends, avoid=waits, certain=True, open_=view.declined)
                for edge in edges
            )
            if stays:
                return None
            found = kernel.flow.ops[edges[0][0]]
    return found


def _declined_behind(kernel: Kernel, view: Responses, crowd: Crowd, query: Op) -> list[Edge]:
    """The branches at which a declined answer of this query shows first."""
    return [
        edge for edge in sorted(view.declined)
        if kernel.flow.ops[edge[0]].node.opcode.root in {"bra", *ENDS}
        and kernel.paths.find(crowd, (query.index,), (edge[0],), avoid=view.asked)
    ]  # fmt: skip


def _arrives_late(kernel: Kernel, view: Responses) -> Iterator[Outcome]:
    """An arrival in another CTA after a declined answer, with nothing that keeps that CTA there."""
    paths = kernel.paths
    if kernel.shape.ranks == 1 or not kernel.shape.cluster_known:
        return
    stops = kernel.indices(kernel.ops(*WAITS)) | view.cluster_waits
    ends = kernel.indices(kernel.flow.exits)
    for arrive in kernel.ops(*ARRIVES):
        if where(kernel, arrive, "mbar") == "own":
            continue
        value = kernel.value(arrive, "mbar")
        target = None if value is None or value.cta is None else value.cta.number()
        if target is None:
            continue
        for crowd in paths.crowds_of(arrive):
            late = crowd.rank != target and _late(kernel, view, crowd, arrive, ends)
            if late and _gone(kernel, view, target, stops, ends):
                yield kernel.finding(
                    "CLC-16",
                    f"this arrival in the CTA of rank {target} can come after a declined response,"
                    f" when that CTA has exited: nothing keeps it until the arrival is there",
                    arrive, view.reads[0] if view.reads else None, "the declined response is read here",
                )  # fmt: skip
                return


def _late(kernel: Kernel, view: Responses, crowd: Crowd, arrive: Op, ends: set[int]) -> bool:
    """Whether a declined answer is followed by this arrival and then by the exit, no cluster barrier behind."""
    paths, goal = kernel.paths, (arrive.index,)
    queries = [op.index for op in view.is_canceled if crowd.may(kernel.threads(op)[0])]
    closed = view.granted
    if not any(
        paths.find(crowd, (query,), goal, avoid=view.cluster_waits, closed=closed)
        for query in queries
    ):
        return False
    arrives = kernel.indices(kernel.ops("barrier.cluster.arrive"))
    return not paths.find(crowd, goal, arrives) and paths.find(crowd, goal, ends)


def _gone(
    kernel: Kernel, view: Responses, rank: int, stops: set[int], ends: set[int]
) -> bool:
    """Whether all threads of a CTA may exit after a declined answer without waiting for anything."""
    paths = kernel.paths
    crowds = [crowd for crowd in paths.crowds if crowd.rank == rank]
    for crowd in crowds:
        queries = [op for op in view.is_canceled if crowd.may(kernel.threads(op)[0])]
        starts: list[int | Edge] = [
            edge for query in queries for edge in _declined_behind(kernel, view, crowd, query)
        ]
        if not starts:
            starts = [-1]
        if not paths.find(crowd, starts, ends, avoid=stops, certain=True, open_=view.declined):
            return False
    return bool(crowds)
