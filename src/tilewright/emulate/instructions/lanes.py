"""Lanes of a warp among themselves: shfl, vote, match, redux, elect, activemask, bar.warp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.emulate.instructions import instruction
from tilewright.emulate.program import lanes_of
from tilewright.emulate.registers import DTYPES, F32, PRED, S32, U32, U64
from tilewright.emulate.warp import lanes_text

if TYPE_CHECKING:
    from tilewright.emulate.decoder import Decoder
    from tilewright.emulate.instructions import Run
    from tilewright.emulate.registers import Array, Where
    from tilewright.emulate.warp import Warp

_BITS = np.uint32(1) << np.arange(32, dtype=np.uint32)
_LANE = np.arange(32)


def to_mask(lanes: Array) -> int:
    """32 bools as bits."""
    return int(_BITS[lanes].sum()) if lanes.any() else 0


def active(where: Where) -> Array:
    """`where` as 32 bools."""
    return np.ones(32, np.bool_) if where is True else np.asarray(where)


@instruction("bar.warp.sync", mask=0, visible=True)
def bar_warp(op: Decoder) -> Run:
    """Lanes of the mask meet; what each did before is seen by all."""
    row = op.source(op.operands[0], U32)

    def run(warp: Warp, where: Where) -> None:
        named = lanes_of(warp.first(row, U32, where))
        warp.clocks.meet(active(where) & named)

    return run


@instruction("shfl.sync", mask=4)
def shfl(op: Decoder) -> Run:
    """Read another lane's register: .up, .down, .bfly, .idx within segments."""
    mode = op.one_of("up", "down", "bfly", "idx")
    first, second = op.pair(op.operands[0])
    d = op.destination(first, U32)
    p = op.destination(second, PRED) if second is not None else None
    a, b, c = (op.source(o, U32) for o in op.operands[1:4])

    def run(warp: Warp, where: Where) -> None:
        rows = warp.rows[U32]
        by = (rows[b] & np.uint32(31)).astype(np.int64)
        clamp = (rows[c] & np.uint32(31)).astype(np.int64)
        segment = (rows[c] >> np.uint32(8) & np.uint32(31)).astype(np.int64)
        last = (_LANE & segment) | (clamp & ~segment)
        lowest = _LANE & segment
        if mode == "up":
            source = _LANE - by
            valid = source >= last
        elif mode == "down":
            source = _LANE + by
            valid = source <= last
        elif mode == "bfly":
            source = _LANE ^ by
            valid = source <= last
        else:
            source = lowest | (by & ~segment)
            valid = source <= last
        source = np.where(valid, source, _LANE) & 31
        np.copyto(rows[d], rows[a][source], where=where)
        if p is not None:
            np.copyto(warp.rows[PRED][p], valid, where=where)

    return run


@instruction("vote.sync", mask=2)
def vote(op: Decoder) -> Run:
    """all, any, uni of a predicate, or its ballot."""
    mode = op.one_of("all", "any", "uni", "ballot")
    d = op.destination(op.operands[0], U32 if mode == "ballot" else PRED)
    p, negated = op.predicate(op.operands[1])

    def run(warp: Warp, where: Where) -> None:
        lanes = active(where)
        held = (warp.rows[PRED][p] ^ negated) & lanes
        if mode == "ballot":
            np.copyto(warp.rows[U32][d], np.uint32(to_mask(held)), where=where)
            return
        everyone, nobody = bool((held == lanes).all()), not held.any()
        found = {"all": everyone, "any": not nobody, "uni": everyone or nobody}[mode]
        np.copyto(warp.rows[PRED][d], found, where=where)

    return run


@instruction("match.any.sync", "match.all.sync", mask=2)
def match(op: Decoder) -> Run:
    """Lanes with the same value: of each (.any), or of all (.all)."""
    kind = U64 if op.type == "b64" else U32
    first, second = op.pair(op.operands[0])
    d = op.destination(first, U32)
    p = op.destination(second, PRED) if second is not None else None
    a = op.source(op.operands[1], kind)
    of_all = op.has("all")

    def run(warp: Warp, where: Where) -> None:
        lanes = active(where)
        values = warp.rows[kind][a]
        found = np.zeros(32, np.uint32)
        if of_all:
            same = len(set(values[lanes].tolist())) == 1
            found[:] = to_mask(lanes) if same else 0
            if p is not None:
                np.copyto(warp.rows[PRED][p], same, where=where)
        else:
            for lane in np.flatnonzero(lanes).tolist():
                found[lane] = to_mask(lanes & (values == values[lane]))
        np.copyto(warp.rows[U32][d], found, where=where)

    return run


@instruction("redux.sync", mask=2)
def redux(op: Decoder) -> Run:
    """One value from all lanes."""
    kind = {"s32": S32, "f32": F32}.get(op.type, U32)
    d, a = op.destination(op.operands[0], kind), op.source(op.operands[1], kind)
    functions: dict[str, Any] = {
        "add": np.add,
        "min": np.minimum if op.has("NaN") else np.fmin,
        "max": np.maximum if op.has("NaN") else np.fmax,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }
    function = functions[op.one_of(*functions)]
    with_abs = op.has("abs")

    def run(warp: Warp, where: Where) -> None:
        values = warp.rows[kind][a][active(where)]
        found = function.reduce(np.abs(values) if with_abs else values, dtype=DTYPES[kind])
        np.copyto(warp.rows[kind][d], found, where=where)

    return run


@instruction("elect.sync", mask=1)
def elect(op: Decoder) -> Run:
    """One lane of the mask, the same each time in a run; which one, the seed decides."""
    first, second = op.pair(op.operands[0])
    d = op.destination(first, U32)
    p = op.destination(second, PRED) if second is not None else op.program.scratch(1)
    mask, place = op.source(op.operands[1], U32), op.op

    def run(warp: Warp, where: Where) -> None:
        lanes = active(where)
        left = lanes_of(warp.first(mask, U32, where)) & ~lanes
        if left.any():
            warp.machine.stop(
                "EL-01", f"{warp.who} {lanes_text(left)}: named by elect.sync, and gone", place
            )
        leader = int(np.flatnonzero(lanes)[warp.machine.elected(lanes)])
        np.copyto(warp.rows[U32][d], np.uint32(leader), where=where)
        np.copyto(warp.rows[PRED][p], leader == _LANE, where=where)

    return run


@instruction("activemask")
def activemask(op: Decoder) -> Run:
    """The lanes that execute this together."""
    d = op.destination(op.operands[0], U32)

    def run(warp: Warp, where: Where) -> None:
        np.copyto(warp.rows[U32][d], np.uint32(to_mask(active(where))), where=where)

    return run
