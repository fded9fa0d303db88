"""mma.sync, ldmatrix, stmatrix and movmatrix: a warp's matrices in registers. Layouts and sums are in `mma_sync`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulate.instructions import instruction
from tilewright.emulate.mma_sync import (
    load_bytes_transposed,
    load_rows,
    mma_form,
    store_bytes_transposed,
    store_rows,
    transpose_matrix,
)
from tilewright.emulate.registers import U32
from tilewright.emulate.told import decoded

if TYPE_CHECKING:
    from tilewright.emulate.decoder import Decoder
    from tilewright.emulate.instructions import Run
    from tilewright.emulate.registers import Where
    from tilewright.emulate.warp import Warp

ROW_WORDS = 4
"""32-bit words of the 16 bytes that an address names."""


@instruction("mma")
def mma(op: Decoder) -> Run:
    """mma.sync d, a, b, c."""
    form = decoded(op, lambda: mma_form(op.modifiers))
    results = [op.destination(each, U32) for each in op.elements(op.operands[0])]
    a, b, c = (
        [op.source(each, U32) for each in op.elements(operand)] for operand in op.operands[1:4]
    )

    def run(warp: Warp, _where: Where) -> None:
        rows = warp.rows[U32]
        left, right, sums = (np.stack([rows[row] for row in part]) for part in (a, b, c))
        for row, values in zip(results, form.multiply(left, right, sums), strict=True):
            rows[row][:] = values

    return run


@instruction("ldmatrix", visible=True)
def ldmatrix(op: Decoder) -> Run:
    """Matrices of 8x8 16-bit elements, or 16x16 8-bit ones, from the rows that lanes name."""
    count = int(op.one_of("x1", "x2", "x4")[1:])
    in_bytes = op.has("m16n16", "b8")
    if not in_bytes and not op.has("m8n8", "b16"):
        raise op.unknown()
    results = [op.destination(each, U32) for each in op.elements(op.operands[0])]
    address = op.address(op.operands[1])
    space = op.spaces[0] if op.spaces else ""
    lanes = np.arange((16 if in_bytes else 8) * count)
    transposed = op.has("trans")

    def run(warp: Warp, _where: Where) -> None:
        found = warp.machine.accesses.load(
            warp, op.op, space, warp.addresses(address, lanes), (4, ROW_WORDS), lanes
        )
        named = np.ascontiguousarray(found).view(np.uint8)
        registers = (
            load_bytes_transposed(named) if in_bytes else load_rows(named, transposed=transposed)
        )
        for row, values in zip(results, registers, strict=True):
            warp.rows[U32][row][:] = values

    return run


@instruction("stmatrix", visible=True)
def stmatrix(op: Decoder) -> Run:
    """The inverse, with 16x8 8-bit elements for `.b8`."""
    count = int(op.one_of("x1", "x2", "x4")[1:])
    in_bytes = op.has("m16n8", "b8")
    if not in_bytes and not op.has("m8n8", "b16"):
        raise op.unknown()
    address = op.address(op.operands[0])
    sources = [op.source(each, U32) for each in op.elements(op.operands[1])]
    space = op.spaces[0] if op.spaces else ""
    lanes = np.arange(8 * count)
    transposed = op.has("trans")

    def run(warp: Warp, _where: Where) -> None:
        registers = np.stack([warp.rows[U32][row] for row in sources])
        stored = (
            store_bytes_transposed(registers)
            if in_bytes
            else store_rows(registers, transposed=transposed)
        )
        warp.machine.accesses.store(
            warp, op.op, space, warp.addresses(address, lanes), stored.view(np.uint32), lanes
        )

    return run


@instruction("movmatrix")
def movmatrix(op: Decoder) -> Run:
    """An 8x8 matrix of 16-bit elements in one register of the warp, transposed."""
    result, source = op.destination(op.operands[0], U32), op.source(op.operands[1], U32)

    def run(warp: Warp, _where: Where) -> None:
        rows = warp.rows[U32]
        rows[result][:] = transpose_matrix(rows[source].copy())

    return run
