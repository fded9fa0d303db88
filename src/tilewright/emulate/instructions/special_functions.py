"""Approximate functions: rcp, sqrt, rsqrt, ex2, lg2, sin, cos, tanh.

The hardware's results are within documented errors of these, which are rounded to nearest from binary64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulate.instructions import instruction
from tilewright.emulate.instructions.floating import bf16_to_f32, f32_to_bf16, flushed
from tilewright.emulate.instructions.integer import computed
from tilewright.emulate.registers import F32, F64, U16, U32

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilewright.emulate.decoder import Decoder
    from tilewright.emulate.instructions import Run
    from tilewright.emulate.registers import Array

_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "rcp": lambda a: 1.0 / a,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1.0 / np.sqrt(a),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


@instruction(*_FUNCTIONS)
def special_function(op: Decoder) -> Run:
    """One function of one number."""
    function = _FUNCTIONS[op.op.node.opcode.root]
    ftz = op.has("ftz")
    if op.one_of("rz", "rm", "rp"):
        raise op.unknown()

    def single(a: Array) -> Array:
        given = flushed(a) if ftz else a
        found = function(given.astype(np.float64)).astype(np.float32)
        return flushed(found) if ftz else found

    if op.kind == F32:
        return computed(op, single, F32)
    if op.kind == F64:
        return computed(op, function, F64)
    packed, is_bf16 = op.type.endswith("x2"), "bf16" in op.type

    def of_halves(a: Array) -> Array:
        bits = np.ascontiguousarray(a).view(np.uint16)
        wide = bf16_to_f32(bits) if is_bf16 else bits.view(np.float16).astype(np.float32)
        found = function(wide.astype(np.float64)).astype(np.float32)
        out = f32_to_bf16(found) if is_bf16 else found.astype(np.float16).view(np.uint16)
        return np.ascontiguousarray(out).view(a.dtype)

    return computed(op, of_halves, U32 if packed else U16, result=U32 if packed else U16)
