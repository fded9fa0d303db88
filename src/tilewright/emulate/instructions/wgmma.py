"""wgmma: a warpgroup's products from shared memory, in groups that are waited for.

Each warp multiplies its 16 rows. Its registers get the result when it issues: ptxas makes whoever reads them wait.
The reads of shared memory go on until the group is over, which takes all four warps' commits and happens at any
time after; a wait of one warp tells it that all four have read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulate.clocks import SEEN
from tilewright.emulate.instructions import instruction
from tilewright.emulate.operations import Operation, new_event
from tilewright.emulate.registers import PRED, U32, U64
from tilewright.emulate.told import decoded, told
from tilewright.emulate.warp import Condition, Wait
from tilewright.emulate.wgmma import wgmma_form
from tilewright.ptx.nodes import Vector

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tilewright.emulate.cluster import Cta
    from tilewright.emulate.decoder import Decoder
    from tilewright.emulate.events import AsyncEvent
    from tilewright.emulate.instructions import Outcome, Run
    from tilewright.emulate.registers import Where
    from tilewright.emulate.warp import Warp
    from tilewright.emulate.wgmma import Wgmma
    from tilewright.ptx.flow import Op

WARPS = 4


class Warpgroup(Condition):
    """Products of one warpgroup.

    Attributes:
        key: of its marks: (key, g) says that group g is over.
        open: each warp's reads that are in no group yet.
        groups: reads of each group, of all four warps.
        committed: groups that each warp has made.
        over: groups that are over, counted in order.
    """

    def __init__(self, cta: Cta, index: int) -> None:
        super().__init__()
        self.cta = cta
        self.name = f"{cta.who} warpgroup {index}"
        self.key = ("wgmma", cta.cluster.index, cta.rank, index)
        self.open: list[list[AsyncEvent]] = [[] for _ in range(WARPS)]
        self.groups: list[list[AsyncEvent]] = []
        self.committed = [0] * WARPS
        self.over = 0
        self.last: Operation | None = None

    def commit(self, warp: Warp, op: Op) -> None:
        """A warp's reads since its last commit become its part of a group."""
        member = warp.index % WARPS
        number = self.committed[member]
        self.committed[member] += 1
        if number == len(self.groups):
            self.groups.append([])
        self.groups[number] += self.open[member]
        self.open[member] = []
        if min(self.committed) > number:
            self._begin(number, warp, op)

    def _begin(self, number: int, warp: Warp, op: Op) -> None:
        """All four have committed: the group may end at any time, after those before it."""

        def end() -> None:
            for event in self.groups[number]:
                event.marks.append((self.key, number))
            self.over = number + 1
            self.cta.machine.wake(self)

        event = new_event(warp, 0, op, "wgmma")
        ending = Operation(self.cta.machine, event, [end])
        before, self.last = self.last, ending
        if before is None or before.done:
            ending.start()
        else:
            before.after_done.append(ending.start)

    def missing(self, number: int) -> str:
        """Warps whose commit a group lacks, for the story of a deadlock."""
        absent = [str(member) for member, count in enumerate(self.committed) if count <= number]
        return (
            f"; warps {', '.join(absent)} of it have not committed group {number}" if absent else ""
        )


def warpgroup_of(warp: Warp) -> Warpgroup:
    """The warpgroup that a warp belongs to."""
    groups: dict[int, Warpgroup] = warp.cta.extras.setdefault("warpgroups", {})  # type: ignore[assignment]
    index = warp.index // WARPS
    if index not in groups:
        groups[index] = Warpgroup(warp.cta, index)
        if not warp.machine.extras.setdefault("warpgroups checked at exit", False):
            warp.machine.extras["warpgroups checked at exit"] = True
            warp.machine.exit_checks.append(_leftovers)
    return groups[index]


def _leftovers(cta: Cta) -> None:
    """Products that nobody committed are never waited for."""
    groups: dict[int, Warpgroup] = cta.extras.get("warpgroups", {})  # type: ignore[assignment]
    for group in groups.values():
        for event in [event for events in group.open for event in events][:1]:
            cta.machine.report(
                "WG-02",
                f"{group.name} leaves with {event.who()} in no group: it was never waited for",
                event.op,
            )


@instruction("wgmma.fence")
def wgmma_fence(_op: Decoder) -> Run:
    """Orders accesses to registers, which happen in order here."""

    def run(_warp: Warp, _where: Where) -> None:
        return

    return run


@instruction("wgmma.commit_group", visible=True)
def wgmma_commit_group(op: Decoder) -> Run:
    """What the warp has issued since the last commit is a group."""

    def run(warp: Warp, _where: Where) -> None:
        warpgroup_of(warp).commit(warp, op.op)

    return run


@instruction("wgmma.wait_group", visible=True)
def wgmma_wait_group(op: Decoder) -> Run:
    """Wait until at most so many groups are not over."""
    left = op.immediate(op.operands[0])

    def run(warp: Warp, where: Where) -> Outcome:
        group = warpgroup_of(warp)
        needed = group.committed[warp.index % WARPS] - left

        def resume() -> None:
            if needed > 0:
                warp.clocks.learn(where, group.key, needed - 1, (SEEN,))

        def story() -> str:
            return (
                f"{warp.who} waits for wgmma group {needed - 1} of {group.name}, of which {group.over} are over"
                f"{group.missing(needed - 1)}"
            )

        return Wait(group, lambda: group.over >= needed, story, resume)

    return run


@instruction("wgmma.mma_async", visible=True)
def wgmma_mma_async(op: Decoder) -> Run:
    """D = A B + D, A in registers or in shared memory."""
    form = decoded(op, lambda: wgmma_form(op.modifiers))
    results = [op.destination(each, U32) for each in op.elements(op.operands[0])]
    in_registers = isinstance(op.operands[1], Vector)
    a = [op.source(each, U32 if in_registers else U64) for each in op.elements(op.operands[1])]
    b = op.source(op.operands[2], U64)
    accumulates = op.source(op.operands[3], PRED)
    signs = [op.immediate(each) for each in op.operands[4:]]
    negate_a, negate_b = (sign == -1 for sign in [*signs, 1, 1][:2])
    transposes = signs[2:]
    transposed_b = bool(transposes and transposes[-1])
    transposed_a = bool(len(transposes) == 2 and transposes[0])

    def run(warp: Warp, where: Where) -> None:
        machine, cta = warp.machine, warp.cta
        with told(machine, op.op, warp.who):
            event = new_event(warp, 0, op.op, "wgmma")
            if in_registers:
                left = form.a_from_registers(np.stack([warp.rows[U32][row] for row in a]))
            else:
                first = 16 * (warp.index % WARPS)
                addresses = form.a_addresses(warp.first(a[0], U64, where), transposed=transposed_a)
                left = _read(form, event, cta, addresses[first : first + 16])
            addresses = form.b_addresses(warp.first(b, U64, where), transposed=transposed_b)
            right = _read(form, event, cta, addresses)
            warpgroup_of(warp).open[warp.index % WARPS].append(event)
            rows = warp.rows[U32]
            before = None
            if warp.first(accumulates, PRED, where):
                before = np.stack([rows[row] for row in results])
            found = form.multiply(left, right, before, negate_a=negate_a, negate_b=negate_b)
        for row, values in zip(results, found, strict=True):
            rows[row][:] = values

    return run


def _read(
    form: Wgmma, event: AsyncEvent, cta: Cta, addresses: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """Elements at addresses of the CTA's own shared memory."""
    return cta.machine.accesses.async_elements(event, cta.shared, addresses, form.element_bytes)
