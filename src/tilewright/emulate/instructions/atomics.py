"""atom and red: PTX ISA, 9.7.13.5 and 9.7.13.6. Lanes act one after the other, lowest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.emulate.instructions import instruction
from tilewright.emulate.instructions.floating import bf16_to_f32, f32_to_bf16
from tilewright.emulate.instructions.loads import acquire_from, publish_at, space_of
from tilewright.emulate.registers import B128, UNSIGNED, WIDTHS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilewright.emulate.decoder import Decoder
    from tilewright.emulate.instructions import Run
    from tilewright.emulate.registers import Array, Where
    from tilewright.emulate.warp import Warp
    from tilewright.ptx.nodes import Operand

_OPERATIONS = ("and", "or", "xor", "cas", "exch", "add", "inc", "dec", "min", "max")
_NUMPY: dict[str, Any] = {
    "u32": np.uint32,
    "s32": np.int32,
    "b32": np.uint32,
    "u64": np.uint64,
    "s64": np.int64,
    "b64": np.uint64,
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "b16": np.uint16,
}


def combine(name: str, type_: str) -> Callable[[Array, Array], Array]:
    """old, operand -> new, on unsigned arrays of the type's bytes (packed types as they lie)."""
    if name == "exch":
        return lambda _old, new: new
    if name == "inc":
        return lambda old, top: np.where(old >= top, 0, old + 1).astype(old.dtype)
    if name == "dec":
        return lambda old, top: np.where((old == 0) | (old > top), top, old - 1).astype(old.dtype)
    logic: dict[str, Any] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
    if name in logic:
        return logic[name]  # type: ignore[no-any-return]
    function: Any = {"add": np.add, "min": np.minimum, "max": np.maximum}[name]
    if type_ in {"bf16", "bf16x2"}:

        def of_bf16(old: Array, new: Array) -> Array:
            x, y = (np.ascontiguousarray(v).view(np.uint16) for v in (old, new))
            return f32_to_bf16(function(bf16_to_f32(x), bf16_to_f32(y))).view(old.dtype)

        return of_bf16
    dtype = _NUMPY[type_.removesuffix("x2")]

    def typed(old: Array, new: Array) -> Array:
        x, y = (np.ascontiguousarray(v).view(dtype) for v in (old, new))
        found: Array = function(x, y).astype(dtype).view(old.dtype)
        return found

    return typed


def _decode(op: Decoder, memory: Operand, values: tuple[Operand, ...], out: Operand | None) -> Run:
    name = op.one_of(*_OPERATIONS)
    width = 128 if op.type == "b128" else WIDTHS[op.kind]
    kind = UNSIGNED[width]
    size = op.type_bytes(op.type)
    address, space = op.address(memory), space_of(op)
    elements = op.elements(values[0])
    rows_of = [op.source(e, kind) for e in elements]
    other = op.source(values[1], kind) if name == "cas" else None
    rows_to = [op.destination(e, kind) for e in op.elements(out)] if out is not None else []
    function = combine(name, op.type) if name != "cas" else None
    if kind == B128:
        raise op.unknown()
    acquires = op.has("acquire") or op.has("acq_rel") or op.has("sc")
    releases = op.has("release") or op.has("acq_rel") or op.has("sc")
    dtype = np.dtype(f"u{size}")
    count = len(elements)
    place_of = op.op

    def run(warp: Warp, where: Where) -> None:
        lanes = warp.lanes(where)
        addresses = warp.addresses(address, lanes)
        given = np.stack([warp.rows[kind][r][lanes] for r in rows_of], axis=1).astype(dtype)
        new = warp.rows[kind][other][lanes].astype(dtype) if other is not None else None
        olds = np.zeros((len(lanes), count), dtype)
        for i in range(len(lanes)):
            at, lane = addresses[i : i + 1], lanes[i : i + 1]
            old = warp.machine.accesses.load(
                warp, place_of, space, at, (size, count), lane, strong=True
            )
            olds[i] = old[0]
            result = old
            if new is not None:
                result = np.where(old == given[i : i + 1], new[i], old)
            elif function is not None:
                result = function(old, given[i : i + 1]).reshape(1, count)
            warp.machine.accesses.store(
                warp, place_of, space, at, np.ascontiguousarray(result, dtype), lane, strong=True
            )
        if acquires:
            acquire_from(warp, place_of, space, addresses, size * count, lanes, where)
        publish_at(
            warp, place_of, space, addresses, size * count, lanes, releases=releases, keeps=True
        )
        for i, row in enumerate(rows_to):
            warp.rows[kind][row][lanes] = olds[:, i]

    return run


@instruction("atom", visible=True)
def atom(op: Decoder) -> Run:
    """Read, combine, write; the old value is the result."""
    if op.has("noftz") and op.type not in {"f16", "bf16", "f16x2", "bf16x2"}:
        raise op.unknown()
    return _decode(op, op.operands[1], op.operands[2:], op.operands[0])


@instruction("red", visible=True)
def red(op: Decoder) -> Run:
    """The same without a result."""
    return _decode(op, op.operands[0], op.operands[1:], None)
