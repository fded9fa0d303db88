"""Mutants of cluster launch control: requests, answers, declines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mutants import Break, Subject, operator

from tilewright.ptx import print_operand, print_statement
from tilewright.ptx.nodes import Memory, Name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.ptx.flow import Op


def _checks(subject: Subject) -> list[Op]:
    return [
        op
        for op in subject.kernel.ops("clusterlaunchcontrol.query_cancel")
        if any(word.startswith("is_canceled") for word in op.node.opcode.modifiers)
    ]


def _loop(subject: Subject, op: Op) -> tuple[int, frozenset[int]] | None:
    """The innermost loop around an answer's reading."""
    return next(iter(subject.flow.loops(op.index)), None)


def _on_decline(subject: Subject, check: Op) -> Iterator[Op]:
    """The conditional branches back to the head of an answer's loop."""
    loop = _loop(subject, check)
    if loop is None:
        return
    header, members = loop
    for index in sorted(members):
        op = subject.flow.ops[index]
        if (
            op.node.opcode.root == "bra"
            and op.guard
            and header in subject.flow.following(index)
            and index > check.index
        ):
            yield op


def _always(op: Op) -> str:
    return print_statement(replace(op.node, guard=None))


@operator("CLC-08", breaks="undefined: a CTA that has seen a decline asks again")
def ask_after_decline(subject: Subject) -> Iterator[Break]:
    """The asking loop goes on whatever the answer was."""
    requests = subject.kernel.indices(subject.kernel.ops("clusterlaunchcontrol.try_cancel"))
    for check in _checks(subject):
        loop = _loop(subject, check)
        if loop is not None and requests & loop[1]:
            for branch in _on_decline(subject, check):
                yield Break(
                    "asks again after a decline", branch, subject.put(branch, _always(branch))
                )


@operator(
    "CLC-07", "CLC-17", "CLC-16",
    breaks="undefined, then deadlock: a reader takes the coordinates of a decline for a tile and waits for one more answer",
)  # fmt: skip
def work_after_decline(subject: Subject) -> Iterator[Break]:
    """A working loop goes on whatever the answer was."""
    requests = subject.kernel.indices(subject.kernel.ops("clusterlaunchcontrol.try_cancel"))
    for check in _checks(subject):
        loop = _loop(subject, check)
        if loop is not None and not requests & loop[1]:
            for branch in _on_decline(subject, check):
                yield Break(
                    "works on after a decline", branch, subject.put(branch, _always(branch))
                )


@operator("CLC-07", breaks="undefined: the coordinates of a declined answer are unspecified")
def read_declined(subject: Subject) -> Iterator[Break]:
    """get_first_ctaid without its predicate, or with the opposite one."""
    for op in subject.kernel.ops("clusterlaunchcontrol.query_cancel"):
        guard = op.node.guard
        if (
            any(word.startswith("get_first") for word in op.node.opcode.modifiers)
            and guard is not None
        ):
            yield Break("coordinates read whatever the answer", op, subject.put(op, _always(op)))
            turned = replace(op.node, guard=replace(guard, negated=not guard.negated))
            yield Break(
                "coordinates read when declined", op, subject.put(op, print_statement(turned))
            )


@operator(
    "CLC-07", "CLC-08", "CLC-17",
    breaks="undefined: a decline is taken for a tile, and a granted cluster is never computed",
)  # fmt: skip
def swap_granted(subject: Subject) -> Iterator[Break]:
    """What was granted counts as declined, and the other way round."""
    for check in _checks(subject):
        result = check.operands[0]
        for op in subject.flow.ops[check.index : check.index + 4]:
            if (
                op.node.opcode.root == "selp"
                and isinstance(result, Name)
                and op.operands[-1] == result
            ):
                to, yes, no, predicate = map(print_operand, op.node.operands)
                words = ".".join(op.node.opcode.modifiers)
                yield Break(
                    "granted and declined swapped",
                    op,
                    subject.put(op, f"selp.{words} {to}, {no}, {yes}, {predicate};"),
                    [check],
                )


@operator(
    "CLC-18", "CLC-06", "CLC-15",
    breaks="race: what is read is not the answer whose barrier was waited for",
)  # fmt: skip
def read_elsewhere(subject: Subject) -> Iterator[Break]:
    """An answer read 16 bytes from where it lies."""
    for check in _checks(subject):
        loads = [
            op
            for op in subject.kernel.ops("ld")
            if "shared" in op.name and op.index < check.index < op.index + 4
        ]
        for op in loads:
            yield Break("read 16 bytes on", op, subject.put(op, subject.shifted(op, "src", 16)))


@operator("CLC-02", breaks="undefined: both operands of a request must lie in the CTA that asks")
def answer_to_peer(subject: Subject) -> Iterator[Break]:
    """A request whose answer goes to a peer's address."""
    if subject.cluster < 2:
        return
    for op in subject.kernel.ops("clusterlaunchcontrol.try_cancel"):
        address = print_operand(subject.raw(op, "response")).strip("[]")
        text = print_statement(subject.with_operand(op, "response", Memory((Name("mutant"),))))
        scope = f"{{ .reg .b32 mutant; mapa.shared::cluster.u32 mutant, {address}, 1; {text} }}"
        yield Break("the answer goes to CTA 1", op, subject.put(op, scope))
