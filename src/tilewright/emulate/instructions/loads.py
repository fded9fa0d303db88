"""ld, st and their kin: PTX ISA, 9.7.9.8 to 9.7.9.13."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulate.clocks import NOTHING, join_levels
from tilewright.emulate.instructions import instruction
from tilewright.emulate.registers import B128, DTYPES, U64, UNSIGNED, WIDTHS

if TYPE_CHECKING:
    from tilewright.emulate.decoder import Address, Decoder
    from tilewright.emulate.instructions import Run
    from tilewright.emulate.registers import Array, Where
    from tilewright.emulate.warp import Warp
    from tilewright.ptx.flow import Op
    from tilewright.ptx.nodes import Operand

STRONG = ("relaxed", "acquire", "release", "volatile", "mmio", "sc", "acq_rel")
PRIVATE = frozenset({"local", "const", "param", "param::entry", "param::func"})


def space_of(op: Decoder) -> str:
    """The state space of the address; "" for generic ones, "local" for parameters of functions."""
    spaces = op.spaces
    return spaces[0] if spaces else ""


def data_space(op: Decoder, operand: Operand, address: Address) -> str:
    """The space that a ld.param or st.param means: of the kernel, or of a call."""
    space = space_of(op)
    if not space.startswith("param"):
        return space
    for (name, _, width), row in op.program.addresses.items():
        if width == 64 and row == address.row and address.kind == U64:
            return op.program.layout.symbols[name].space
    del operand
    return "param"


def _vector(op: Decoder, operand: Operand) -> tuple[tuple[Operand, ...], int]:
    """The registers of a vector operand, and 64-bit words a register (2 for .b128)."""
    elements = op.elements(operand)
    return elements, 2 if op.type == "b128" else 1


def _element_bytes(op: Decoder) -> int:
    return 8 if op.type == "b128" else op.type_bytes(op.type)


@instruction("ld", "ldu", visible=True)
def ld(op: Decoder) -> Run:
    """Load a register or a vector of them."""
    elements, words = _vector(op, op.operands[0])
    size = _element_bytes(op)
    address = op.address(op.operands[1])
    space = data_space(op, op.operands[1], address)
    op.is_private = space in PRIVATE
    kinds = [op.own_kind(e, op.type) for e in elements]
    rows_to = [op.destination(e, k) for e, k in zip(elements, kinds, strict=True)]
    signed = op.type.startswith("s")
    dtype = np.dtype(f"{'i' if signed else 'u'}{size}")
    count = len(elements) * words
    strong, acquires = bool(op.one_of(*STRONG)), op.has("acquire")
    place = op.op

    def run(warp: Warp, where: Where) -> None:
        lanes = warp.lanes(where)
        addresses = warp.addresses(address, lanes)
        found = warp.machine.accesses.load(
            warp, place, space, addresses, (size, count), lanes, strong=strong
        ).view(dtype)
        if acquires:
            acquire_from(warp, place, space, addresses, size, lanes, where)
        for i, (kind, row) in enumerate(zip(kinds, rows_to, strict=True)):
            out = warp.rows[kind][row]
            if kind == B128:
                out[lanes] = found[:, 2 * i : 2 * i + 2]
            elif where is True:
                out[...] = _widened(found[:, i], kind)
            else:
                out[lanes] = _widened(found[:, i], kind)

    return run


def _widened(values: Array, kind: int) -> Array:
    """Loaded bits for a register of a kind: reinterpreted when the widths agree, else extended."""
    dtype = np.dtype(DTYPES[kind])
    if values.dtype.itemsize == dtype.itemsize:
        return values.view(dtype) if values.flags.c_contiguous else values.copy().view(dtype)
    return values.astype(dtype)


@instruction("st", visible=True)
def st(op: Decoder) -> Run:
    """Store a register or a vector of them."""
    elements, words = _vector(op, op.operands[1])
    size = _element_bytes(op)
    address = op.address(op.operands[0])
    space = data_space(op, op.operands[0], address)
    op.is_private = space in PRIVATE
    bits = f"b{size * 8}" if words == 1 else "b128"
    kinds = [op.own_kind(e, bits) for e in elements]
    plain = [UNSIGNED[WIDTHS[k]] for k in kinds]
    rows_of = [op.source(e, k) for e, k in zip(elements, plain, strict=True)]
    dtype = np.dtype(f"u{size}")
    strong, releases = bool(op.one_of(*STRONG)), op.has("release")
    place = op.op

    def run(warp: Warp, where: Where) -> None:
        lanes = warp.lanes(where)
        addresses = warp.addresses(address, lanes)
        values = np.empty((len(lanes), len(rows_of) * words), dtype)
        for i, (kind, row) in enumerate(zip(plain, rows_of, strict=True)):
            given = warp.rows[kind][row] if where is True else warp.rows[kind][row][lanes]
            if words == 2:
                values[:, 2 * i : 2 * i + 2] = given
            else:
                values[:, i] = given
        warp.machine.accesses.store(warp, place, space, addresses, values, lanes, strong=strong)
        if strong:
            publish_at(warp, place, space, addresses, size, lanes, releases=releases)

    return run


# --- order through memory -----------------------------------------------------------------------------


def publish_at(
    warp: Warp,
    op: Op,
    space: str,
    addresses: Array,
    nbytes: int,
    lanes: Array,
    *,
    releases: bool,
    keeps: bool = False,
) -> None:
    """A strong write leaves at its place what its thread knows; an atomic keeps what was there as well."""
    if space in PRIVATE:
        return
    for place in warp.machine.accesses.places(warp, op, space, addresses, nbytes, lanes):
        if place.segment.cta is None and not place.segment.watched:
            continue
        for offset, lane in zip(place.offsets.tolist(), place.lanes.tolist(), strict=True):
            one = np.zeros(32, np.bool_)
            one[lane] = True
            news = warp.clocks.publish(one) if releases else warp.clocks.publish_relaxed(one)
            before = place.segment.published.get(offset, NOTHING) if keeps else NOTHING
            place.segment.published[offset] = join_levels(before, news)


def acquire_from(
    warp: Warp, op: Op, space: str, addresses: Array, nbytes: int, lanes: Array, where: Where
) -> None:
    """A strong read takes what was left at its place."""
    del where
    for place in warp.machine.accesses.places(warp, op, space, addresses, nbytes, lanes):
        for offset, lane in zip(place.offsets.tolist(), place.lanes.tolist(), strict=True):
            news = place.segment.published.get(offset)
            if news is not None:
                one = np.zeros(32, np.bool_)
                one[lane] = True
                warp.clocks.acquire(one, news)
