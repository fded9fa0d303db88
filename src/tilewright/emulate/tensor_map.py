"""Tensor maps: which bytes of global and of shared memory one TMA copy moves.

A `TensorMap` says what cuTensorMapEncodeTiled is told. The 128 bytes that the driver makes of it are not
published, so the emulator has its own: `TensorMap.encode` packs every field, `TensorMap.decode` reads them back.
A kernel takes such bytes wherever it takes a tensor map (in a parameter, a constant, global memory), may copy
them, and may change their fields with `tensormap.replace`.

A box is dense in shared memory, innermost dimension first, and its bytes are swizzled by their shared address.
Elements outside the tensor are filled, and counted like the others.

Left out: im2col modes, interleaved layouts, element types below a byte, swizzle of 96 bytes.

Source: CUDA driver API, cuTensorMapEncodeTiled; PTX ISA, "Tensors" and `cp.async.bulk.tensor`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilewright.emulate import numbers
from tilewright.emulate.faults import Fault, NotEmulated
from tilewright.emulate.swizzle import SWIZZLES
from tilewright.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tilewright.emulate.swizzle import Swizzle

MAP_BYTES = 128
MAP_ALIGNMENT = 64
SHARED_ALIGNMENT = 128
"""Bytes; of a box in shared memory. Source: CUDA C++ Programming Guide, "TMA"; seen as a fault on an H200."""
MAGIC = b"TMAPEMU1"
_LAYOUT = struct.Struct("<8s5B3xQ5I4Q5H5B")
"""Magic; rank, element type, swizzle, fill, interleave; address; extents less one; strides; box; element strides."""

ELEMENT_BYTES = {
    "u8": 1,
    "u16": 2,
    "u32": 4,
    "s32": 4,
    "u64": 8,
    "s64": 8,
    "f16": 2,
    "f32": 4,
    "f64": 8,
    "bf16": 2,
    "f32_ftz": 4,
    "tf32": 4,
    "tf32_ftz": 4,
}
"""Bytes of an element, in the order of CUtensorMapDataType."""

NAMES = tuple(ELEMENT_BYTES)
_MODES = tuple(SWIZZLES)
FLOATS = frozenset({"f16", "f32", "f64", "bf16", "f32_ftz", "tf32", "tf32_ftz"})
_OOB_NAN = {2: 0x7FF7, 4: 0x7FF77FF7, 8: 0x7FF77FF77FF77FF7}
"""The manual says "a special NaN" and no bits. Those of 2 and 4 bytes: an H200; of 8 bytes: assumed alike."""

UNIT_BYTES = 16
"""Of global memory: a box begins at a multiple of it in its row, and stores clip a row at multiples of it.

