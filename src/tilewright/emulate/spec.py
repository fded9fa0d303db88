"""What a kernel is launched with, as a TOML file or JSON says it.

    grid = [16, 1, 1]                   # and cluster, block, smem_bytes, kernel; options of the command win
    args = ["counts", 5, { map = "a", box = [64, 64], swizzle = "128B" }, { struct = ["a", "u32:7"] }]

    [arrays.counts]
    dtype = "u32"                       # a PTX type (u32, f32, bf16, e4m3, …)
    shape = [16]
    fill = 0                            # a number, a list, "arange" or "random" (small, exact); or file = "x.npy"
    expect = 1                          # likewise, or expect_file; with atol and rtol; left out: not checked

A string in `args` is an array's address; a number is passed as its parameter says. A struct lists its members:
arrays by name, or "type:value" (u8 to u64, s32, f32, …), packed with C's alignment.
"""

from __future__ import annotations

import io
import struct
import tomllib
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
from numpy.lib import format as npy
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from tilewright.emulate import numbers
from tilewright.emulate.explore import Expected
from tilewright.emulate.launch import prepare
from tilewright.emulate.memory import Buffers
from tilewright.emulate.tensor_map import TensorMap
from tilewright.errors import BadInput, UnknownName
from tilewright.refusal import refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tilewright.emulate.launch import Launch
    from tilewright.emulate.registers import Array
    from tilewright.ptx.nodes import Module

    ReadFile = Callable[[str], bytes]
    """The content of a file that a launch names."""

_PLAIN: dict[str, Any] = {
    **{f"{sign}{bits}": np.dtype(f"{kind}{bits // 8}") for sign, kind in (("u", "u"), ("s", "i"), ("b", "u")) for bits in (8, 16, 32, 64)},
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}  # fmt: skip
_ENCODED = {"bf16": np.dtype(np.uint16), "e4m3": np.dtype(np.uint8), "e5m2": np.dtype(np.uint8)}
"""Types that numpy does not have: kept as bits."""

STORAGE = {**_PLAIN, **_ENCODED}
_PACKED = {"u8": "B", "s8": "b", "u16": "H", "s16": "h", "u32": "I", "s32": "i", "u64": "Q", "s64": "q", "f32": "f", "f64": "d"}  # fmt: skip

ARRAYS_MAX = 64
"""Arrays, arguments and members of a struct that a launch may have."""

SMEM_BYTES_MAX = 232_448
"""Of a CTA: what the largest GPUs let a kernel opt into (CUDA C++ Programming Guide, compute capability 9.0, 10.0)."""


def _known_dtype(name: str) -> str:
    if name not in STORAGE:
        raise UnknownName("dtype of an array", name, STORAGE)
    return name


def _listed(given: Any) -> Any:
    return (given,) if isinstance(given, int) else given


def _extents(most: int) -> Any:
    """One number, or one to `most` of them."""
    return (
        BeforeValidator(_listed, json_schema_input_type=int | tuple[int, ...]),
        Field(min_length=1, max_length=most),
    )


Triple = Annotated[tuple[Annotated[int, Field(ge=1)], ...], *_extents(3)]
Values = int | float | str | list[Any]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ArraySpec(_Part):
    """An array in global memory: what it holds before the launch, and what it must hold after it."""

    dtype: Annotated[
        str, AfterValidator(_known_dtype), Field(json_schema_extra={"enum": list(STORAGE)})
    ] = "u32"
    shape: Annotated[tuple[Annotated[int, Field(ge=0)], ...], *_extents(8)] | None = None
    fill: Annotated[
        Values | None, Field(description='A number, a list, "arange" or "random"; 0 unless given.')
    ] = None
    file: Annotated[str | None, Field(description="A .npy file instead of shape and fill.")] = None
    expect: Annotated[Values | None, Field(description="Likewise; not checked unless given.")] = (
        None
    )
    expect_file: str | None = None
    atol: float = Field(default=0.0, ge=0)
    rtol: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if self.file is None and self.shape is None:
            raise ValueError("no shape, and no file that has one")
        if self.file is not None and (self.fill is not None or self.shape is not None):
            raise ValueError("file has shape and values: give it or shape and fill")
        if self.expect is not None and self.expect_file is not None:
            raise ValueError("give expect or expect_file")
        return self

    @property
    def storage(self) -> np.dtype[Any]:
        """The numpy type that holds its elements."""
        found: np.dtype[Any] = STORAGE[self.dtype]
        return found

    @property
    def nbytes(self) -> int:
        """Of what it says itself; what its files hold is not counted."""
        count = 1
        for extent in self.shape or (0,):
            count *= extent
        return count * self.storage.itemsize * (2 if self.expect is not None else 1)


