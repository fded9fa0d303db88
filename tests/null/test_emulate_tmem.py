"""Tensor memory: fragments against CUTLASS's layouts, allocation against the manual's rules."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.emulate.faults import Fault, NotEmulated
from tilewright.emulate.tmem import (
    Allocations,
    check_quarter,
    columns_spanned,
    copy,
    copy_form,
    fragment,
    load,
    new_cells,
    store,
)

# CUTLASS, copy_traits_sm100.hpp, SM100_TMEM_LOAD_<dp>b<num>x: bits of a lane, and (lane, register) -> bit, where bit
# counts along the columns of the first TMEM lane, then of the next. Flat CuTe shapes and strides.
LAYOUTS = {
    ("32x32b", 1): (32, ([32], [32]), ([], [])),
    ("32x32b", 4): (128, ([32], [128]), ([4], [32])),
    ("16x64b", 1): (64, ([2, 2, 8], [512, 32, 64]), ([], [])),
    ("16x64b", 2): (128, ([2, 2, 8], [1024, 32, 128]), ([2], [64])),
    ("16x64b", 4): (256, ([2, 2, 8], [2048, 32, 256]), ([4], [64])),
    ("16x128b", 1): (128, ([4, 8], [32, 128]), ([2], [1024])),
    ("16x128b", 2): (256, ([4, 8], [32, 256]), ([2, 2], [2048, 128])),
    ("16x128b", 4): (512, ([4, 8], [32, 512]), ([2, 4], [4096, 128])),
    ("16x256b", 1): (256, ([4, 8], [64, 256]), ([2, 2], [32, 2048])),
    ("16x256b", 2): (512, ([4, 8], [64, 512]), ([2, 2, 2], [32, 4096, 256])),
    ("16x256b", 4): (1024, ([4, 8], [64, 1024]), ([2, 2, 4], [32, 8192, 256])),
    # The second half of 16x32bx2 lies where the instruction says; CUTLASS puts it right behind the first.
    ("16x32bx2", 1): (64, ([16, 2], [64, 32]), ([], [])),
    ("16x32bx2", 4): (256, ([16, 2], [256, 128]), ([4], [32])),
}


def place(layout: tuple[list[int], list[int]], index: int) -> int:
    found = 0
    for extent, step in zip(*layout, strict=True):
        found += index % extent * step
        index //= extent
    return found


@pytest.mark.parametrize(("shape", "num"), LAYOUTS)
def test_fragments_are_cutlasss(shape: str, num: int) -> None:
    lane_bits, threads, registers = LAYOUTS[shape, num]
    split = lane_bits // 64 if shape == "16x32bx2" else 0
    lanes, columns = fragment(shape, num, split)
    columns = np.broadcast_to(columns, lanes.shape)
    for register in range(len(lanes)):
        for thread in range(32):
            bit = place(threads, thread) + place(registers, register)
            found = (int(lanes[register, thread]), int(columns[register, thread]))
            assert found == (bit // lane_bits, bit % lane_bits // 32)


# PTX ISA, table 47: registers of a thread.
@pytest.mark.parametrize(
    ("shape", "num", "registers"),
    [("32x32b", 128, 128), ("16x64b", 64, 64), ("16x128b", 64, 128), ("16x256b", 32, 128)],
)
def test_registers_of_the_manual(shape: str, num: int, registers: int) -> None:
    lanes, columns = fragment(shape, num)
    assert lanes.shape == columns.shape == (registers, 32)
    cells = set(zip(lanes.ravel().tolist(), columns.ravel().tolist(), strict=True))
    assert len(cells) == 32 * registers  # nothing twice
    rows = 32 if shape == "32x32b" else 16
    assert {lane for lane, _ in cells} == set(range(rows))
    assert columns_spanned(shape, num) == 32 * registers // rows


@pytest.mark.parametrize("shape", ["32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"])
@pytest.mark.parametrize("packs", [False, True])
def test_what_is_stored_is_loaded(shape: str, packs: bool) -> None:
    cells = new_cells()
    split = 24 if shape == "16x32bx2" else 0
    count = len(fragment(shape, 2, split).lanes)
    registers = np.random.default_rng(1).integers(0, 2**32, (count, 32), dtype=np.uint32)
    address = 32 << 16 | 64
    store(cells, address, registers, shape, 2, split=split, unpacks=packs)
    found = load(cells, address, shape, 2, split=split, packs=packs)
    np.testing.assert_array_equal(found, registers)
    touched = np.argwhere(cells != new_cells())
    assert touched[:, 0].min() == 32
    assert touched[:, 1].max() < 64 + columns_spanned(shape, 2, split=split, packs=packs)


def test_packing_takes_neighbouring_columns() -> None:
    # PTX ISA, "Packing and Unpacking": two 16-bit chunks of adjacent columns in one register.
    cells = new_cells()
    cells[:, :64] = np.arange(64)[None, :]
    found = load(cells, 0, "32x32b", 4, packs=True)
    assert [hex(value) for value in found[:, 5].tolist()] == [
        "0x10000",
        "0x30002",
        "0x50004",
        "0x70006",
    ]


def test_allocation() -> None:
    at = Allocations()
    at.check_request(256)
    at.take(0, 256)
    at.check_request(128)
    assert at.find(128) == 256
    at.take(256, 128)
    assert at.find(256) is None
    at.free(0, 256)
    assert at.find(64) == 0
    at.take(0, 64)
    assert at.describe() == "allocated: columns 0 to 63, 256 to 383"
    at.free(256, 128)
    at.free(0, 64)
    assert not at.live


@pytest.mark.parametrize("columns", [0, 16, 31, 96, 1024])
def test_sizes_that_are_none(columns: int) -> None:
    with pytest.raises(Fault, match=f"of {columns} columns; allowed: a power of two") as found:
        Allocations().check_request(columns)
    assert found.value.rule == "TC-01"


def test_allocations_that_are_undefined() -> None:
    at = Allocations()
    at.take(0, 64)
    with pytest.raises(Fault, match="sizes must not grow"):
        at.check_request(128)
    with pytest.raises(Fault, match="allocated: columns 0 to 63") as found:
        at.free(0, 32)
    assert found.value.rule == "TC-08"
    with pytest.raises(Fault, match="which is no allocation"):
        at.free(32, 64)
    at.free(0, 64)
    with pytest.raises(Fault, match="nothing is allocated"):
        at.free(0, 64)
    at.relinquish()
    with pytest.raises(Fault, match="relinquished") as found:
        at.check_request(32)
    assert found.value.rule == "TC-03"


def test_columns_that_nobody_has() -> None:
    at = Allocations()
    at.take(64, 64)
    at.check_columns(64, 64, "tcgen05.ld")
    with pytest.raises(Fault, match="of which 128 is not allocated"):
        at.check_columns(100, 29, "tcgen05.ld")
    with pytest.raises(Fault, match="tensor memory has 512"):
        at.check_columns(500, 32, "tcgen05.mma")


def test_quarters() -> None:
    # PTX ISA, "Access restrictions".
    for warp in range(12):
        check_quarter(32 * (warp % 4) << 16, "32x32b", warp)
        check_quarter(32 * (warp % 4) + 16 << 16, "16x64b", warp)
    with pytest.raises(Fault, match="warp 5 accesses tensor memory from lane 0 on") as found:
        check_quarter(0, "32x32b", 5)
    assert found.value.rule == "TC-15"
    with pytest.raises(Fault, match="lane 16"):
        check_quarter(16 << 16, "32x32b", 0)


# CUTLASS, SM100_UTCCP_*: which lanes a row goes to.
@pytest.mark.parametrize(
    ("shape", "multicast", "row", "lanes"),
    [
        ("128x256b", "", 77, [77]),
        ("128x128b", "", 77, [77]),
        ("4x256b", "", 3, [96]),
        ("64x128b", "warpx2::02_13", 40, [40, 104]),
        ("64x128b", "warpx2::01_23", 8, [8, 40]),
        ("64x128b", "warpx2::01_23", 40, [72, 104]),
        ("32x128b", "warpx4", 7, [7, 39, 71, 103]),
    ],
)
def test_copies(shape: str, multicast: str, row: int, lanes: list[int]) -> None:
    form = copy_form(shape, multicast)
    assert form.lanes[row].tolist() == lanes
    data = np.random.default_rng(2).integers(0, 256, (form.rows, form.row_bytes)).astype(np.uint8)
    cells = new_cells()
    copy(cells, 16, form, data)
    for lane in lanes:
        words = cells[lane, 16 : 16 + form.row_bytes // 4]
        np.testing.assert_array_equal(words, data[row].view(np.uint32))
    assert (cells[:, 16 + form.row_bytes // 4 :] == new_cells()[0, 0]).all()


def test_what_is_left_out_is_named() -> None:
    with pytest.raises(NotEmulated, match="64x128b"):
        copy_form("64x128b")
    with pytest.raises(NotEmulated, match="8x8b"):
        fragment("8x8b", 1)
