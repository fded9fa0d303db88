"""Where a kernel's variables and parameters lie, and what they hold at first.

Shared memory begins at 0x400, below which the system keeps its own: measured on an H200 (design notes, "Facts
measured"). Variables of the module in `.global` and `.const` have fixed addresses here, so that initialisers
may point at them. Parameters of called functions and their `.param` variables are local memory of the thread.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tilewright.emulate.registers import BYTES_OF_TYPE
from tilewright.errors import BadInput
from tilewright.ptx.nodes import Apply, Binary, Float, Integer, Name, Unary, Variable, Vector

if TYPE_CHECKING:
    from tilewright.emulate.registers import Array
    from tilewright.ptx.flow import Flow
    from tilewright.ptx.nodes import Declarator, Function, Module, Operand

SHARED_START = 0x400
"""Offset of the first user byte of shared memory."""

MODULE_BASE = 0x7E00_0000_0000
"""Where `.global` variables of the module lie."""

SHARED_WINDOW = 1 << 40
LOCAL_WINDOW = 2 << 40
CONST_WINDOW = 3 << 40
PARAM_WINDOW = 4 << 40
"""Windows of generic addresses, 2^40 bytes each; everything from MODULE_BASE on is global."""

RANK_SHIFT = 24
"""Bit of a shared address at which the CTA's rank begins."""


class Symbol(NamedTuple):
    """A variable or parameter: its space ("shared", "const", "global", "local", "param"), place and bytes."""

    space: str
    offset: int
    nbytes: int


