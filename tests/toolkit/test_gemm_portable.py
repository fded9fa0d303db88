"""The portable GEMM, compiled: no GPU needed. What its instructions are is asked of ptxas and nvdisasm."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from built import build_gemm, opcodes

from tilewright.device import load
from tilewright.errors import Unsupported
from tilewright.kernels.abi import GemmShape, pack_arguments
from tilewright.kernels.config import GemmConfig
from tilewright.kernels.source import assemble
from tilewright.protocol.gemm import mma_sync_parts
from tilewright.run.compiler import CompileFailed, compile_source
from tilewright.tile_map import Raster
from tilewright.tiling import make_tiling

if TYPE_CHECKING:
    from tilewright.tiling import Tiling

pytestmark = pytest.mark.toolkit

HALF_ROW, FULL_ROW = "a100", "rtx_pro_6000"
"""Devices whose stages have rows of 64 and of 128 bytes."""


def tiling_for(device: str, dtype: str, tile: tuple[int, int], stages: int | None = None) -> Tiling:
    return make_tiling(dtype, 2, load(device), cta_tile=tile, num_stages=stages)


def config_for(device: str, dtype: str, tile: tuple[int, int], **options: Any) -> GemmConfig:
    scheduler = options.pop("scheduler", "static")
    return GemmConfig(tiling_for(device, dtype, tile), Raster("m", 8), scheduler, **options)


def test_ampere_gets_ampere_s_instructions() -> None:
    ptx = build_gemm(
        config_for(HALF_ROW, "bf16", (128, 128), ragged="m", max_groups=8), "sm_80"
    ).ptx
    for there in (
        "cp.async.cg.shared.global",
        "ldmatrix.sync.aligned.m8n8.x4",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    ):
        assert there in ptx
    code = re.sub(r"//.*|\.global .align.*", "", ptx)  # comments, and constants by name
    for newer in ("mbarrier", "cluster", "bulk", "tensormap", "elect", "griddepcontrol", "wgmma"):
        assert newer not in code


def test_fp8_needs_ada() -> None:
    config = config_for(FULL_ROW, "fp8_e4m3", (128, 128))
    assert "m16n8k32.row.col.f32.e4m3.e4m3.f32" in build_gemm(config, "sm_89").ptx
    with pytest.raises(CompileFailed, match="sm_89"):
        build_gemm(config, "sm_86")


@pytest.mark.parametrize("stages", [2, 3, 6])
def test_the_ring_waits_as_the_ledger_says(stages: int) -> None:
    tiling = tiling_for(HALF_ROW, "bf16", (128, 256), stages)
    config = GemmConfig(tiling, Raster("n", 4), "static")
    ptx = build_gemm(config, "sm_80").ptx
    parts = mma_sync_parts(tiling)
    (groups,) = (sync for sync in parts.syncs if sync.name == "cp_async_group")
    left = re.match(r"cp\.async\.wait_group (\d+)", groups.how)
    assert left is not None
    waits = re.findall(r"cp\.async\.wait_group (\d+)", ptx)
    assert waits == [left[1], left[1], "0"], "before the k loop, in it, after it"
    assert len(re.findall(r"cp\.async\.commit_group", ptx)) == 2, "before the k loop, in it"
    assert len(re.findall(r"bar\.sync|barrier\.sync", ptx)) == 2, "before the k loop, in it"
    assert config.smem_bytes == tiling.smem_bytes


def test_the_k_loop_is_multiplications() -> None:
    """A warp's 64x64 of 128x256 in a stage of K = 32: 4 x 8 instructions, twice; fragments of 8 KiB."""
    code = opcodes(build_gemm(config_for(HALF_ROW, "bf16", (128, 256)), "sm_80"))
    multiplications = [i for i, opcode in enumerate(code) if opcode.startswith("HMMA")]
    loop = code[multiplications[0] : multiplications[-1] + 1]
    assert sum(opcode == "HMMA.16816.F32.BF16" for opcode in loop) == 64
    assert sum(opcode.startswith("LDSM.16.M88.4") for opcode in loop) == 16
    assert sum(opcode.startswith("LDGSTS") for opcode in loop) == 6, "24 KiB by 256 threads"
    assert len(loop) < 64 + 16 + 6 + 90, "addresses and predicates do not crowd out the rest"


def test_offsets_that_are_packed_are_those_that_are_compiled() -> None:
    """The bytes that change with a field begin where the CUDA compiler has it."""
    config = config_for(HALF_ROW, "bf16", (128, 128))
    shape, none = GemmShape(1, 1, 1, 1), bytes(128)
    fields: dict[str, dict[str, Any]] = {
        **{
            name: {name: 0xFFFF_FFFF}
            for name in ("output", "c", "bias", "counts", "work_counter", "a_data", "b_data")
        },
        "alpha": {"alpha": -1.0},
        "beta": {"beta": 1.0},
        "d": {"maps": (none, none, b"\1" * 128)},
        "groups": {"shape": replace(shape, groups=2)},
    }

    def pack(changed: dict[str, Any]) -> bytes:
        arguments: dict[str, Any] = {
            "shape": shape,
            "maps": (none, none, none),
            "output": 0,
        } | changed
        return pack_arguments(config, **arguments)

    plain = pack({})
    # alpha is 1.0 and -1.0: the sign, in the field's last byte
    back = {"alpha": 3, "beta": 2}
    lines = [f"static_assert(sizeof(GemmArguments) == {len(plain)});"]
    for name, changed in fields.items():
        first = next(i for i, (a, b) in enumerate(zip(plain, pack(changed), strict=True)) if a != b)
        offset = first - back.get(name, 0)
        lines.append(f"static_assert(__builtin_offsetof(GemmArguments, {name}) == {offset});")
    lines.append('extern "C" __global__ void nothing() {}')
    source = assemble("arguments.cuh") + "\n".join(lines)
    assert compile_source(source, "abi.cu", "sm_80", use_cache=False).functions


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"scheduler": "clc"}, "no cluster launch control"),
        ({"scheduler": "dynamic_atomic"}, "scheduled by single_tile or static"),
        ({"ragged": "m", "swap_ab": True}, "swap_ab false"),
        ({"ragged": "n"}, "swap_ab true"),
        ({"stages": 1}, "2 stages or more"),
        ({"tile": (64, 256)}, "has no 64x256 tile"),
    ],
)
def test_what_it_cannot_do_is_refused(change: dict[str, Any], says: str) -> None:
    options = dict(change)
    tile = options.pop("tile", (128, 128))
    tiling = tiling_for(HALF_ROW, "bf16", tile, options.pop("stages", None))
    with pytest.raises(Unsupported, match=says) as refused:
        GemmConfig(tiling, Raster("m", 8), options.pop("scheduler", "static"), **options)
    assert refused.value.allowed


def test_it_runs_one_cta_alone() -> None:
    tiling = replace(tiling_for(HALF_ROW, "bf16", (128, 128)), cluster_shape=(2, 1, 1))
    with pytest.raises(Unsupported, match="one CTA alone"):
        GemmConfig(tiling, Raster("m", 8), "static")