class MapArgument(_Part):
    """A tensor map of an array: one box of it is copied at a time."""

    map: str
    box: Annotated[tuple[int, ...], Field(min_length=1, max_length=5)]
    swizzle: str = "none"


class StructArgument(_Part):
    """A struct: arrays by name, or "type:value"."""

    struct: Annotated[tuple[str, ...], Field(max_length=ARRAYS_MAX)]


Argument = int | float | str | MapArgument | StructArgument


class LaunchSpec(_Part):
    """A launch as it is written.

    Attributes:
        cluster, block: of the kernel's directives unless given.
    """

    grid: Annotated[Triple | None, Field(description="CTAs along x, y, z.")] = None
    cluster: Annotated[Triple | None, Field(description="CTAs of a cluster.")] = None
    block: Annotated[Triple | None, Field(description="Threads of a CTA.")] = None
    smem_bytes: int = Field(
        default=0, ge=0, le=SMEM_BYTES_MAX, description="Dynamic shared memory of a CTA."
    )
    kernel: Annotated[
        str | None, Field(description="Name of the entry, where there are several.")
    ] = None
    args: Annotated[
        tuple[Argument, ...],
        Field(max_length=ARRAYS_MAX, description="Arrays by name, numbers, maps, structs."),
    ] = ()
    arrays: Annotated[dict[str, ArraySpec], Field(max_length=ARRAYS_MAX)] = {}

    @classmethod
    def parse(cls, text: str, name: str) -> LaunchSpec:
        """The launch of a TOML text.

        Raises:
            BadInput, UnknownName: no TOML, or keys or values that mean nothing.
        """
        try:
            return cls.model_validate(tomllib.loads(text))
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise BadInput(f"{name}: {error}", given=name) from None
        except ValidationError as error:
            raise refused(error, cls, f"key of {name}", name) from None

    @property
    def nbytes(self) -> int:
        """Of all arrays, without what their files hold."""
        return sum(array.nbytes for array in self.arrays.values())

    def prepare(
        self, module: Module, read: ReadFile, **given: Any
    ) -> tuple[Launch, list[Expected]]:
        """The launch, and what is expected of it.

        Args:
            given: grid, cluster, block, smem_bytes, kernel of the caller, which win where not None.
        Raises:
            BadInput: a launch that CUDA would refuse, or arrays that are not what they are said to be.
            NotModelled: as `launch.prepare`.
        """
        names = ("grid", "cluster", "block", "smem_bytes", "kernel")
        chosen = {name: getattr(self, name) for name in names}
        chosen |= {key: value for key, value in given.items() if value is not None}
        if chosen["grid"] is None:
            raise BadInput("the launch has no grid: CTAs along x, y, z", allowed="x,y,z")
        buffers = Buffers()
        arrays: dict[str, Array] = {}
        expected: list[Expected] = []
        for name, spec in self.arrays.items():
            arrays[name] = array = _before(name, spec, read)
            buffers.address_of(array, name)
            if spec.expect is not None or spec.expect_file is not None:
                wanted = _after(name, spec, array.shape, read)
                expected.append(Expected(array, wanted, name, atol=spec.atol, rtol=spec.rtol))
        args = [self._argument(arg, arrays, buffers) for arg in self.args]
        return prepare(module, args=args, buffers=buffers, **chosen), expected

    def _argument(self, arg: Argument, arrays: Mapping[str, Array], buffers: Buffers) -> Any:
        if isinstance(arg, str):
            return _named(arg, arrays)
        if isinstance(arg, StructArgument):
            return b"".join(_members(arg.struct, arrays, buffers))
        if not isinstance(arg, MapArgument):
            return arg
        array = _named(arg.map, arrays)
        dtype = self.arrays[arg.map].dtype
        return TensorMap.of(
            array,
            buffers.address_of(array),
            arg.box,
            swizzle=arg.swizzle,
            dtype="u8" if dtype in {"e4m3", "e5m2"} else dtype if dtype in _ENCODED else "",
        ).encode()