@dataclass(slots=True)
class _Area:
    """One space being filled."""

    end: int = 0
    align: int = 1

    def take(self, nbytes: int, align: int) -> int:
        offset = -(-self.end // align) * align
        self.end = offset + nbytes
        self.align = max(self.align, align)
        return offset


class KernelLayout:
    """Places of everything that a kernel and its functions name.

    Attributes:
        symbols: by name; those of a function under "function:name".
        parameters: of the kernel in order: name, symbol, PTX type without its dot ("b8" for structs).
        dynamic_shared_start: offset of `extern .shared` memory.
    """

    def __init__(self, module: Module, kernel: Function, flows: dict[str, Flow]) -> None:
        self.symbols: dict[str, Symbol] = {}
        self.parameters: list[tuple[str, Symbol, str]] = []
        self._areas = {name: _Area() for name in ("const", "global", "local", "param")}
        self._areas["shared"] = _Area(SHARED_START)
        self._dynamic: list[tuple[str, int]] = []
        self._initial: list[tuple[Symbol, Variable, Declarator]] = []
        for item in module.items:
            if isinstance(item, Variable):
                self._declare(item, "")
        for name, flow in flows.items():
            self._declare_function(flow, name, is_kernel=flow.function is kernel)
        align = max((align for _, align in self._dynamic), default=16)
        self.dynamic_shared_start = self._areas["shared"].take(0, align)
        for name, _ in self._dynamic:
            self.symbols[name] = Symbol("shared", self.dynamic_shared_start, 0)

    def resolve(self, name: str, function: str) -> str | None:
        """The key of `symbols` that `name` means inside a function; None if nothing declares it."""
        for key in (f"{function}:{name}", name):
            if key in self.symbols:
                return key
        return None

    def nbytes(self, space: str) -> int:
        """End of a space."""
        return self._areas[space].end

    def address(self, key: str) -> int:
        """The address of a symbol in its own state space; generic for `generic(key)`."""
        generic = key.startswith("generic(")
        symbol = self.symbols[key[8:-1] if generic else key]
        if symbol.space == "global":
            return MODULE_BASE + symbol.offset
        window = {"const": CONST_WINDOW, "param": PARAM_WINDOW, "local": LOCAL_WINDOW}
        return symbol.offset + (window.get(symbol.space, SHARED_WINDOW) if generic else 0)

    def initial(self, space: str) -> Array:
        """The bytes of the module's `.const` or `.global` variables at launch."""
        data = np.zeros(self._areas[space].end, np.uint8)
        for symbol, variable, declarator in self._initial:
            if symbol.space == space and declarator.initializer is not None:
                parts = b"".join(self._encode(declarator.initializer, variable.type[1:]))
                data[symbol.offset : symbol.offset + len(parts)] = np.frombuffer(parts, np.uint8)
        return data

    # --- declarations -----------------------------------------------------------------------------

    def _declare_function(self, flow: Flow, name: str, *, is_kernel: bool) -> None:
        function = flow.function
        for parameter in (*function.results, *(function.parameters or ())):
            space = "param" if is_kernel else "local"
            for declarator in parameter.declarators:
                symbol = self._place(parameter, declarator, space)
                self.symbols[f"{name}:{declarator.name}"] = symbol
                if is_kernel:
                    self.parameters.append((declarator.name, symbol, parameter.type[1:]))
        seen: set[int] = set()
        for key, variable in flow.variables.items():
            if variable.space == ".reg" or key in self.symbols or f"{name}:{key}" in self.symbols:
                continue
            if variable.space and id(variable) not in seen:
                seen.add(id(variable))
                scope = key[key.index("@") :] if "@" in key else ""
                self._declare(variable, f"{name}:", scope)

    def _declare(self, variable: Variable, prefix: str, scope: str = "") -> None:
        space = variable.space.removeprefix(".").partition("::")[0]
        if space == "param":  # of a call inside a body
            space = "local"
        if space not in self._areas:
            return
        for declarator in variable.declarators:
            key = f"{prefix}{declarator.name}{scope}"
            if space == "shared" and variable.linkage == ".extern":
                self._dynamic.append((key, _align(variable)))
                self.symbols[key] = Symbol("shared", 0, 0)
                continue
            symbol = self._place(variable, declarator, space)
            self.symbols[key] = symbol
            self._initial.append((symbol, variable, declarator))

    def _place(self, variable: Variable, declarator: Declarator, space: str) -> Symbol:
        nbytes = _element_bytes(variable) * _count(declarator)
        return Symbol(space, self._areas[space].take(nbytes, _align(variable)), nbytes)

    def _encode(self, value: Operand, type_: str) -> list[bytes]:  # noqa: PLR0911  (a case a node)
        """An initialiser as bytes, element by element."""
        size = BYTES_OF_TYPE.get(type_, 1)
        match value:
            case Vector():
                return [part for each in value.elements for part in self._encode(each, type_)]
            case Float():
                return [struct.pack("<d" if size == 8 else "<f", value.value)]
            case Integer() | Unary():
                number = _integer(value) & ((1 << 8 * size) - 1)
                return [number.to_bytes(size, "little")]
            case Name():
                known = value.name in self.symbols
                return [(self.address(value.name) if known else 0).to_bytes(8, "little")]
            case Binary() if isinstance(value.left, Name | Apply):
                base = int.from_bytes(self._encode(value.left, type_)[0], "little")
                return [(base + _integer(value.right)).to_bytes(8, "little")]
            case Apply(function=Integer(value=mask)):
                whole = int.from_bytes(self._encode(value.argument, "b64")[0], "little")
                shift = (mask & -mask).bit_length() - 1
                return [bytes([(whole & mask) >> shift & 0xFF])]
            case Apply(argument=Name(name=name)):
                address = self.address(f"generic({name})") if name in self.symbols else 0
                return [address.to_bytes(8, "little")]
        raise BadInput("an initialiser of this form is not emulated", given=value)


def _integer(value: Operand) -> int:
    if isinstance(value, Integer):
        return value.value
    if isinstance(value, Unary):
        inner = _integer(value.operand)
        return -inner if value.operator == "-" else ~inner if value.operator == "~" else inner
    raise BadInput("an initialiser of this form is not emulated", given=value)


def _element_bytes(variable: Variable) -> int:
    one = BYTES_OF_TYPE.get(variable.type.removeprefix("."), 1)
    return one * int(variable.vector.removeprefix(".v") or 1)


def _count(declarator: Declarator) -> int:
    count = 1
    for size in declarator.dimensions:
        if size is None:
            value = declarator.initializer
            count *= len(value.elements) if isinstance(value, Vector) else 0
        else:
            count *= _integer(size)
    return count


def _align(variable: Variable) -> int:
    return _integer(variable.align) if variable.align is not None else _element_bytes(variable)
