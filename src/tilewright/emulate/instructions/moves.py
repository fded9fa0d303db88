"""mov, comparisons and selections, address conversions: PTX ISA, 9.7.6, 9.7.9."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.emulate.instructions import instruction
from tilewright.emulate.instructions.floating import bf16_to_f32, flushed
from tilewright.emulate.instructions.integer import computed
from tilewright.emulate.layout import (
    CONST_WINDOW,
    LOCAL_WINDOW,
    MODULE_BASE,
    PARAM_WINDOW,
    RANK_SHIFT,
    SHARED_WINDOW,
)
from tilewright.emulate.registers import (
    B128,
    DTYPES,
    F32,
    PRED,
    S32,
    U16,
    U32,
    U64,
    UNSIGNED,
    WIDTHS,
)
from tilewright.ptx.nodes import Name, Vector

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilewright.emulate.decoder import Decoder
    from tilewright.emulate.instructions import Run
    from tilewright.emulate.registers import Array, Where
    from tilewright.emulate.warp import Warp
    from tilewright.ptx.nodes import Operand


@instruction("mov")
def mov(op: Decoder) -> Run:
    """Copy a register, take an address, pack a vector or take one apart."""
    to, of = op.operands
    kind = op.kind
    if isinstance(to, Vector) or isinstance(of, Vector):
        return _pack(op, to, of, kind)
    if op.is_dynamic(of):
        return _clock(op, to, of, kind)
    d, a = op.destination(to, kind), op.source(of, kind)

    def run(warp: Warp, where: Where) -> None:
        rows = warp.rows[kind]
        if where is True:
            rows[d][...] = rows[a]
        elif kind == B128:
            rows[d][where] = rows[a][where]
        else:
            np.copyto(rows[d], rows[a], where=where)

    return run


def _clock(op: Decoder, to: Operand, of: Operand, kind: int) -> Run:
    """A clock: instructions executed so far; the global timer counts the same as nanoseconds."""
    d = op.destination(to, kind)
    high = isinstance(of, Name) and of.name.endswith("_hi")
    mask = (1 << WIDTHS[kind]) - 1

    def run(warp: Warp, where: Where) -> None:
        now = warp.machine.executed
        np.copyto(
            warp.rows[kind][d], DTYPES[kind]((now >> 32 if high else now) & mask), where=where
        )

    return run


def _pack(op: Decoder, to: Operand, of: Operand, kind: int) -> Run:
    """mov.b64 d, {a, b} and its inverse, of equal parts."""
    width = WIDTHS[kind]
    parts = op.elements(to if isinstance(to, Vector) else of)
    part_kind = UNSIGNED[width // len(parts)] if width // len(parts) > 8 else U16
    is_bytes = width // len(parts) == 8
    dtype: Any = np.uint8 if is_bytes else DTYPES[part_kind]
    if isinstance(to, Vector):
        rows_to = [op.destination(part, part_kind) for part in parts]
        a = op.source(of, UNSIGNED[width])

        def unpack(warp: Warp, where: Where) -> None:
            pieces = warp.rows[UNSIGNED[width]][a].view(dtype).reshape(32, -1)
            for i, row in enumerate(rows_to):
                np.copyto(warp.rows[part_kind][row], pieces[:, i], where=where)

        return unpack
    d = op.destination(to, UNSIGNED[width])
    rows_of = [op.source(part, part_kind) for part in parts]

    def pack(warp: Warp, where: Where) -> None:
        pieces = np.stack([warp.rows[part_kind][row].astype(dtype) for row in rows_of], axis=1)
        out = warp.rows[UNSIGNED[width]][d]
        found = np.ascontiguousarray(pieces).view(out.dtype).reshape(out.shape)
        if where is True:
            out[...] = found
        else:
            out[where] = found[where]

    return pack


# --- comparisons --------------------------------------------------------------------------------------


def _comparison(name: str) -> Callable[[Array, Array], Array]:
    """A comparison by its PTX name; the unordered ones hold of NaN."""
    plain: dict[str, Any] = {
        "eq": np.equal,
        "ne": lambda a, b: (a != b) & ~_either_nan(a, b),
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
        "lo": np.less,
        "ls": np.less_equal,
        "hi": np.greater,
        "hs": np.greater_equal,
        "num": lambda a, b: ~_either_nan(a, b),
        "nan": _either_nan,
        "equ": lambda a, b: (a == b) | _either_nan(a, b),
        "neu": np.not_equal,
        "ltu": lambda a, b: ~(a >= b),
        "leu": lambda a, b: ~(a > b),
        "gtu": lambda a, b: ~(a <= b),
        "geu": lambda a, b: ~(a < b),
    }
    found: Callable[[Array, Array], Array] = plain[name]
    return found


def _either_nan(a: Array, b: Array) -> Array:
    return np.isnan(a) | np.isnan(b)


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "num", "nan", "equ", "neu", "ltu", "leu", "gtu", "geu")  # fmt: skip
_COMBINE: dict[str, Any] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _compared(op: Decoder, type_: str) -> Callable[[Array, Array], Array]:
    """The comparison of an instruction on registers of a type."""
    name = op.one_of(*_COMPARISONS)
    if type_[0] in "ubs" and name == "ne":
        compare: Any = np.not_equal
    else:
        compare = _comparison(name)
    if type_ == "bf16":
        return lambda a, b: compare(bf16_to_f32(a), bf16_to_f32(b))
    if type_ == "f32" and op.has("ftz"):
        return lambda a, b: compare(flushed(a), flushed(b))
    return compare  # type: ignore[no-any-return]


@instruction("setp")
def setp(op: Decoder) -> Run:
    """P = a compared with b, and with a third predicate; q is the same with the comparison negated."""
    if op.type.endswith("x2"):
        return _setp_halves(op)
    k = op.kind
    first, second = op.pair(op.operands[0])
    p = op.destination(first, PRED)
    q = op.destination(second, PRED) if second is not None else None
    a, b = op.source(op.operands[1], k), op.source(op.operands[2], k)
    compare = _compared(op, op.type)
    if len(op.operands) == 3 and q is None:

        def run(warp: Warp, where: Where) -> None:
            rows = warp.rows[k]
            found = compare(rows[a], rows[b])
            if where is True:
                warp.rows[PRED][p][...] = found
            else:
                np.copyto(warp.rows[PRED][p], found, where=where)

        return run
    third, negated = op.predicate(op.operands[3]) if len(op.operands) == 4 else (None, False)
    combine = _COMBINE[op.one_of(*_COMBINE, default="and")]

    def run_combined(warp: Warp, where: Where) -> None:
        rows, predicates = warp.rows[k], warp.rows[PRED]
        found = compare(rows[a], rows[b])
        other = np.ones(32, np.bool_) if third is None else predicates[third] ^ negated
        both, inverse = combine(found, other), combine(~found, other)
        np.copyto(predicates[p], both, where=where)
        if q is not None:
            np.copyto(predicates[q], inverse, where=where)

    return run_combined


def _setp_halves(op: Decoder) -> Run:
    """Setp on f16x2 or bf16x2: p of the lower halves, q of the upper."""
    first, second = op.pair(op.operands[0])
    if second is None or len(op.operands) != 3:
        raise op.unknown()
    p, q = op.destination(first, PRED), op.destination(second, PRED)
    a, b = op.source(op.operands[1], U32), op.source(op.operands[2], U32)
    compare = _comparison(op.one_of(*_COMPARISONS))
    is_bf16 = "bf16" in op.type

    def run(warp: Warp, where: Where) -> None:
        rows = warp.rows[U32]
        x, y = (rows[r].view(np.uint16) for r in (a, b))
        if is_bf16:
            found = compare(bf16_to_f32(x), bf16_to_f32(y))
        else:
            found = compare(x.view(np.float16), y.view(np.float16))
        np.copyto(warp.rows[PRED][p], found[::2], where=where)
        np.copyto(warp.rows[PRED][q], found[1::2], where=where)

    return run


@instruction("set")
def set_(op: Decoder) -> Run:
    """All ones (or 1.0) where the comparison holds."""
    to, of = op.modifiers[-2], op.modifiers[-1]
    if len(op.operands) != 3:
        raise op.unknown()
    if of.endswith("x2"):
        return _set_halves(op, to)
    out, k = op.kind_of(to), op.kind_of(of)
    compare = _compared(op, of)
    one: Any = {"f32": 1.0, "f16": 1.0, "bf16": 0x3F80}.get(to)
    if one is None:
        one = ~DTYPES[out](0)
    return computed(op, lambda a, b: np.where(compare(a, b), one, 0), k, k, result=out)


def _set_halves(op: Decoder, to: str) -> Run:
    """The same of each half of f16x2 or bf16x2."""
    compare = _compared(op, op.type.removesuffix("x2"))
    number = np.float16 if op.type == "f16x2" else np.uint16
    one = {"f16x2": 0x3C00, "bf16x2": 0x3F80}.get(to, 0xFFFF)

    def whole(a: Array, b: Array) -> Array:
        holds = compare(*(np.ascontiguousarray(v).view(number) for v in (a, b)))
        return np.where(holds, one, 0).astype(np.uint16).view(np.uint32)

    return computed(op, whole, U32, U32, result=U32)


@instruction("selp")
def selp(op: Decoder) -> Run:
    """A where the predicate holds, else b."""
    k = op.kind
    d = op.destination(op.operands[0], k)
    a, b = op.source(op.operands[1], k), op.source(op.operands[2], k)
    p, negated = op.predicate(op.operands[3])

    def run(warp: Warp, where: Where) -> None:
        rows = warp.rows[k]
        chosen = warp.rows[PRED][p] ^ negated
        np.copyto(rows[d], np.where(chosen, rows[a], rows[b]), where=where)

    return run


@instruction("slct")
def slct(op: Decoder) -> Run:
    """A where c >= 0, else b."""
    k = op.kind_of(op.modifiers[-2])
    c_kind = F32 if op.type == "f32" else S32

    def choose(a: Array, b: Array, c: Array) -> Array:
        return np.where(c >= 0, a, b)

    return computed(op, choose, k, k, c_kind, result=k)


# --- addresses ----------------------------------------------------------------------------------------

_WINDOW = {
    "shared": SHARED_WINDOW,
    "shared::cta": SHARED_WINDOW,
    "shared::cluster": SHARED_WINDOW,
    "local": LOCAL_WINDOW,
    "const": CONST_WINDOW,
    "param": PARAM_WINDOW,
    "param::entry": PARAM_WINDOW,
    "global": 0,
}


@instruction("cvta")
def cvta(op: Decoder) -> Run:
    """Between an address of a state space and a generic one."""
    space = op.spaces[0]
    window = np.uint64(_WINDOW[space])
    k = op.kind
    d, a = op.destination(op.operands[0], k), op.source(op.operands[1], k)
    towards = op.has("to")

    def run(warp: Warp, where: Where) -> None:
        rows = warp.rows[k]
        given = rows[a].astype(np.uint64)
        found = given - window if towards else given + window
        np.copyto(rows[d], found, where=where, casting="unsafe")

    return run


@instruction("isspacep")
def isspacep(op: Decoder) -> Run:
    """Whether a generic address lies in a window."""
    space = op.spaces[0]
    p, a = op.destination(op.operands[0], PRED), op.source(op.operands[1], U64)

    def run(warp: Warp, where: Where) -> None:
        address = warp.rows[U64][a].astype(np.int64)
        if space == "global":
            found = address >= MODULE_BASE
        else:
            found = address >> 40 == _WINDOW[space] >> 40
        if space in {"shared", "shared::cta"}:
            found &= (address & 0xFFFFFFFF) >> RANK_SHIFT == warp.cta.rank
        np.copyto(warp.rows[PRED][p], found, where=where)

    return run
