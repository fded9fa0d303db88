"""Boxes of tensor maps against numpy slices, limits against the driver's documentation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tilewright.emulate.faults import Fault, NotEmulated
from tilewright.emulate.swizzle import SWIZZLES
from tilewright.emulate.tensor_map import MAP_BYTES, TensorMap
from tilewright.emulate.tensor_map_fields import replace_field
from tilewright.errors import BadInput, UnknownName

GOOD = TensorMap("bf16", 0x1000, (64, 100), (128,), (64, 8), swizzle="128B")


def bits_of(array: np.ndarray[Any, Any]) -> Any:
    return np.ascontiguousarray(array).view(f"u{array.itemsize}").ravel()


def loaded(tensor_map: TensorMap, array: np.ndarray[Any, Any], at: list[int]) -> Any:
    """The box as an array of the tensor's type, shaped like the box, outermost first; swizzle undone."""
    shared = np.zeros(1 << 16, np.uint8)
    moved = tensor_map.transfer(at, 1024)
    elements = shared.view(f"u{array.itemsize}")
    elements[moved.in_shared // array.itemsize] = tensor_map.load(bits_of(array), moved)
    row_bytes = tensor_map.box_elements[0] * array.itemsize
    pitch_bytes = max(row_bytes, int(tensor_map.swizzle.removesuffix("B").replace("none", "0")))
    lies = tensor_map.mode.apply(np.arange(1024, 1024 + moved.room_bytes))
    rows = shared[lies].reshape(-1, pitch_bytes)
    assert not rows[:, row_bytes:].any()
    return (
        np.ascontiguousarray(rows[:, :row_bytes])
        .view(array.dtype)
        .reshape(tensor_map.box_elements[::-1])
    )


@given(
    st.tuples(st.sampled_from(range(-8, 16, 4)), st.integers(-9, 12), st.integers(-3, 4)),
    st.sampled_from(["none", "32B", "64B", "128B"]),
)
def test_boxes_are_slices_with_zeros_outside(at: tuple[int, int, int], swizzle: str) -> None:
    array = np.arange(4 * 10 * 16, dtype=np.uint32).reshape(4, 10, 16) + 1
    tensor_map = TensorMap.of(array, 0x4000, (2, 5, 8), swizzle=swizzle)
    padded = np.pad(array, 16)
    x, y, z = (place + 16 for place in at)
    np.testing.assert_array_equal(
        loaded(tensor_map, array, list(at)), padded[z : z + 2, y : y + 5, x : x + 8]
    )
    assert tensor_map.transfer(list(at), 1024).size_bytes == 2 * 5 * 8 * 4  # filled bytes count


def test_a_swizzled_row_lies_where_the_manual_says() -> None:
    # 8 rows of 128 bytes at a 1024-byte boundary: piece p of row r lies at piece p ^ r.
    array = np.arange(8 * 64, dtype=np.uint16).reshape(8, 64)
    tensor_map = TensorMap.of(array, 0, (8, 64), dtype="bf16", swizzle="128B")
    moved = tensor_map.transfer([0, 0], 2048)
    shared = np.zeros(2048, np.uint16)
    shared[moved.in_shared // 2] = tensor_map.load(bits_of(array), moved)
    rows = shared[1024:1536].reshape(8, 8, 8)
    for row in range(8):
        for piece in range(8):
            np.testing.assert_array_equal(
                rows[row, piece ^ row], array[row, 8 * piece : 8 * piece + 8]
            )


def test_elements_at_strides() -> None:
    array = np.arange(12 * 16, dtype=np.float32).reshape(12, 16)
    tensor_map = TensorMap("f32", 0, (16, 12), (64,), (8, 9), element_strides=(1, 4)).check()
    # cuTensorMapEncodeTiled: ceil(boxDim / elementStrides) elements are loaded.
    assert tensor_map.box_elements == (8, 3)
    np.testing.assert_array_equal(loaded(tensor_map, array, [4, 2]), array[2:11:4, 4:12])
    # "the first element of this array is ignored since TMA doesn't support the stride for dimension zero"
    ignored = tensor_map.replaced(element_strides=(2, 4))
    np.testing.assert_array_equal(loaded(ignored, array, [4, 2]), array[2:11:4, 4:12])


def test_rows_gathered() -> None:
    array = np.arange(20 * 16, dtype=np.uint32).reshape(20, 16)
    tensor_map = TensorMap.of(array, 0, (1, 8))
    moved = tensor_map.gather_rows([4, 3, 19, 0, 25], 0)
    rows = tensor_map.load(bits_of(array), moved).reshape(4, 8)
    np.testing.assert_array_equal(rows[:3], array[[3, 19, 0], 4:12])
    assert not rows[3].any()
    with pytest.raises(Fault, match="four rows need 5 coordinates"):
        tensor_map.gather_rows([0, 1, 2, 3], 0)


def test_stores_leave_what_lies_outside() -> None:
    array = np.zeros((6, 8), np.uint32)
    tensor_map = TensorMap.of(array, 0, (4, 8))
    moved = tensor_map.transfer([4, 4], 0)
    source = np.arange(32, dtype=np.uint32)
    target = bits_of(array).copy()
    target[moved.in_global[moved.inside] // 4] = source[moved.in_shared[moved.inside] // 4]
    expected = np.zeros((6, 8), np.uint32)
    expected[4:, 4:] = np.arange(32).reshape(4, 8)[:2, :4]
    np.testing.assert_array_equal(target.reshape(6, 8), expected)


def test_stores_clip_rows_at_16_bytes() -> None:
    # What an H200 did with rows of 70 bf16, 160 bytes apart (tma_store_2d of tests/data/h200/micro.json): 72 were written.
    rows = TensorMap("bf16", 0, (70, 50), (160,), (32, 16)).check()
    load, store = (rows.transfer([48, 40], 0, is_store=is_store) for is_store in (False, True))
    assert (load.beyond, store.beyond) == (0, 2 * 10)
    assert load.inside.reshape(16, 32)[:10].sum(axis=1).tolist() == [22] * 10
    assert store.inside.reshape(16, 32)[:10].sum(axis=1).tolist() == [24] * 10
    assert not store.inside.reshape(16, 32)[10:].any()


def test_a_map_that_starts_inside_a_buffer() -> None:
    array = np.arange(20 * 16, dtype=np.uint32).reshape(20, 16)
    tensor_map = TensorMap("u32", 0x1000, (8, 4), (64,), (8, 4))
    moved = tensor_map.transfer([0, 0], 0)
    found = tensor_map.load(bits_of(array), moved, start=64 * 5 + 16)
    np.testing.assert_array_equal(found.reshape(4, 8), array[5:9, 4:12])


def test_nan_fill() -> None:
    array = np.ones((4, 8), np.float32)
    tensor_map = TensorMap.of(array, 0, (4, 8), nan_fill=True)
    found = loaded(tensor_map, array, [4, 0])
    assert np.isnan(found[:, 4:]).all()
    assert (found[:, :4] == 1).all()


def test_packed_and_read_back() -> None:
    maps = [
        GOOD,
        TensorMap("u8", 0xFFFF_FFFF_FFF0, (1 << 32,), (), (256,), nan_fill=False),
        TensorMap(
            "f32",
            16,
            (4, 3, 2, 5, 7),
            (16, 48, 96, 480),
            (4, 3, 2, 1, 1),
            (1, 2, 3, 4, 8),
            nan_fill=True,
        ),
    ]
    for tensor_map in maps:
        encoded = tensor_map.encode()
        assert len(encoded) == MAP_BYTES
        assert TensorMap.decode(encoded).replaced() == tensor_map.replaced(
            element_strides=tensor_map.steps
        )


def test_bytes_that_are_no_map() -> None:
    with pytest.raises(Fault, match="no tensor map of the emulator"):
        TensorMap.decode(bytes(128))
    broken = bytearray(GOOD.encode())
    broken[8] = 9  # the rank
    with pytest.raises(Fault, match="that TMA does not take"):
        TensorMap.decode(bytes(broken))
    interleaved = bytearray(GOOD.encode())
    interleaved[12] = 1
    with pytest.raises(NotEmulated, match="interleaved layout"):
        TensorMap.decode(bytes(interleaved))


# CUDA driver API, cuTensorMapEncodeTiled: the limits, each broken once.
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"address": 0x1008}, "address 4104 of a tensor map is no multiple of 16"),
        ({"dims": (64, 0)}, "extent 0"),
        ({"dims": (64, (1 << 32) + 1)}, "extent 4294967297"),
        ({"strides_bytes": (120,)}, "stride in bytes 120 of a tensor map is no multiple of 16"),
        ({"strides_bytes": (1 << 40,)}, "1099511627776"),
        ({"strides_bytes": ()}, "has 1 strides, not 0"),
        ({"box": (64, 257)}, "box extent 257"),
        ({"box": (4, 8)}, "innermost box extent in bytes 8"),
        ({"box": (128, 8)}, "innermost box extent in bytes with swizzle 128B 256"),
        ({"element_strides": (1, 9)}, "element stride 9"),
        ({"dims": (1,) * 6, "strides_bytes": (16,) * 5, "box": (8,) * 6}, "rank 6"),
        ({"dtype": "u16", "nan_fill": True}, "cannot be filled with NaN"),
    ],
)
def test_limits_of_the_driver(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        GOOD.replaced(**changes)


def test_names() -> None:
    with pytest.raises(UnknownName, match="element type"):
        GOOD.replaced(dtype="fp16")
    with pytest.raises(UnknownName, match="swizzle"):
        GOOD.replaced(swizzle="128")
    assert set(SWIZZLES) >= {"none", "32B", "64B", "128B"}


def test_copies_that_tma_does_not_take() -> None:
    with pytest.raises(Fault, match="0x440") as found:
        GOOD.transfer([0, 0], 0x440)
    assert found.value.rule == "TMA-01"
    with pytest.raises(Fault, match="rank 2"):
        GOOD.transfer([0, 0, 0], 0x400)
    # An H200 ended each of these as an illegal instruction (tma_unaligned_*, tma_store_*_below of micro.json).
    for at in ([4, 2], [-3, -2], [81, 0]):
        with pytest.raises(Fault, match="begins at element") as found:
            GOOD.transfer(at, 0x400)
        assert found.value.rule == "ALIGN"
    with pytest.raises(Fault, match="negative coordinate -3") as found:
        GOOD.transfer([0, -3], 0x400, is_store=True)
    assert found.value.rule == "TMA-15"
    GOOD.transfer([-8, -3], 0x400)


def test_maps_made_field_by_field() -> None:
    # tensormap.replace on zeroed memory, with the manual's numbers: rank less one, f16 is 6, 128-byte swizzle 3.
    encoded = bytes(MAP_BYTES)
    for field, value, ordinal in (
        ("global_address", 0x7000, 0),
        ("rank", 1, 0),
        ("box_dim", 64, 0),
        ("box_dim", 128, 1),
        ("global_dim", 1 << 32, 0),
        ("global_dim", 300, 1),
        ("global_stride", 1 << 34, 0),
        ("element_stride", 1, 0),
        ("element_stride", 2, 1),
        ("elemtype", 6, 0),
        ("swizzle_mode", 3, 0),
        ("fill_mode", 1, 0),
    ):
        encoded = replace_field(encoded, field, value, ordinal)
    expected = TensorMap(
        "f16",
        0x7000,
        (1 << 32, 300),
        (1 << 34,),
        (64, 128),
        (1, 2),
        swizzle="128B",
        nan_fill=True,
    )
    assert TensorMap.decode(encoded) == expected
    # One type is numbered otherwise than in the driver: f32.ftz is 8 here, 10 there.
    ftz = TensorMap.decode(replace_field(replace_field(encoded, "elemtype", 8), "box_dim", 32, 0))
    assert ftz.dtype == "f32_ftz"
    for order in (
        (("swizzle_mode", 3), ("swizzle_atomicity", 1)),
        (("swizzle_atomicity", 1), ("swizzle_mode", 3)),
    ):
        changed = encoded
        for field, value in order:
            changed = replace_field(changed, field, value)
        assert TensorMap.decode(changed).swizzle == "128B_atom_32B"
    with pytest.raises(Fault, match="does not take"):
        TensorMap.decode(replace_field(encoded, "elemtype", 13))
    with pytest.raises(NotEmulated, match="96 bytes"):
        replace_field(encoded, "swizzle_mode", 4)
