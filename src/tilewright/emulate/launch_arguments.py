"""Arguments of a launch as the bytes of the kernel's parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.emulate.registers import BYTES_OF_TYPE
from tilewright.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilewright.emulate.layout import KernelLayout
    from tilewright.emulate.memory import Buffers


def pack(layout: KernelLayout, args: Sequence[Any], buffers: Buffers) -> bytes:
    """One argument a parameter.

    Raises:
        BadInput: too many or too few, or one that does not fit its parameter.
    """
    wanted = layout.parameters
    if len(args) != len(wanted):
        names = ", ".join(f"{name} (.{type_})" for name, _, type_ in wanted) or "none"
        raise BadInput(
            f"{len(args)} arguments for {len(wanted)} parameters: {names}",
            given=len(args),
            allowed=str(len(wanted)),
        )
    packed = bytearray(layout.nbytes("param"))
    for value, (name, symbol, type_) in zip(args, wanted, strict=True):
        data = _encode(name, type_, symbol.nbytes, value, buffers)
        packed[symbol.offset : symbol.offset + len(data)] = data
    return bytes(packed)


def _encode(name: str, type_: str, nbytes: int, value: Any, buffers: Buffers) -> bytes:
    encoded = getattr(value, "as_kernel_argument", None)
    if encoded is not None:
        value = encoded(buffers)
    if isinstance(value, np.ndarray) and value.ndim:
        if nbytes != 8:
            raise BadInput(f"parameter {name} has {nbytes} bytes; an array's address has 8")
        return buffers.address_of(value, name).to_bytes(8, "little")
    if isinstance(value, bytes | bytearray | np.void):
        data = value.tobytes() if isinstance(value, np.void) else bytes(value)
        if len(data) != nbytes:
            raise BadInput(
                f"parameter {name} has {nbytes} bytes, the argument {len(data)}",
                given=len(data),
                allowed=str(nbytes),
            )
        return data
    size = BYTES_OF_TYPE.get(type_, 1)
    if nbytes != size:
        raise BadInput(f"parameter {name} is a struct of {nbytes} bytes; pass bytes", given=value)
    if type_.startswith("f"):
        return np.array(value, f"f{size}").tobytes()
    if isinstance(value, np.floating | np.bool_) or (isinstance(value, float) and size in {4, 8}):
        return np.array(value, f"f{size}").tobytes()
    if not isinstance(value, int | np.integer):
        raise BadInput(f"parameter {name} (.{type_}) cannot hold {value!r}", given=value)
    return (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
