"""Approximate functions: rcp, sqrt, rsqrt, ex2, lg2, sin, cos, tanh.

The hardware's results are within documented errors of these, which are rounded to nearest from binary64. Of `ex2`
in f16 an H200 cuts subnormal results off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulate.instructions import instruction
from tilewright.emulate.instructions.floating import (
    canonical,
    f32_to_halves,
    flushed,
    halves_to_f32,
)
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
        found = canonical(function(given.astype(np.float64)).astype(np.float32))
        return flushed(found) if ftz else found

    if op.kind == F32:
        return computed(op, single, F32)
    if op.kind == F64:
        return computed(op, function, F64)
    packed, is_bf16 = op.type.endswith("x2"), "bf16" in op.type
    cuts = function is np.exp2 and not is_bf16

    def of_halves(a: Array) -> Array:
        wide = halves_to_f32(np.ascontiguousarray(a).view(np.uint16), is_bf16=is_bf16)
        found = function(wide.astype(np.float64)).astype(np.float32)
        if cuts:
            found = np.where(np.abs(found) < 2.0**-14, np.trunc(found * 2.0**24) / 2.0**24, found)
        return np.ascontiguousarray(f32_to_halves(found, is_bf16=is_bf16)).view(a.dtype)

    return computed(op, of_halves, U32 if packed else U16, result=U32 if packed else U16)