Source: an H200 (tests/data/h200/micro.json); the manual says so of addresses and strides only. A box that begins
elsewhere ends the launch as an illegal instruction, wherever it lies.
"""


class Transfer(NamedTuple):
    """The elements of one box, in the order of shared memory before swizzling.

    Attributes:
        in_global: byte offset of each element from the map's address; meaningless where not `inside`.
        inside: whether the element lies within the tensor; for a store, whether it is written.
        in_shared: shared address of each element, swizzled. Rows that are shorter than the swizzle's span are
            padded to it (seen on an H200).
        size_bytes: what the copy counts as; `room_bytes` with the padding.
        beyond: elements that a store writes past the end of a row, for stores clip rows at multiples of UNIT_BYTES.
    """

    in_global: NDArray[np.int64]
    inside: NDArray[np.bool_]
    in_shared: NDArray[np.int64]
    size_bytes: int
    room_bytes: int
    beyond: int = 0


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tiled tensor map, innermost dimension first.

    Attributes:
        dtype: a key of ELEMENT_BYTES.
        address: of the first element, in global memory.
        dims: elements along each dimension.
        strides_bytes: of every dimension but the innermost, whose elements are adjacent.
        box: elements that a copy spans along each dimension.
        element_strides: every how many-th of them it takes; all of them when empty. The first is ignored, as
            without interleaving the driver says it is.
        swizzle: a key of SWIZZLES.
        nan_fill: elements outside are NaN instead of zero.
    """

    dtype: str
    address: int
    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    swizzle: str = "none"
    nan_fill: bool = False

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dims)

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def steps(self) -> tuple[int, ...]:
        """`element_strides`, written out; TMA ignores that of the innermost dimension."""
        return (1, *self.element_strides[1:]) if self.element_strides else (1,) * self.rank

    @property
    def box_elements(self) -> tuple[int, ...]:
        """Elements that a copy moves along each dimension."""
        return tuple(-(-size // step) for size, step in zip(self.box, self.steps, strict=True))

    @property
    def box_bytes(self) -> int:
        """Bytes that a copy moves."""
        return int(np.prod(self.box_elements)) * self.element_bytes

    @property
    def mode(self) -> Swizzle:
        """The swizzle."""
        return SWIZZLES[self.swizzle]

    def check(self) -> TensorMap:
        """The map itself, where the driver would encode it.

        Raises:
            UnknownName: of the element type or the swizzle.
            BadInput: a value outside the limits of cuTensorMapEncodeTiled.
        """
        if self.dtype not in ELEMENT_BYTES:
            raise UnknownName("element type of a tensor map", self.dtype, ELEMENT_BYTES)
        if self.swizzle not in SWIZZLES:
            raise UnknownName("swizzle of a tensor map", self.swizzle, SWIZZLES)
        _within("rank", self.rank, 1, 5)
        for what, values, size in (
            ("strides", self.strides_bytes, self.rank - 1),
            ("box", self.box, self.rank),
            ("element strides", self.element_strides or self.steps, self.rank),
        ):
            if len(values) != size:
                raise BadInput(
                    f"a tensor map of rank {self.rank} has {size} {what}, not {len(values)}",
                    given=values,
                    allowed=f"{size} values",
                )
        _multiple("address", self.address, 16)
        for extent in self.dims:
            _within("extent", extent, 1, 1 << 32)
        for stride in self.strides_bytes:
            _multiple("stride in bytes", stride, 16)
            _within("stride in bytes", stride, 0, (1 << 40) - 1)
        for size, step in zip(self.box, self.element_strides or self.steps, strict=True):
            _within("box extent", size, 1, 256)
            _within("element stride", step, 1, 8)
        inner_bytes = self.box[0] * self.element_bytes
        _multiple("innermost box extent in bytes", inner_bytes, 16)
        if self.mode.bits:
            _within(
                f"innermost box extent in bytes with swizzle {self.swizzle}",
                inner_bytes,
                16,
                self.mode.span_bytes,
            )
        if self.nan_fill and self.dtype not in FLOATS:
            raise BadInput(
                f"elements of type {self.dtype} cannot be filled with NaN",
                given=self.dtype,
                allowed=", ".join(sorted(FLOATS)),
            )
        return self

    def encode(self) -> bytes:
        """128 bytes that stand for this map in the emulator, and in it only.

        Raises:
            UnknownName, BadInput: as `check`.
        """
        self.check()
        missing = 5 - self.rank
        packed = _LAYOUT.pack(
            MAGIC,
            self.rank,
            NAMES.index(self.dtype),
            _MODES.index(self.swizzle),
            self.nan_fill,
            0,
            self.address,
            *(extent - 1 for extent in self.dims),
            *(0,) * missing,
            *self.strides_bytes,
            *(0,) * missing,
            *self.box,
            *(1,) * missing,
            *self.steps,
            *(1,) * missing,
        )
        return packed.ljust(MAP_BYTES, b"\0")

    @classmethod
    def decode(cls, encoded: bytes) -> TensorMap:
        """The map that `encode` packed.

        Raises:
            Fault: the bytes are none, or fields were replaced by what TMA does not take.
        """
        fields = _LAYOUT.unpack(encoded[: _LAYOUT.size])
        magic, rank, dtype, swizzle, nan_fill, interleave, address = fields[:7]
        if magic != MAGIC:
            raise Fault(
                "TMA-11",
                "these 128 bytes are no tensor map of the emulator: pass the bytes of TensorMap.encode(), "
                "not what cuTensorMapEncodeTiled makes",
                given=encoded[:16].hex(),
            )
        if interleave:
            raise NotEmulated("an interleaved layout of a tensor map")
        if not 1 <= rank <= 5:
            raise Fault("TMA-14", f"rank {rank} of a tensor map that TMA does not take", given=rank)
        found = cls(
            NAMES[dtype] if dtype < len(NAMES) else f"number {dtype}",
            address,
            tuple(extent + 1 for extent in fields[7 : 7 + rank]),
            fields[12 : 11 + rank],
            fields[16 : 16 + rank],
            fields[21 : 21 + rank],
            _MODES[swizzle] if swizzle < len(_MODES) else f"number {swizzle}",
            bool(nan_fill),
        )
        try:
            return found.check()
        except (BadInput, UnknownName) as error:
            raise Fault("TMA-14", f"a tensor map that TMA does not take: {error}") from None

    @classmethod
    def of(
        cls,
        array: NDArray[Any],
        address: int,
        box: Sequence[int],
        *,
        dtype: str = "",
        swizzle: str = "none",
        nan_fill: bool = False,
    ) -> TensorMap:
        """The map of a numpy array that lies at `address`; its last axis is the innermost dimension.

        Args:
            box: elements along each axis of the array, in the array's order.
            dtype: where numpy has no name for it, as bf16 in uint16; else the array's own.
        Raises:
            UnknownName, BadInput
        """
        kind = {"f": "f", "i": "s", "u": "u"}.get(array.dtype.kind, array.dtype.kind)
        return cls(
            dtype or f"{kind}{8 * array.dtype.itemsize}",
            address,
            tuple(reversed(array.shape)),
            tuple(reversed(array.strides[:-1])),
            tuple(reversed(box)),
            swizzle=swizzle,
            nan_fill=nan_fill,
        ).check()

    @property
    def fill(self) -> int:
        """The bits of an element outside the tensor."""
        return _OOB_NAN[self.element_bytes] if self.nan_fill else 0

    def transfer(
        self, coordinates: Sequence[int], shared: int, *, is_store: bool = False
    ) -> Transfer:
        """What a copy of the box at `coordinates` to or from `shared` moves.

        Args:
            coordinates: of the box's first element, innermost first; of a load they may be negative.
            shared: address of the box in shared memory.
            is_store: from shared memory, a reduction included.
        Raises:
            Fault: coordinates of another rank, or coordinates or a shared address that TMA does not take.
        """
        if len(coordinates) != self.rank:
            raise Fault(
                "TMA-14",
                f"a copy with {len(coordinates)} coordinates from a tensor map of rank {self.rank}",
                given=len(coordinates),
                allowed=str(self.rank),
            )
        places = [
            np.arange(count, dtype=np.int64) * step + start
            for count, step, start in zip(self.box_elements, self.steps, coordinates, strict=True)
        ]
        return self._transfer(places, shared, is_store=is_store)

    def gather_rows(
        self, coordinates: Sequence[int], shared: int, *, is_store: bool = False
    ) -> Transfer:
        """What `.tile::gather4` and `.tile::scatter4` move: four rows of a tensor of two dimensions.

        Args:
            coordinates: the column, then four rows.
            shared: address of the four rows in shared memory.
        Raises:
            Fault: another number of coordinates, a map of another rank, a box of more than a row.
        """
        if len(coordinates) != 5 or self.rank != 2 or self.box[1] != 1:
            raise Fault(
                "TMA-14",
                f"four rows need 5 coordinates, a map of rank 2 and a box of one row, not {len(coordinates)} "
                f"coordinates, rank {self.rank} and a box of {self.box}",
            )
        columns = np.arange(self.box_elements[0], dtype=np.int64) * self.steps[0] + coordinates[0]
        rows = np.array(coordinates[1:], np.int64)
        return self._transfer([columns, rows], shared, is_store=is_store)

    def _transfer(
        self, places: Sequence[NDArray[np.int64]], shared: int, *, is_store: bool
    ) -> Transfer:
        self._check_start(places, is_store=is_store)
        if shared % SHARED_ALIGNMENT:
            raise Fault(
                "TMA-01",
                f"shared address {shared:#x} of a tensor copy is no multiple of {SHARED_ALIGNMENT}",
                given=hex(shared),
                allowed=f"a multiple of {SHARED_ALIGNMENT}",
            )
        strides = (self.element_bytes, *self.strides_bytes)
        offsets = np.zeros(1, np.int64)
        inside = np.ones(1, np.bool_)
        for place, extent, stride in zip(places, self.dims, strides, strict=True):
            offsets = (place[:, None] * stride + offsets).ravel()
            inside = (((place >= 0) & (place < extent))[:, None] & inside).ravel()
        row = len(places[0])
        written = inside
        if is_store:
            unit = UNIT_BYTES // self.element_bytes
            clipped = places[0] < -(-self.dims[0] // unit) * unit
            rows = inside.reshape(-1, row).any(axis=1, keepdims=True)
            written = np.logical_and(rows, clipped).ravel()
        pitch_bytes = max(row * self.element_bytes, self.mode.span_bytes if self.mode.bits else 0)
        lines = len(offsets) // row
        addresses = (
            shared
            + np.arange(lines, dtype=np.int64)[:, None] * pitch_bytes
            + np.arange(row, dtype=np.int64) * self.element_bytes
        ).ravel()
        return Transfer(
            offsets,
            written,
            self.mode.apply(addresses),
            len(offsets) * self.element_bytes,
            lines * pitch_bytes,
            int(np.count_nonzero(written) - np.count_nonzero(inside)),
        )

    def _check_start(self, places: Sequence[NDArray[np.int64]], *, is_store: bool) -> None:
        """Refuse a box that begins where an H200 ends the launch as an illegal instruction."""
        column = int(places[0][0])
        if column * self.element_bytes % UNIT_BYTES:
            unit = UNIT_BYTES // self.element_bytes
            raise Fault(
                "ALIGN",
                f"a box that begins at element {column} of a row, byte {column * self.element_bytes}; TMA takes "
                f"multiples of {UNIT_BYTES} bytes, here of {unit} elements (an H200 ends the launch as an illegal instruction)",
                given=column,
                allowed=f"a multiple of {unit}",
            )
        least = min(int(place.min()) for place in places)
        if is_store and least < 0:
            raise Fault(
                "TMA-15",
                f"a store or reduction at the negative coordinate {least}: only loads may begin before the tensor "
                "(an H200 ends the launch as an illegal instruction)",
                given=least,
                allowed="0 and more",
            )

    def load(self, tensor: NDArray[Any], moved: Transfer, start: int = 0) -> NDArray[Any]:
        """The elements that a load brings, one for each of `moved.in_shared`.

        Args:
            tensor: global memory as unsigned elements.
            start: byte in it at which the map's address lies.
        """
        at = (moved.in_global + start) // self.element_bytes
        if moved.inside.all():
            return self._loaded(tensor[at])
        found = np.full(len(at), self.fill, tensor.dtype)
        found[moved.inside] = self._loaded(tensor[at[moved.inside]])
        return found

    def _loaded(self, bits: NDArray[Any]) -> NDArray[Any]:
        """Elements as a load leaves them: tf32 is rounded to nearest even, `_ftz` types lose their subnormals."""
        if self.dtype.endswith("_ftz"):
            bits = np.where(bits & 0x7F800000, bits, bits & 0x80000000)
        if self.dtype.startswith("tf32"):
            return numbers.encode(bits.view(np.float32), "tf32")
        return bits

    def replaced(self, **changes: Any) -> TensorMap:
        """The map with some attributes changed, checked."""
        return replace(self, **changes).check()


def _within(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise BadInput(
            f"{what} {value} of a tensor map; {low} to {high} are allowed",
            given=value,
            allowed=f"{low} to {high}",
            nearest=str(min(max(value, low), high)),
        )


def _multiple(what: str, value: int, unit: int) -> None:
    if value % unit:
        raise BadInput(
            f"{what} {value} of a tensor map is no multiple of {unit}",
            given=value,
            allowed=f"a multiple of {unit}",
            nearest=str(-(-value // unit) * unit),
        )
