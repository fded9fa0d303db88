"""Swizzles against the tables of the PTX manual, "Swizzling Modes", in pieces of 16 bytes."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.emulate.swizzle import SWIZZLES

# Row r of each table: which piece of the line lies at each place of it.
TABLES = {
    "none": ["01234567"],
    "32B": ["01234567", "10325476"],
    "64B": ["01234567", "10325476", "23016745", "32107654"],
    "128B": [
        "01234567",
        "10325476",
        "23016745",
        "32107654",
        "45670123",
        "54761032",
        "67452301",
        "76543210",
    ],
    "128B_atom_32B": ["01234567", "23016745", "45670123", "67452301"],
    "128B_atom_64B": ["01234567", "45670123"],
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_the_manual(name: str) -> None:
    mode, table = SWIZZLES[name], TABLES[name]
    for start in (0, 1 << 13):
        for row in range(16):
            line = start + 128 * row
            moved = (mode.apply(np.arange(line, line + 128, 16)) - line) // 16
            places = "".join(str(piece) for piece in np.argsort(moved))
            assert places == table[row % len(table)]


# PTX ISA, "Shared memory descriptor": where the repeating pattern starts.
@pytest.mark.parametrize(("name", "boundary"), [("128B", 1024), ("64B", 512), ("32B", 256)])
def test_patterns_repeat(name: str, boundary: int) -> None:
    mode = SWIZZLES[name]
    assert mode.repeat_bytes == boundary
    addresses = np.arange(boundary)
    np.testing.assert_array_equal(
        mode.apply(addresses + boundary), mode.apply(addresses) + boundary
    )


@pytest.mark.parametrize("name", TABLES)
def test_nothing_is_lost_and_bytes_of_a_piece_stay(name: str) -> None:
    mode = SWIZZLES[name]
    addresses = np.arange(4096)
    moved = mode.apply(addresses)
    assert len(set(moved.tolist())) == 4096
    np.testing.assert_array_equal(mode.apply(moved), addresses)
    np.testing.assert_array_equal(moved % 16, addresses % 16)


def test_base_offset_moves_the_pattern() -> None:
    # A pattern that starts `lines` off the boundary: piece p of its k-th line lies at place p ^ k.
    for lines in range(8):
        start = 1024 + 128 * lines
        for line in range(8):
            pieces = np.arange(start + 128 * line, start + 128 * line + 128, 16)
            moved = SWIZZLES["128B"].apply(pieces, base_offset=lines)
            places = (moved - start - 128 * line) // 16
            assert places.tolist() == [piece ^ line for piece in range(8)]
