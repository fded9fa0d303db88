"""What the host packs against what the kernels declare: the structs are read from the .cuh files, and ctypes
lays them out by the C rules. tests/toolkit asks the CUDA compiler the same."""

from __future__ import annotations

import ctypes
import re
import struct
from typing import Any

import pytest

from tilewright.device import load
from tilewright.errors import BadInput
from tilewright.kernels import harness
from tilewright.kernels.abi import REQUESTS, GemmShape, pack_arguments
from tilewright.kernels.config import GemmConfig
from tilewright.kernels.source import read_source
from tilewright.tile_map import Raster
from tilewright.tiling import make_tiling

_TYPES: dict[str, type] = {
    "TensorMap": ctypes.c_ubyte * 128,
    "long long": ctypes.c_int64,
    "u64": ctypes.c_uint64,
    "u32": ctypes.c_uint32,
    "int": ctypes.c_int32,
    "float": ctypes.c_float,
}


def declared(file: str, name: str) -> type[ctypes.Structure]:
    """A struct of a source file as ctypes has it."""
    body = re.search(rf"struct {name} {{(.*?)\n}};", read_source(file), re.DOTALL)
    assert body is not None
    fields: list[tuple[str, type]] = []
    for line in re.sub(r"//.*", "", body[1]).split(";")[:-1]:
        kind = re.match(r"\s*(?:const )?(void|TileTime|long long|\w+)", line)
        assert kind is not None, line
        for item in line[kind.end() :].split(","):
            pointer = "*" in item
            fields.append(
                (item.strip(" *\n"), ctypes.c_uint64 if pointer else _TYPES[kind[1]]),
            )
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def config(**options: object) -> GemmConfig:
    tiling = make_tiling("bf16", 2, load("a100"), cta_tile=(128, 128))
    return GemmConfig(tiling, Raster("m", 8), "static", **options)  # type: ignore[arg-type]


MAPS = (b"\1" * 128, b"\2" * 128, b"\3" * 128)
SHAPE = GemmShape(m=2**31 - 1, n=70_000, k=65_544, groups=3)
ADDRESSES: dict[str, Any] = {
    name: (index + 1) << 40
    for index, name in enumerate(
        ("output", "c", "bias", "counts", "work_counter", "a_data", "b_data")
    )
}


def unpack(options: dict[str, object]) -> tuple[bytes, ctypes.Structure]:
    packed = pack_arguments(config(**options), SHAPE, MAPS, **ADDRESSES, alpha=0.5, beta=-2.0)
    return packed, declared("arguments.cuh", "GemmArguments").from_buffer_copy(packed)


def test_every_field_lies_where_the_struct_has_it() -> None:
    packed, found = unpack({})
    expected = ADDRESSES | {
        "row_stride": SHAPE.n,
        "group_stride": SHAPE.m * SHAPE.n,
        "m": SHAPE.m,
        "n": SHAPE.n,
        "k": SHAPE.k,
        "groups": SHAPE.groups,
        "alpha": 0.5,
        "beta": -2.0,
        "a_row_stride": SHAPE.k,
        "b_row_stride": SHAPE.k,
        "a_group_stride": SHAPE.m * SHAPE.k,
        "b_group_stride": SHAPE.n * SHAPE.k,
    }
    names = [name for name, *_ in found._fields_]
    assert names[:3] == ["a", "b", "d"]
    assert set(names[3:]) == set(expected), "a new field needs its place here and in pack_arguments"
    assert {name: getattr(found, name) for name in expected} == expected
    assert tuple(bytes(getattr(found, name)) for name in names[:3]) == MAPS
    # TensorMap is aligned to 64 bytes, which rounds the struct up
    assert len(packed) == -(-ctypes.sizeof(found) // 64) * 64 == 512


def test_times_come_behind_the_rest_and_only_where_they_are_kept() -> None:
    """GemmLaunch: GemmArguments, then the pointers where config::timeline is set; 64-byte alignment."""
    plain, _ = unpack({})
    kept = pack_arguments(
        config(timeline=True),
        SHAPE,
        MAPS,
        **ADDRESSES,
        alpha=0.5,
        beta=-2.0,
        times=(9 << 40, 10 << 40),
    )
    assert len(kept) == 576
    assert kept[:512] == plain
    assert struct.unpack_from("<2Q", kept, 512) == (9 << 40, 10 << 40)
    time = declared("timeline.cuh", "RequestTime")
    assert ctypes.sizeof(time) == REQUESTS.itemsize
    assert [name for name, *_ in time._fields_] == list(REQUESTS.names or ())


def test_a_swapped_product_has_its_extents_swapped() -> None:
    _, found = unpack({"swap_ab": True})
    assert (found.m, found.n) == (SHAPE.n, SHAPE.m)
    assert (found.a_group_stride, found.b_group_stride) == (SHAPE.n * SHAPE.k, SHAPE.m * SHAPE.k)
    assert found.row_stride == SHAPE.n, "D is the user's, swapped or not"


@pytest.mark.parametrize(
    ("ragged", "swap_ab", "a_has_groups", "b_has_groups", "d_has_groups"),
    [("m", False, False, True, False), ("n", True, True, False, False), ("k", False, False, False, True)],
)  # fmt: skip
def test_tensors_that_groups_share_have_no_group_stride(
    ragged: str, swap_ab: bool, a_has_groups: bool, b_has_groups: bool, d_has_groups: bool
) -> None:
    _, found = unpack({"ragged": ragged, "swap_ab": swap_ab, "max_groups": 3})
    assert (found.a_group_stride > 0) == a_has_groups
    assert (found.b_group_stride > 0) == b_has_groups
    assert (found.group_stride > 0) == d_has_groups


def test_the_harness_s_argument_and_timeline() -> None:
    packed = harness.pack_arguments(
        2**31 - 1, arguments=1 << 40, work_counter=2 << 40, timeline=3 << 40
    )
    layout = declared("harness.cuh", "TileArguments")
    found = layout.from_buffer_copy(packed)
    assert len(packed) == ctypes.sizeof(layout)
    assert (found.arguments, found.work_counter, found.timeline) == (1 << 40, 2 << 40, 3 << 40)
    assert found.num_tiles == 2**31 - 1
    time = declared("timeline.cuh", "TileTime")
    assert ctypes.sizeof(time) == harness.TIMELINE.itemsize == struct.calcsize("<2Q2I")
    fields = harness.TIMELINE.fields
    assert fields is not None
    assert {name: place for name, (_, place, *_) in fields.items()} == {
        name: getattr(time, name).offset for name, *_ in time._fields_
    }


@pytest.mark.parametrize("num_tiles", [-1, 2**31])
def test_a_launch_has_at_most_as_many_tiles_as_an_int(num_tiles: int) -> None:
    with pytest.raises(BadInput, match="0 to 2\\^31 - 1"):
        harness.pack_arguments(num_tiles)
