"""tcgen05 by a warp: allocation, loads and stores of tensor memory, their waits, and the fences.

A load fills its registers when it is issued and goes on reading until tcgen05.wait::ld; a store writes when it is
issued and is over with tcgen05.wait::st. Who acts on the cells in between is found by `tensor_memory`, not shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulate.clocks import BEFORE, SEEN, TENSOR
from tilewright.emulate.faults import Fault
from tilewright.emulate.instructions import instruction
from tilewright.emulate.operations import new_event
from tilewright.emulate.registers import U32
from tilewright.emulate.tensor_memory import (
    CellAccess,
    span,
    tensor_memory,
)
from tilewright.emulate.tensor_pairs import Asking, ask, give_back, settle
from tilewright.emulate.tmem import (
    LANES,
    check_quarter,
    column_of,
    columns_spanned,
    fragment,
    lane_of,
    load,
    store,
)
from tilewright.emulate.told import told
from tilewright.emulate.warp import Wait

if TYPE_CHECKING:
    from tilewright.emulate.decoder import Decoder
    from tilewright.emulate.events import AsyncEvent
    from tilewright.emulate.instructions import Outcome, Run
    from tilewright.emulate.registers import Where
    from tilewright.emulate.tensor_memory import TensorMemory
    from tilewright.emulate.warp import Warp
    from tilewright.ptx.flow import Op

FIRST = np.zeros(1, np.int64)


def ctas_of(op: Decoder) -> int:
    """1 or 2, of `.cta_group`."""
    return 2 if op.has("cta_group::2") else 1


def check_group(warp: Warp, op: Op, ctas: int, rule: str = "TC-04") -> None:
    """All tcgen05 instructions of a kernel have one `.cta_group`."""
    first = warp.machine.extras.setdefault("cta_group", (ctas, op))
    assert isinstance(first, tuple)  # noqa: S101  (made here)
    if first[0] != ctas:
        warp.machine.report(
            rule,
            f"{warp.who}: cta_group::{ctas} in a kernel with cta_group::{first[0]}",
            op,
            first[1],
            f"cta_group::{first[0]} here",
        )


# --- allocation -------------------------------------------------------------------------------------------------------


@instruction("tcgen05.alloc", visible=True)
def tcgen05_alloc(op: Decoder) -> Run:
    """Columns for the CTA, or the same ones for both of a pair; their address goes to shared memory."""
    address, columns = op.address(op.operands[0]), op.source(op.operands[1], U32)
    space = op.spaces[0] if op.spaces else ""
    ctas, place = ctas_of(op), op.op

    def run(warp: Warp, where: Where) -> Outcome:
        check_group(warp, place, ctas)
        memory = tensor_memory(warp.cta)
        count = warp.first(columns, U32, where)
        with told(warp.machine, place, warp.who):
            memory.allocations.check_request(count)
        asking = ask(memory, "alloc", Asking(place, warp, count), ctas)

        def resume() -> None:
            value = np.array([[asking.address]], np.uint32)
            at = warp.addresses(address, FIRST)
            warp.machine.accesses.store(warp, place, space, at, value, FIRST)

        return Wait(memory, lambda: asking.done, asking.story, resume)

    return run


@instruction("tcgen05.dealloc", visible=True)
def tcgen05_dealloc(op: Decoder) -> Run:
    """Columns go back. Of a pair the two warps may or may not wait for one another: the schedule says which."""
    address, columns = (op.source(each, U32) for each in op.operands[:2])
    ctas, place = ctas_of(op), op.op

    def run(warp: Warp, where: Where) -> Outcome:
        check_group(warp, place, ctas)
        memory = tensor_memory(warp.cta)
        at, count = (warp.first(row, U32, where) for row in (address, columns))
        with told(warp.machine, place, warp.who):
            memory.allocations.check_owned(at, count)
        event = new_event(warp, _first_lane(where), place, "tcgen05.dealloc")
        memory.enter(CellAccess(event, span(0, LANES), span(column_of(at), count), writes=True))
        asking = Asking(place, warp, count, at)
        if ctas == 2 and not _waits_for_peer(warp):
            give_back(memory, asking)
            settle(memory)
            return None
        asking = ask(memory, "dealloc", asking, ctas)
        return Wait(memory, lambda: asking.done, asking.story, lambda: None)

    return run


def _waits_for_peer(warp: Warp) -> bool:
    """PTX allows both; one answer for a whole run."""
    extras = warp.machine.extras
    if "dealloc waits" not in extras:
        strategy = warp.machine.strategy
        extras["dealloc waits"] = strategy.seed == 0 or strategy.random.random() < 0.5
    return bool(extras["dealloc waits"])


@instruction("tcgen05.relinquish_alloc_permit", visible=True)
def tcgen05_relinquish(op: Decoder) -> Run:
    """The CTA allocates no more."""
    del op

    def run(warp: Warp, _where: Where) -> None:
        tensor_memory(warp.cta).allocations.relinquish()

    return run


# --- loads and stores -------------------------------------------------------------------------------------------------


class _Form:
    """Shape, number and operands of one ld or st."""

    def __init__(self, op: Decoder, what: str) -> None:
        if op.has("red") or op.modifiers[0] == "red":
            raise op.unknown()
        self.what, self.op = what, op.op
        self.shape = op.one_of("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2")
        if not self.shape:
            raise op.unknown()
        self.num = next(int(m[1:]) for m in op.modifiers if m[0] == "x" and m[1:].isdigit())
        self.packs = op.has("pack::16b") or op.has("unpack::16b")
        self.registers = len(fragment(self.shape, self.num).lanes)

    def access(
        self, warp: Warp, addresses: np.ndarray[tuple[int], np.dtype[np.int64]], split: int
    ) -> tuple[TensorMemory, int, AsyncEvent]:
        """Check and enter the access of a warp: the memory, the address, the event."""
        memory = tensor_memory(warp.cta)
        address = int(addresses[0])
        with told(warp.machine, self.op, warp.who):
            if (addresses != address).any():
                raise Fault("TC-15", f"{self.what} whose lanes give different addresses")
            check_quarter(address, self.shape, warp.index)
            count = columns_spanned(self.shape, self.num, split=split, packs=self.packs)
            first = column_of(address)
            memory.allocations.check_columns(first, count, self.what)
        event = new_event(warp, 0, self.op, self.what)
        lanes = span(lane_of(address), 32 if self.shape == "32x32b" else 16)
        columns = span(first, count)
        if split:
            half = columns_spanned(self.shape, self.num, packs=self.packs)
            columns = span(first, half) | span(first + split, half)
        memory.enter(CellAccess(event, lanes, columns, writes=self.what == "tcgen05.st"))
        memory.open.setdefault((self.what, warp.index), []).append(event)
        return memory, address, event


@instruction("tcgen05.ld", visible=True)
def tcgen05_ld(op: Decoder) -> Run:
    """Cells to registers."""
    form = _Form(op, "tcgen05.ld")
    results = [op.destination(each, U32) for each in op.elements(op.operands[0])]
    address = op.address(op.operands[1])
    split = op.immediate(op.operands[2]) if form.shape == "16x32bx2" else 0
    if len(results) != form.registers:
        raise op.unknown(f"`{op.op.name}` with {len(results)} registers")

    def run(warp: Warp, where: Where) -> None:
        addresses = warp.addresses(address, warp.lanes(where))
        memory, at, _ = form.access(warp, addresses, split)
        found = load(memory.cells, at, form.shape, form.num, split=split, packs=form.packs)
        for row, values in zip(results, found, strict=True):
            warp.rows[U32][row][:] = values

    return run


@instruction("tcgen05.st", visible=True)
def tcgen05_st(op: Decoder) -> Run:
    """Registers to cells."""
    form = _Form(op, "tcgen05.st")
    address = op.address(op.operands[0])
    split = op.immediate(op.operands[1]) if form.shape == "16x32bx2" else 0
    sources = [op.source(each, U32) for each in op.elements(op.operands[-1])]
    if len(sources) != form.registers:
        raise op.unknown(f"`{op.op.name}` with {len(sources)} registers")

    def run(warp: Warp, where: Where) -> None:
        addresses = warp.addresses(address, warp.lanes(where))
        memory, at, _ = form.access(warp, addresses, split)
        registers = np.stack([warp.rows[U32][row] for row in sources])
        store(memory.cells, at, registers, form.shape, form.num, split=split, unpacks=form.packs)

    return run


@instruction("tcgen05.wait::ld", "tcgen05.wait::st", visible=True)
def tcgen05_wait(op: Decoder) -> Run:
    """The warp's loads, or its stores, are over."""
    what = "tcgen05.ld" if op.has("wait::ld") else "tcgen05.st"

    def run(warp: Warp, where: Where) -> None:
        cta = warp.cta
        events = tensor_memory(cta).open.pop((what, warp.index), [])
        key = (what, cta.cluster.index, cta.rank, warp.index)
        number = warp.clocks.now
        for event in events:
            event.marks.append((key, number))
        warp.clocks.learn(where, key, number, (SEEN,))

    return run


# --- fences -----------------------------------------------------------------------------------------------------------


@instruction("tcgen05.fence::before_thread_sync", visible=True)
def tcgen05_fence_before(op: Decoder) -> Run:
    """What is known is known through this fence; signals without release carry that as well."""
    del op

    def run(warp: Warp, where: Where) -> None:
        warp.clocks.raise_level(where, SEEN, BEFORE)

    return run


@instruction("tcgen05.fence::after_thread_sync", visible=True)
def tcgen05_fence_after(op: Decoder) -> Run:
    """What came through the other fence is known to tcgen05 instructions after it, waits without acquire included."""
    del op

    def run(warp: Warp, where: Where) -> None:
        warp.clocks.raise_level(where, BEFORE, TENSOR)

    return run


def _first_lane(where: Where) -> int:
    return 0 if where is True else int(np.argmax(where))
