"""mapa, getctarank, st.async, red.async: addresses of peers and writes into them that run by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulate.instructions import instruction
from tilewright.emulate.instructions.atomics import combine
from tilewright.emulate.instructions.loads import space_of
from tilewright.emulate.instructions.mbarriers import barrier_at, place_of_barrier
from tilewright.emulate.layout import RANK_SHIFT, SHARED_WINDOW
from tilewright.emulate.operations import Operation, new_event
from tilewright.emulate.registers import U32, U64, UNSIGNED, WIDTHS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilewright.emulate.decoder import Decoder
    from tilewright.emulate.events import AsyncEvent
    from tilewright.emulate.instructions import Run
    from tilewright.emulate.memory import Place, Segment
    from tilewright.emulate.registers import Array, Where
    from tilewright.emulate.warp import Warp
    from tilewright.ptx.flow import Op

OFFSET_MASK = (1 << RANK_SHIFT) - 1


RANK_MAX = 255
"""What an address holds; a rank past it is none of any cluster either."""


@instruction("mapa")
def mapa(op: Decoder) -> Run:
    """The same offset in the CTA of a rank; of a rank that the cluster lacks an address that nothing may use (CLU-06)."""
    k = U64 if op.type == "u64" else U32
    d, a = op.destination(op.operands[0], k), op.source(op.operands[1], k)
    rank = op.source(op.operands[2], U32)
    generic = not op.spaces

    def run(warp: Warp, where: Where) -> None:
        lanes = warp.lanes(where)
        ranks = np.minimum(warp.rows[U32][rank][lanes], RANK_MAX).astype(np.int64)
        found = warp.rows[k][a][lanes].astype(np.int64) & OFFSET_MASK | ranks << RANK_SHIFT
        warp.rows[k][d][lanes] = found + SHARED_WINDOW if generic else found

    return run


@instruction("getctarank")
def getctarank(op: Decoder) -> Run:
    """The rank that an address names."""
    k = U64 if op.type == "u64" else U32
    d, a = op.destination(op.operands[0], U32), op.source(op.operands[1], k)

    def run(warp: Warp, where: Where) -> None:
        found = (warp.rows[k][a].astype(np.int64) & 0xFFFFFFFF) >> RANK_SHIFT
        np.copyto(warp.rows[U32][d], found, where=where, casting="unsafe")

    return run


@instruction("st.async", "red.async", visible=True)
def st_async(op: Decoder) -> Run:
    """Write, or reduce, into a CTA of the cluster; the bytes complete on a barrier there."""
    if len(op.operands) != 3:
        raise op.unknown()
    elements = op.elements(op.operands[1])
    width = WIDTHS[op.kind]
    kind, size = UNSIGNED[width], op.type_bytes(op.type)
    address, barrier = op.address(op.operands[0]), op.address(op.operands[2])
    rows_of = [op.source(e, kind) for e in elements]
    reduces = op.op.node.opcode.root == "red"
    name = op.one_of("and", "or", "xor", "add", "inc", "dec", "min", "max") if reduces else ""
    function = combine(name, op.type) if reduces else None
    space, place_op = space_of(op) or "", op.op

    def run(warp: Warp, where: Where) -> None:
        lanes = warp.lanes(where)
        values = np.stack([warp.rows[kind][r][lanes] for r in rows_of], axis=1)
        values = np.ascontiguousarray(values.astype(f"u{size}"))
        targets = zip(
            lanes.tolist(),
            warp.addresses(address, lanes).tolist(),
            warp.addresses(barrier, lanes).tolist(),
            values,
            strict=True,
        )
        for lane, to, signal, value in targets:
            _send(warp, lane, place_op, space, to, signal, value, function, reduces=reduces)

    return run


def _send(
    warp: Warp,
    lane: int,
    op: Op,
    space: str,
    to: int,
    signal: int,
    value: Array,
    function: Callable[[Array, Array], Array] | None,
    *,
    reduces: bool,
) -> None:
    """One lane's store or reduction as an operation of its own."""
    machine, nbytes = warp.machine, value.nbytes
    lanes, addresses = np.array([lane]), np.array([to], np.int64)
    place = next(iter(machine.accesses.targets(warp, op, space, addresses, nbytes, lanes)))
    there = place_of_barrier(warp, op, space, signal, lane)
    who = warp.thread_name(lane)
    if there.segment is not place.segment:
        machine.stop(
            "CLU-08",
            f"{who} writes {place.segment.describe(int(place.offsets[0]))} and signals "
            f"{there.segment.describe(int(there.offsets[0]))}: two CTAs",
            op,
        )
    if len(warp.cta.cluster.ctas) == 1:
        machine.stop("CLU-08", f"{who}: there is no cluster to write into", op)
    event = new_event(warp, lane, op, "red.async" if reduces else "st.async", strong=reduces)
    owner = place.segment.cta
    event.is_remote = owner is not warp.cta

    def deliver() -> None:
        at = slice(int(place.offsets[0]), int(place.offsets[0]) + nbytes)
        data = value.view(np.uint8)
        if function is not None:
            old = place.segment.data[at].view(value.dtype)
            data = np.ascontiguousarray(function(old, value)).view(np.uint8)
        machine.accesses.async_write(event, place.segment, at, data)
        signal_bytes(event, there, nbytes)

    operation = Operation(machine, event, [deliver], [owner] if owner is not None else [])
    operation.start()


def signal_bytes(event: AsyncEvent, there: Place, nbytes: int) -> None:
    """Bytes of a copy complete on a barrier, which must be live."""
    offset = int(there.offsets[0])
    complete_at(event, there.segment, offset, nbytes)


def complete_at(event: AsyncEvent, segment: Segment, offset: int, nbytes: int) -> None:
    """The same at an offset of a CTA's shared memory; the CTA must not have left."""
    cta = segment.cta
    if cta is not None:
        cta.check_there(cta.exit_rule(event), f"{event.who()} signals", event.op)
    barrier = barrier_at(event.warp, event.op, segment, offset, "MBAR-10", event.who())
    barrier.complete(nbytes, event, event.op, event.who())
    if cta is not None:
        cta.arrived.append(event)
