"""Kernels that keep times: compiled clean, the argument where the host puts it, and nothing of it when off."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from built import build_gemm, faults

from tilewright.audit.kernel import Options
from tilewright.audit.run import audit_module
from tilewright.device import load
from tilewright.kernels.abi import GemmShape, pack_arguments
from tilewright.kernels.config import ENTRY, GemmConfig
from tilewright.kernels.source import assemble
from tilewright.ptx import parse_ptx
from tilewright.run.compiler import compile_source
from tilewright.tile_map import Raster
from tilewright.tiling import make_tiling

pytestmark = pytest.mark.toolkit


class Case(NamedTuple):
    device: str
    arch: str
    tile: tuple[int, int]
    cluster: tuple[int, int, int]
    group: int
    scheduler: str

    def config(self, *, timeline: bool) -> GemmConfig:
        tiling = make_tiling(
            "bf16",
            2,
            load(self.device),
            cta_tile=self.tile,
            cluster_shape=self.cluster,
            cta_group=self.group,
        )
        return GemmConfig(tiling, Raster("m", 8), self.scheduler, timeline=timeline)


CASES = {
    "wgmma, two consumers": Case("h200", "sm_90a", (128, 256), (2, 1, 1), 1, "static"),
    "wgmma, one consumer": Case("h200", "sm_90a", (64, 128), (1, 2, 1), 1, "dynamic_atomic"),
    "tcgen05, pair": Case("b200", "sm_100a", (128, 256), (2, 1, 1), 2, "clc"),
    "tcgen05, alone": Case("b200", "sm_100a", (128, 128), (1, 1, 1), 1, "single_tile"),
    "mma.sync": Case("a100", "sm_80", (128, 128), (1, 1, 1), 1, "static"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_times_are_kept_clean_or_not_at_all(case: Case) -> None:
    kept, plain = case.config(timeline=True), case.config(timeline=False)
    found = build_gemm(kept, case.arch)
    assert not faults(found, ENTRY, kept.tiling.threads)
    dynamic = kept.is_dynamic  # the warp that asks reads it around each request
    assert len(re.findall(r"mov\.u64\s+\S+, %globaltimer", found.ptx)) == 2 + 2 * dynamic
    assert re.search(r"mov\.u32\s+\S+, %smid", found.ptx)
    latest = {
        "sm_90a": 2,
        "sm_100a": 0,
        "sm_80": 1,
    }  # parts of a CTA that come and go by themselves
    assert len(re.findall(r"\.global\.max\.u64", found.ptx)) == latest[case.arch]
    off = build_gemm(plain, case.arch).ptx
    assert "%globaltimer" not in off
    assert "%smid" not in off
    assert f"{ENTRY}_param_0[512]" in off
    assert f"{ENTRY}_param_0[576]" in found.ptx


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_audit_has_nothing_against_it(case: Case) -> None:
    options = Options(cluster=case.cluster, block=(case.config(timeline=True).tiling.threads, 1, 1))
    for timeline in (False, True):
        ptx = build_gemm(case.config(timeline=timeline), case.arch).ptx
        report = audit_module(parse_ptx(ptx, "gemm.ptx"), options)
        assert not report.errors


def test_the_argument_lies_where_the_host_packs_it() -> None:
    config = CASES["mma.sync"].config(timeline=True)
    none = bytes(128)
    packed = pack_arguments(config, GemmShape(1, 1, 1), (none,) * 3, output=0, times=(2**63, 2**62))
    tiles, requests = packed.rindex(b"\x80") - 7, packed.rindex(b"\x40") - 7
    source = assemble("arguments.cuh", config.render()) + "\n".join(
        (
            f"static_assert(sizeof(GemmLaunch) == {len(packed)});",
            f"static_assert(__builtin_offsetof(GemmLaunch, timeline) == {tiles});",
            f"static_assert(__builtin_offsetof(GemmLaunch, requests) == {requests});",
            'extern "C" __global__ void nothing() {}',
        )
    )
    assert compile_source(source, "abi.cu", "sm_80", use_cache=False).functions
    off = replace(config, timeline=False)
    source = assemble("arguments.cuh", off.render()) + (
        "static_assert(sizeof(GemmLaunch) == sizeof(GemmArguments));\n"
        'extern "C" __global__ void nothing() {}'
    )
    assert compile_source(source, "abi.cu", "sm_80", use_cache=False).functions
