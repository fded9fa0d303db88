"""What a kernel is launched with, read from a TOML file.

    grid = [16, 1, 1]                   # and cluster, block, smem_bytes, kernel; options of the command win
    args = ["counts", 5, { map = "a", box = [64, 64], swizzle = "128B" }, { struct = ["a", "u32:7"] }]

    [arrays.counts]
    dtype = "u32"                       # a PTX type (u32, f32, bf16, e4m3, …)
    shape = [16]
    fill = 0                            # a number, "arange" or "random" (small, exact); or file = "x.npy"
    expect = 1                          # likewise, or expect_file; with atol and rtol; left out: not checked

A string in `args` is an array's address; a number is passed as its parameter says. A struct lists its members:
arrays by name, or "type:value" (u8 to u64, s32, f32, …), packed with C's alignment.
"""

from __future__ import annotations

import struct
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.emulate import numbers
from tilewright.emulate.explore import Expected
from tilewright.emulate.launch import prepare
from tilewright.emulate.memory import Buffers
from tilewright.emulate.tensor_map import TensorMap
from tilewright.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tilewright.emulate.launch import Launch
    from tilewright.emulate.registers import Array
    from tilewright.ptx.nodes import Module

_PLAIN: dict[str, Any] = {
    **{f"{sign}{bits}": np.dtype(f"{kind}{bits // 8}") for sign, kind in (("u", "u"), ("s", "i"), ("b", "u")) for bits in (8, 16, 32, 64)},
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}  # fmt: skip
_ENCODED = {"bf16": np.uint16, "e4m3": np.uint8, "e5m2": np.uint8}
"""Types that numpy does not have: kept as bits."""

_PACKED = {"u8": "B", "s8": "b", "u16": "H", "s16": "h", "u32": "I", "s32": "i", "u64": "Q", "s64": "q", "f32": "f", "f64": "d"}  # fmt: skip
_KEYS = frozenset({"arrays", "args", "grid", "cluster", "block", "smem_bytes", "kernel"})


@dataclass
class Spec:
    """A launch as the file describes it.

    Attributes:
        launch: grid, cluster, block, smem_bytes and kernel where given.
        args: as written.
        folder: that file names are relative to.
    """

    launch: dict[str, Any] = field(default_factory=dict)
    args: list[Any] = field(default_factory=list)
    arrays: dict[str, dict[str, Any]] = field(default_factory=dict)
    folder: Path = Path()

    @classmethod
    def read(cls, path: Path) -> Spec:
        """Read a file.

        Raises:
            BadInput: no such file, no TOML, or keys that mean nothing.
        """
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise BadInput(f"no file {path}", given=path) from None
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise BadInput(f"{path}: {error}", given=path) from None
        for key in table:
            if key not in _KEYS:
                raise UnknownName(f"key of {path}", key, _KEYS)
        launch = {key: table[key] for key in table if key not in {"arrays", "args"}}
        return cls(launch, table.get("args", []), table.get("arrays", {}), path.parent)

    def prepare(self, module: Module, **given: Any) -> tuple[Launch, list[Expected]]:
        """The launch, and what is expected of it.

        Args:
            given: grid, cluster, block, smem_bytes, kernel of the caller, which win where not None.
        """
        chosen = self.launch | {key: value for key, value in given.items() if value is not None}
        if "grid" not in chosen:
            raise BadInput("the launch has no grid: pass --grid x,y,z or write it in the file")
        buffers = Buffers()
        arrays: dict[str, Array] = {}
        expected: list[Expected] = []
        for name, table in self.arrays.items():
            arrays[name] = self._array(name, table, "fill", "file")
            buffers.address_of(arrays[name], name)
            if "expect" in table or "expect_file" in table:
                wanted = self._array(name, table, "expect", "expect_file")
                tolerance = {key: float(table.get(key, 0)) for key in ("atol", "rtol")}
                expected.append(Expected(arrays[name], wanted, name, **tolerance))
        args = [self._argument(arg, arrays, buffers) for arg in self.args]
        return prepare(module, args=args, buffers=buffers, **chosen), expected

    def _array(self, name: str, table: Mapping[str, Any], fill: str, file: str) -> Array:
        dtype = table.get("dtype", "u32")
        if dtype not in _PLAIN and dtype not in _ENCODED:
            raise UnknownName(f"dtype of array {name}", str(dtype), [*_PLAIN, *_ENCODED])
        storage = _PLAIN.get(dtype) or np.dtype(_ENCODED[dtype])
        if file in table:
            found = np.load(self.folder / table[file])
            return np.ascontiguousarray(found.view(storage))
        if "shape" not in table:
            raise BadInput(f"array {name} has no shape", given=name)
        shape = tuple(np.atleast_1d(table["shape"]).tolist())
        values = _filled(name, table.get(fill, 0), shape)
        if dtype in _ENCODED:
            return numbers.encode(values.astype(np.float32), dtype)
        return values.astype(storage)

    def _argument(self, arg: Any, arrays: Mapping[str, Array], buffers: Buffers) -> Any:
        if isinstance(arg, str):
            return _named(arg, arrays)
        if not isinstance(arg, dict):
            return arg
        if "map" in arg:
            array = _named(arg["map"], arrays)
            dtype = self.arrays[arg["map"]].get("dtype", "u32")
            return TensorMap.of(
                array,
                buffers.address_of(array),
                arg["box"],
                swizzle=arg.get("swizzle", "none"),
                dtype="u8" if dtype in {"e4m3", "e5m2"} else dtype if dtype in _ENCODED else "",
            ).encode()
        if "struct" in arg:
            return b"".join(_members(arg["struct"], arrays, buffers))
        raise BadInput(f"argument {arg} is neither a map nor a struct", given=arg)


def _named(name: str, arrays: Mapping[str, Array]) -> Array:
    if name not in arrays:
        raise UnknownName("array", name, arrays)
    return arrays[name]


def _filled(name: str, fill: Any, shape: tuple[int, ...]) -> Array:
    count = int(np.prod(shape))
    if fill == "arange":
        return np.arange(count).reshape(shape)
    if fill == "random":
        seed = sum(name.encode())
        return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float64) / 4
    if isinstance(fill, list):
        return np.array(fill).reshape(shape)
    if not isinstance(fill, int | float):
        raise BadInput(
            f'array {name}: fill "{fill}"', given=fill, allowed="a number, a list, arange, random"
        )
    return np.full(shape, fill)


def _members(members: list[Any], arrays: Mapping[str, Array], buffers: Buffers) -> list[bytes]:
    """The members of a struct with the padding between them."""
    parts: list[bytes] = []
    offset = 0
    widest = 1
    for member in members:
        kind, mark, value = str(member).partition(":")
        if not mark:
            kind, value = "u64", str(buffers.address_of(_named(kind, arrays)))
        if kind not in _PACKED:
            raise UnknownName("type of a struct's member", kind, _PACKED)
        number = float(value) if kind.startswith("f") else int(value, 0)
        data = struct.pack("<" + _PACKED[kind], number)
        gap = -offset % len(data)
        widest = max(widest, len(data))
        parts += [bytes(gap), data]
        offset += gap + len(data)
    return [*parts, bytes(-offset % widest)]
