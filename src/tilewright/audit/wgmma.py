"""Rules of wgmma: fences, groups, what is released when, and who may execute it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.audit.copies import WAITS, loads
from tilewright.audit.rules import Outcome, rule
from tilewright.audit.tma_ring import gone_before_arrival, unheard_receivers, uses_wgmma
from tilewright.ptx.nodes import Name, Vector
from tilewright.ptx.values import defined_by

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel, Ring
    from tilewright.ptx.flow import Op
    from tilewright.ptx.nodes import Operand

WARPGROUP = 128
MMA = "wgmma.mma_async"
MOVES = frozenset({"mov"})
"""Compilers put them between instructions on one accumulator; ptxas drops them again."""


def _avoid(kernel: Kernel, op: Op, through: list[Op]) -> set[int]:
    return kernel.indices(through) | kernel.elsewhere(op)


@rule(
    "WG-01", "error", section="9.7.15.7.1",
    help="put wgmma.fence before the first wgmma and after every touch of its registers",
)  # fmt: skip
def fenced_registers(kernel: Kernel) -> Iterator[Outcome]:
    """wgmma.fence lies before the first wgmma, and between any touch of its registers and the next wgmma."""
    fences = kernel.ops("wgmma.fence")
    touching: dict[str, list[Op]] = {}
    for op in kernel.flow.ops:
        if not op.is_a("wgmma") and op.node.opcode.root not in MOVES:
            for name in defined_by(op):
                touching.setdefault(name, []).append(op)
    for op in kernel.ops(MMA):
        avoid = _avoid(kernel, op, [*fences, *kernel.ops(MMA)])
        if kernel.flow.path((-1,), (op.index,), avoid):
            yield kernel.finding(
                "WG-01",
                "first wgmma with no wgmma.fence before it: it may read registers and shared memory before"
                " they are written",
                op,
            )
            continue
        for name in [*_registers(op.role("d")), *_registers(op.role("a"))]:
            touch = next(
                (
                    t
                    for t in touching.get(name, ())
                    if kernel.flow.path((t.index,), (op.index,), _avoid(kernel, op, fences))
                ),
                None,
            )
            if touch is not None:
                yield kernel.finding(
                    "WG-01",
                    f"no wgmma.fence between a write of {name} and the wgmma that uses it",
                    op, touch, "written here",
                )  # fmt: skip
                break


def _registers(operand: Operand | None) -> list[str]:
    if isinstance(operand, Vector):
        return [element.name for element in operand.elements if isinstance(element, Name)]
    return []


@rule(
    "WG-02", "error", section="9.7.15.7.3",
    help="close the batch with wgmma.commit_group before wgmma.wait_group",
)  # fmt: skip
def committed_before_wait(kernel: Kernel) -> Iterator[Outcome]:
    """wgmma.commit_group lies between wgmma and the wait_group that is to wait for it."""
    commits = kernel.ops("wgmma.commit_group")
    for wait in kernel.ops("wgmma.wait_group"):
        avoid = _avoid(kernel, wait, [*commits, *kernel.ops("wgmma.wait_group")])
        op = next(
            (
                mma
                for mma in reversed(kernel.ops(MMA))
                if kernel.together(mma, wait)
                and kernel.flow.path((mma.index,), (wait.index,), avoid)
            ),
            None,
        )
        if op is not None:
            yield kernel.finding(
                "WG-02",
                "wait_group with no commit_group after the wgmma before it: what is not committed is not"
                " waited for, and what follows races with it",
                wait, op, "issued here",
            )  # fmt: skip


# --- when it is done ------------------------------------------------------------------------------


def _empty_rings(kernel: Kernel) -> list[Ring]:
    """Rings that threads wait on before they copy: those that release slots."""
    found: list[Ring] = []
    full = [kernel.ring(copy.op) for copy in loads(kernel)]
    for op in kernel.ops(*WAITS):
        ring = kernel.ring(op)
        if ring is None or ring in full or ring in found:
            continue
        if any(
            kernel.together(op, copy.op) and kernel.flow.path((op.index,), (copy.op.index,))
            for copy in loads(kernel)
        ):
            found.append(ring)
    return found


@rule(
    "WG-03", "error", section="9.7.15.7.3",
    help="wait with wgmma.wait_group before reading accumulators or releasing the slot that was read",
)  # fmt: skip
def done_before_use(kernel: Kernel) -> Iterator[Outcome]:
    """wait_group lies between wgmma and the read of its accumulators or the release of its shared memory."""
    mmas = kernel.ops(MMA)
    if not mmas:
        return
    waits = kernel.ops("wgmma.wait_group")
    written = {name: op for op in mmas for name in _registers(op.role("d"))}
    for ring in _empty_rings(kernel):
        for arrive in kernel.of_ring(ring, "mbarrier.arrive"):
            op = _unwaited(kernel, mmas, waits, arrive)
            if op is not None and not arrive.has("expect_tx"):
                yield kernel.finding(
                    "WG-03",
                    f"slot released on {ring.name} while wgmma may still read it: no wait_group between,"
                    " and the next copy overwrites the tile",
                    arrive, op, "issued here",
                )  # fmt: skip
    yield from _unsure_releases(kernel, waits)
    for reader in kernel.flow.ops:
        if reader.is_a("wgmma") or reader.node.opcode.root in MOVES:
            continue
        name = next((n for o in reader.operands for n in _names(o) if n in written), None)
        if name is None or name in defined_by(reader):
            continue
        of = [op for op in mmas if name in _registers(op.role("d"))]
        op = _unwaited(kernel, of, waits, reader) or _left_in_flight(kernel, of, waits, reader)
        if op is not None:
            yield kernel.finding(
                "WG-03",
                f"accumulator {name} read with no wait_group that covers the wgmma that writes it",
                reader, op, "issued here",
            )  # fmt: skip
            return


def _names(operand: Operand) -> list[str]:
    return [operand.name] if isinstance(operand, Name) else _registers(operand)


def _unwaited(kernel: Kernel, mmas: list[Op], waits: list[Op], goal: Op) -> Op | None:
    """The last wgmma from which control comes to `goal` with no wait between."""
    avoid = _avoid(kernel, goal, waits)
    for op in reversed(mmas):
        if kernel.together(op, goal) and kernel.flow.path((op.index,), (goal.index,), avoid):
            return op
    return None


def _left_in_flight(kernel: Kernel, mmas: list[Op], waits: list[Op], goal: Op) -> Op | None:
    """A wgmma whose group is the last one before a wait that leaves a group in flight, and `goal` comes next."""
    commits = kernel.ops("wgmma.commit_group")
    for wait in waits:
        left = kernel.value(wait, "groups")
        number = None if left is None else left.number()
        if not number or not kernel.flow.path(
            (wait.index,), (goal.index,), _avoid(kernel, goal, waits)
        ):
            continue
        for op in reversed(mmas):
            last = [
                c for c in commits
                if kernel.flow.path((op.index,), (c.index,), _avoid(kernel, goal, [*commits, *waits]))
                and kernel.flow.path((c.index,), (wait.index,), _avoid(kernel, goal, [*commits, *waits]))
            ]  # fmt: skip
            if last and kernel.together(op, goal):
                return op
    return None


def _unsure_releases(kernel: Kernel, waits: list[Op]) -> Iterator[Outcome]:
    """Slots that are released while groups are in flight: older ones, one hopes."""
    for wait in waits:
        left = kernel.value(wait, "groups")
        number = None if left is None else left.number()
        for ring in _empty_rings(kernel) if number else ():
            for arrive in kernel.of_ring(ring, "mbarrier.arrive"):
                if kernel.flow.path((wait.index,), (arrive.index,), _avoid(kernel, arrive, waits)):
                    yield kernel.undecided(
                        "WG-03",
                        f"{number} groups are in flight when a slot is released on {ring.name}: whether that slot's is"
                        " older is not known",
                        wait,
                    )
                    return


# --- the cluster ----------------------------------------------------------------------------------


@rule(
    "WG-04", "error", section="9.7.9.27.1.2",
    help="arrive on the empty barrier of every CTA that multicasts into this one (mapa)",
)  # fmt: skip
def release_every_writer(kernel: Kernel) -> Iterator[Outcome]:
    """A warpgroup releases a slot to every CTA that multicasts into it, not to its own only."""
    if uses_wgmma(kernel):
        yield from unheard_receivers(kernel, "WG-04")


@rule(
    "WG-05", "error", section="2.2.2",
    help="end with barrier.cluster, or let the producer wait until every slot is released",
)  # fmt: skip
def alive_to_the_end(kernel: Kernel) -> Iterator[Outcome]:
    """No CTA exits while a warpgroup of a peer may still arrive on its barriers."""
    if uses_wgmma(kernel):
        yield from gone_before_arrival(kernel, "WG-05")


# --- who may --------------------------------------------------------------------------------------


@rule(
    "WG-06", "error", section="9.7.15.7.1",
    help="compile for sm_90a, and let all 128 threads of a warpgroup execute the instruction",
)  # fmt: skip
def whole_warpgroups(kernel: Kernel) -> Iterator[Outcome]:
    """Target sm_90a alone has wgmma, and whole warpgroups execute it."""
    ops = kernel.ops("wgmma")
    target = kernel.module.target[:1]
    if ops and target and target[0] != "sm_90a":
        yield kernel.finding("WG-06", f"wgmma with target {target[0]}: only sm_90a has it", ops[0])
        return
    for op in ops:
        mask = kernel.threads(op)[0]
        whole = mask.shape[1] // WARPGROUP * WARPGROUP
        groups = mask[:, :whole].reshape(mask.shape[0], -1, WARPGROUP).sum(axis=2)
        part = groups[(groups > 0) & (groups < WARPGROUP)]
        rest = int(np.max(mask[:, whole:].sum(axis=1), initial=0))
        few = int(part[0]) if part.size else rest
        if few:
            yield kernel.finding(
                "WG-06",
                f"{op.entry} reached by {few} threads of a warpgroup: all {WARPGROUP} must execute it",
                op,
            )
            return
