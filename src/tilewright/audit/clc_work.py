"""Rules of cluster launch control, last part: what becomes of the coordinates, and who is there at the end.

Whether every granted tile is processed once is a matter of execution. Here is what the text alone shows: a
coordinate that nobody uses or that no CTA makes its own, and an exit with a request in flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.audit.flowing import flowing, in_address, names_in, touches_memory
from tilewright.audit.responses import Responses, responses
from tilewright.audit.rules import Outcome, rule
from tilewright.ptx.nodes import Name, Vector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel
    from tilewright.ptx.flow import Op

QUERY_CANCEL = "9.7.13.18"
AXES = "xyz"


@rule(
    "CLC-12", "error", section=QUERY_CANCEL,
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
        if op.index in granted and touches_memory(op) and granted[op.index] & in_address(op)
    ]  # fmt: skip
    shared = [op for op in used if len(kernel.ranks(op)) > 1]
    if not shared or len(shared) != len(used):
        return
    if any(_joins(kernel, kernel.flow.ops[i], granted[i], own.get(i, set())) for i in granted):
        return
    if any(len(kernel.ranks(kernel.flow.ops[i])) < shape.ranks for i in granted):
        yield kernel.undecided(
            "CLC-12", "CTAs of the cluster treat the coordinates differently", queries[0]
        )
        return
    yield kernel.finding(
        "CLC-12",
        f"{shape.ranks} CTAs of the cluster use the coordinates of its first CTA as they are: all work"
        " on the same tile, and the others' are never processed",
        shared[0], queries[0], "gives the first CTA's coordinates",
    )  # fmt: skip


def _joins(kernel: Kernel, op: Op, granted: set[str], own: set[str]) -> bool:
    """Whether an instruction brings a coordinate together with the CTA's place, or lets go of it in memory."""
    if op.node.opcode.root == "st":
        value = op.role("value")
        stored = set(names_in(value)) if value is not None else set()
        return bool(stored & granted) or bool(in_address(op) & own - granted)
    del kernel
    return bool(own - granted) or (len(own) > 1 and len(granted | own) > 1)


@rule(
    "CLC-17", "error", section=QUERY_CANCEL,
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
    "CLC-20", "warning", section=QUERY_CANCEL,
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
