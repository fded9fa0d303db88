"""Tensor memory of one CTA: 128 lanes of 512 cells of 32 bits, who has which columns, and what ld, st and cp move.

An address is lane << 16 | column. Warp w of a warpgroup reaches lanes 32 w to 32 w + 31 by ld and st.

Left out: `tcgen05.ld.red` (sm_103a), `tcgen05.shift`, copies that decompress 4 and 6 bits.

Source: PTX ISA, "Tensor Memory", "tcgen05.alloc", "tcgen05.ld", "tcgen05.cp". The manual has only figures of the
fragments; the arithmetic here is that of CUTLASS's layouts (copy_traits_sm100.hpp, SM100_TMEM_LOAD_16dp64b1x and
following, SM100_UTCCP_*).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tilewright.emulate.faults import Fault, NotEmulated

if TYPE_CHECKING:
    from numpy.typing import NDArray

LANES = 128
COLUMNS = 512
COLUMN_UNIT = 32
QUARTER = 32
"""Lanes that one warp reaches."""


def lane_of(address: int) -> int:
    """The lane of an address."""
    return address >> 16 & 0xFFFF


def column_of(address: int) -> int:
    """The column of an address."""
    return address & 0xFFFF


def new_cells() -> NDArray[np.uint32]:
    """Tensor memory at launch; what it holds is unspecified, here a pattern that is a NaN in every type."""
    return np.full((LANES, COLUMNS), 0x7FFF7FFF, np.uint32)


@dataclass(slots=True)
class Allocations:
    """Which columns of a CTA's tensor memory are allocated.

    Attributes:
        live: allocated columns, first to number.
        relinquished: no further allocation may come.
    """

    live: dict[int, int] = field(default_factory=dict)
    relinquished: bool = False
    _last: int = COLUMNS

    def check_request(self, columns: int) -> None:
        """Refuse an allocation that is undefined whatever is free.

        Raises:
            Fault
        """
        if columns not in {32, 64, 128, 256, 512}:
            raise Fault(
                "TC-01",
                f"tcgen05.alloc of {columns} columns; allowed: a power of two from 32 to 512",
                given=columns,
                allowed="32, 64, 128, 256, 512",
            )
        if self.relinquished:
            raise Fault("TC-03", "tcgen05.alloc after the CTA has relinquished its permit")
        if columns > self._last:
            raise Fault(
                "TC-01",
                f"tcgen05.alloc of {columns} columns after one of {self._last}: sizes must not grow",
                given=columns,
                allowed=f"at most {self._last}",
            )

    def find(self, columns: int, *others: Allocations) -> int | None:
        """The first column of the lowest range that is free here and in the others.

        Returns:
            None if there is none now, and alloc waits.
        """
        free = np.ones(COLUMNS, np.bool_)
        for each in (self, *others):
            for first, count in each.live.items():
                free[first : first + count] = False
        for first in range(0, COLUMNS - columns + 1, COLUMN_UNIT):
            if free[first : first + columns].all():
                return first
        return None

    def take(self, first: int, columns: int) -> None:
        """Allocate columns that `find` has found."""
        self.live[first] = columns
        self._last = columns

    def check_owned(self, address: int, columns: int) -> None:
        """Refuse to give back what is not exactly one allocation.

        Raises:
            Fault
        """
        if self.live.get(column_of(address)) != columns or lane_of(address):
            raise Fault(
                "TC-08",
                f"tcgen05.dealloc of {columns} columns at {address:#010x}, which is no allocation; "
                f"{self.describe()}",
                given=f"{address:#010x}",
                allowed=self.describe(),
            )

    def free(self, address: int, columns: int) -> None:
        """Give back.

        Raises:
            Fault: as `check_owned`.
        """
        self.check_owned(address, columns)
        del self.live[column_of(address)]

    def relinquish(self) -> None:
        """Give up the right to allocate."""
        self.relinquished = True

    def check_columns(self, first: int, count: int, what: str) -> None:
        """Refuse an access to columns that are not allocated, or that do not exist.

        Raises:
            Fault
        """
        if first + count > COLUMNS:
            raise Fault(
                "TC-07",
                f"{what} of columns {first} to {first + count - 1}; tensor memory has {COLUMNS}",
                given=first + count,
            )
        free = [
            column
            for column in (first, first + count - 1)
            if not any(start <= column < start + size for start, size in self.live.items())
        ]
        if free:
            raise Fault(
                "TC-07",
                f"{what} of columns {first} to {first + count - 1}, of which {free[0]} is not allocated; "
                f"{self.describe()}",
                given=free[0],
            )

    def describe(self) -> str:
        """What is allocated, for messages."""
        if not self.live:
            return "nothing is allocated"
        ranges = (f"{first} to {first + count - 1}" for first, count in sorted(self.live.items()))
        return f"allocated: columns {', '.join(ranges)}"


class Places(NamedTuple):
    """Cells that the registers of a warp hold, relative to an address; (registers, 32) both."""

    lanes: NDArray[np.int64]
    columns: NDArray[np.int64]


_REGISTERS = {"32x32b": 1, "16x64b": 1, "16x32bx2": 1, "16x128b": 2, "16x256b": 4}
"""Registers of a thread for x1."""


@lru_cache(maxsize=64)
def fragment(shape: str, num: int, split: int = 0) -> Places:
    """Where each register of each lane lies.

    Args:
        shape: "32x32b", "16x64b", "16x128b", "16x256b" or "16x32bx2".
        num: 1 to 128, the `.xN` of the instruction.
        split: columns between the two halves of 16x32bx2.
    Raises:
        NotEmulated: a shape that is none.
    """
    if shape not in _REGISTERS:
        raise NotEmulated(f"tcgen05.ld or tcgen05.st of shape {shape}")
    register, lane = np.ogrid[: num * _REGISTERS[shape], :32]
    if shape == "32x32b":
        lanes, columns = lane + 0 * register, register + 0 * lane
    elif shape == "16x64b":
        lanes, columns = 8 * (lane % 2) + lane // 4 + 0 * register, 2 * register + lane // 2 % 2
    elif shape == "16x128b":
        lanes, columns = lane // 4 + 8 * (register % 2), 4 * (register // 2) + lane % 4
    elif shape == "16x256b":
        lanes = lane // 4 + 8 * (register // 2 % 2)
        columns = 8 * (register // 4) + 2 * (lane % 4) + register % 2
    else:
        lanes, columns = lane % 16 + 0 * register, register + split * (lane // 16)
    return Places(lanes, columns)


def check_quarter(address: int, shape: str, warp: int) -> None:
    """Refuse lanes that the warp does not reach.

    Args:
        warp: its number in the CTA.
    Raises:
        Fault
    """
    lane, first = lane_of(address), QUARTER * (warp % 4)
    allowed = (first,) if shape == "32x32b" else (first, first + 16)
    if lane not in allowed:
        raise Fault(
            "TC-15",
            f"warp {warp} accesses tensor memory from lane {lane} on with shape {shape}; "
            f"allowed: {' or '.join(map(str, allowed))}",
            given=lane,
            allowed=", ".join(map(str, allowed)),
        )


def columns_spanned(shape: str, num: int, *, split: int = 0, packs: bool = False) -> int:
    """Columns from the address on that an ld or st reaches."""
    columns = int(fragment(shape, num).columns.max()) + 1
    return (columns * 2 if packs else columns) + split


def load(
    cells: NDArray[np.uint32],
    address: int,
    shape: str,
    num: int,
    *,
    split: int = 0,
    packs: bool = False,
) -> NDArray[np.uint32]:
    """The registers that tcgen05.ld fills; (registers, 32).

    Args:
        packs: `.pack::16b`: a register holds the low halves of two neighbouring columns.
    """
    lanes, columns = _cells(address, shape, num, split, packs=packs)
    if not packs:
        return cells[lanes, columns]
    return cells[lanes, columns] & np.uint32(0xFFFF) | cells[lanes, columns + 1] << np.uint32(16)


def store(
    cells: NDArray[np.uint32],
    address: int,
    registers: NDArray[np.uint32],
    shape: str,
    num: int,
    *,
    split: int = 0,
    unpacks: bool = False,
) -> None:
    """What tcgen05.st does.

    Args:
        registers: (registers, 32).
        unpacks: `.unpack::16b`: the halves of a register go to two neighbouring columns.
    """
    lanes, columns = _cells(address, shape, num, split, packs=unpacks)
    if not unpacks:
        cells[lanes, columns] = registers
        return
    cells[lanes, columns] = registers & np.uint32(0xFFFF)
    cells[lanes, columns + 1] = registers >> np.uint32(16)


def _cells(
    address: int, shape: str, num: int, split: int, *, packs: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    places = fragment(shape, num)
    lane = np.arange(32)
    halves = split * (lane // 16) if shape == "16x32bx2" else 0 * lane
    columns = places.columns * (2 if packs else 1) + halves + column_of(address)
    return places.lanes + lane_of(address), columns


class Copy(NamedTuple):
    """One form of tcgen05.cp: `rows` rows of `row_bytes`, and the lanes that each goes to; (rows, copies)."""

    rows: int
    row_bytes: int
    lanes: NDArray[np.int64]


def copy_form(shape: str, multicast: str = "") -> Copy:
    """What tcgen05.cp of a shape and a multicast moves.

    Args:
        shape: "128x256b", "4x256b", "128x128b", "64x128b" or "32x128b".
        multicast: "warpx2::02_13", "warpx2::01_23", "warpx4" or nothing.
    Raises:
        NotEmulated: no such form.
    """
    form = (shape, multicast)
    if form in {("128x256b", ""), ("128x128b", "")}:
        return Copy(128, 32 if shape == "128x256b" else 16, np.arange(128)[:, None])
    if form == ("4x256b", ""):
        return Copy(4, 32, QUARTER * np.arange(4)[:, None])
    row, copy = np.ogrid[: int(shape.partition("x")[0]), :4]
    if form == ("64x128b", "warpx2::02_13"):
        return Copy(64, 16, row + 64 * copy[:, :2])
    if form == ("64x128b", "warpx2::01_23"):
        return Copy(64, 16, row % 32 + 64 * (row // 32) + 32 * copy[:, :2])
    if form == ("32x128b", "warpx4"):
        return Copy(32, 16, row + 32 * copy)
    raise NotEmulated(f"tcgen05.cp.{shape}{'.' if multicast else ''}{multicast}")


def copy(cells: NDArray[np.uint32], address: int, form: Copy, data: NDArray[np.uint8]) -> None:
    """What tcgen05.cp does with the bytes it has read; (rows, row bytes)."""
    words = np.ascontiguousarray(data).view(np.uint32)
    columns = column_of(address) + np.arange(form.row_bytes // 4)
    lanes = form.lanes + lane_of(address)
    if lanes.max() >= LANES:
        raise Fault(
            "TC-07", f"tcgen05.cp from lane {lane_of(address)} on reaches lane {lanes.max()}"
        )
    cells[lanes[:, :, None], columns[None, None, :]] = words[:, None, :]