def read_launch(path: Path) -> LaunchSpec:
    """A launch file.

    Raises:
        BadInput, UnknownName: no such file, or not one of these.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadInput(f"no file {path}", given=path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: {error}", given=path) from None
    return LaunchSpec.parse(text, str(path))


def files_in(folder: Path) -> ReadFile:
    """What reads the files that a launch names: relative to a folder.

    Raises:
        BadInput: of the answer, where a file cannot be read.
    """

    def read(name: str) -> bytes:
        try:
            return (folder / name).read_bytes()
        except OSError as error:
            raise BadInput(f"{name} cannot be read: {error.strerror}", given=name) from None

    return read


# --- arrays -------------------------------------------------------------------------------------------


def _before(name: str, spec: ArraySpec, read: ReadFile) -> Array:
    if spec.file is not None:
        return _from_file(spec, spec.file, read)
    return _filled(name, spec, 0 if spec.fill is None else spec.fill, spec.shape or ())


def _after(name: str, spec: ArraySpec, shape: tuple[int, ...], read: ReadFile) -> Array:
    if spec.expect_file is None:
        return _filled(name, spec, spec.expect, shape)
    found = _from_file(spec, spec.expect_file, read)
    try:
        np.broadcast_to(found, shape)
    except ValueError:
        raise BadInput(
            f"array {name} has shape {list(shape)}, {spec.expect_file} {list(found.shape)}",
            given=found.shape,
            allowed=str(list(shape)),
        ) from None
    return found


def _from_file(spec: ArraySpec, file: str, read: ReadFile) -> Array:
    found = parse_npy(read(file), file)
    if found.dtype.itemsize != spec.storage.itemsize:
        raise BadInput(
            f"{file} holds {found.dtype}, not {spec.dtype}", given=found.dtype, allowed=spec.dtype
        )
    return np.ascontiguousarray(found).view(spec.storage)


def parse_npy(content: bytes, name: str) -> Array:
    """The array of a .npy file; no more memory is taken than the file has bytes.

    Raises:
        BadInput: no such file, Python objects in it, or fewer bytes than its shape needs.
    """
    stream = io.BytesIO(content)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    try:
        version = npy.read_magic(stream)
        shape, is_fortran, dtype = readers[version](stream)
        if dtype.hasobject:
            raise ValueError("it holds Python objects")  # noqa: TRY301  (one place makes errors)
        count = 1
        for extent in shape:
            count *= extent
        flat = np.frombuffer(content, dtype, count, stream.tell())
        return flat.reshape(shape, order="F" if is_fortran else "C").copy()
    except (ValueError, KeyError, EOFError, OverflowError) as error:
        raise BadInput(f"{name} is not a readable .npy file: {error}", given=name) from None


def _named(name: str, arrays: Mapping[str, Array]) -> Array:
    if name not in arrays:
        raise UnknownName("array", name, arrays)
    return arrays[name]


def _filled(name: str, spec: ArraySpec, fill: Any, shape: tuple[int, ...]) -> Array:
    """Values as the array's type keeps them."""
    try:
        values = _values(name, fill, shape)
        if spec.dtype in _ENCODED:
            return numbers.encode(values.astype(np.float32), spec.dtype)
        return values.astype(spec.storage)
    except (ValueError, TypeError, OverflowError) as error:
        raise BadInput(
            f"array {name}: values do not fit {spec.dtype} of shape {list(shape)}: {error}",
            given=name,
        ) from None


def _values(name: str, fill: Any, shape: tuple[int, ...]) -> Array:
    if fill == "arange":
        return np.arange(int(np.prod(shape))).reshape(shape)
    if fill == "random":
        seed = sum(name.encode())
        return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float64) / 4
    if isinstance(fill, list):
        return np.array(fill).reshape(shape)
    if isinstance(fill, str):
        raise BadInput(
            f'array {name}: fill "{fill}"', given=fill, allowed="a number, a list, arange, random"
        )
    return np.full(shape, fill)


def _members(
    members: tuple[str, ...], arrays: Mapping[str, Array], buffers: Buffers
) -> list[bytes]:
    """The members of a struct with the padding between them."""
    parts: list[bytes] = []
    offset = 0
    widest = 1
    for member in members:
        kind, mark, value = member.partition(":")
        if not mark:
            kind, value = "u64", str(buffers.address_of(_named(kind, arrays)))
        if kind not in _PACKED:
            raise UnknownName("type of a struct's member", kind, _PACKED)
        try:
            number = float(value) if kind.startswith("f") else int(value, 0)
            data = struct.pack("<" + _PACKED[kind], number)
        except (ValueError, OverflowError, struct.error) as error:
            raise BadInput(f'member "{member}" of a struct: {error}', given=member) from None
        gap = -offset % len(data)
        widest = max(widest, len(data))
        parts += [bytes(gap), data]
        offset += gap + len(data)
    return [*parts, bytes(-offset % widest)]
