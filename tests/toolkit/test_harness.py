"""The loop around a user's tile function, compiled: no GPU needed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from built import barrier_counts

from tilewright.device import load
from tilewright.errors import BadInput, NoFit, TilewrightError, UnknownName, Unsupported
from tilewright.kernels.harness import TIMELINE, HarnessConfig, assemble, pack_arguments
from tilewright.protocol import make_tiles_protocol
from tilewright.run.compiler import Compiled, CompileFailed, compile_source

pytestmark = pytest.mark.toolkit

SUM_IN_SHARED = """
#include "cluster.cuh"
// Names that the kernel around it uses too: they must not meet.
constexpr int warps = 3, threads = 5;
namespace at { constexpr int answers = 7; }
__device__ __forceinline__ void run() {}
__device__ void tilewright_tile(const Tile& tile, void* arguments, unsigned char* shared) {
    int* sums = reinterpret_cast<int*>(shared);
    sums[threadIdx.x] = tile.id * tile.size + tile.rank + warps + threads + at::answers;
    sync_all<2>();
    if (threadIdx.x == 0) static_cast<int*>(arguments)[tile.id] = sums[tile.threads - 1];
}
"""


def build(config: HarnessConfig, arch: str, tile: str | None = None) -> Compiled:
    return compile_source(assemble(config, tile), "harness.cu", arch, use_cache=False)


def test_larger_clusters_around_single_ctas_ask_by_multicast() -> None:
    found = build(HarnessConfig(1, "clc", larger_clusters=True), "sm_100a")
    asked = re.findall(r"clusterlaunchcontrol\.try_cancel\.async\S*", found.ptx)
    assert sorted("multicast" in one for one in asked) == [False, True], "decided at run time"


def test_ampere_takes_its_tiles_by_arithmetic() -> None:
    found = build(HarnessConfig(1, "static_blocked", timeline=True), "sm_80")
    code = re.sub(r"//.*|\.global .align.*", "", found.ptx)  # comments, and constants by name
    assert "cluster" not in code
    assert "mbarrier" not in code


@pytest.mark.parametrize("barrier", ["none", "cta", "cluster"])
def test_the_barrier_between_tiles_is_the_one_asked_for(barrier: Any) -> None:
    ptx = build(HarnessConfig(2, "static", barrier=barrier), "sm_90a").ptx
    beside = 2  # before the first tile, and before leaving
    assert len(re.findall(r"barrier\.cluster\.arrive", ptx)) == beside + (barrier == "cluster")
    assert len(re.findall(r"bar\.sync|barrier\.sync", ptx)) == (barrier == "cta")


def test_a_user_s_source_with_names_and_includes_of_its_own() -> None:
    config = HarnessConfig(2, "dynamic_atomic", threads=128, smem_bytes=512, barrier="none")
    source = assemble(config, SUM_IN_SHARED)
    assert "#include" not in source
    assert source.count("cluster_sync() {") == 1
    found = compile_source(source, "tile.cu", "sm_90a", use_cache=False)
    assert not re.search(r"ptxas.*warning", found.log)
    assert ".maxntid 128" in found.ptx


def test_the_user_s_mistakes_are_the_compiler_s_to_name() -> None:
    wrong = "__device__ void tilewright_tile(int) {}"
    with pytest.raises(CompileFailed, match="tilewright_tile"):
        build(HarnessConfig(), "sm_90a", wrong)


def test_the_timeline_and_argument_are_those_that_are_compiled() -> None:
    fields = TIMELINE.fields
    assert fields is not None
    checks = [
        f"sizeof(TileTime) == {TIMELINE.itemsize}",
        f"sizeof(TileArguments) == {len(pack_arguments(0))}",
    ]
    checks += [
        f"__builtin_offsetof(TileTime, {name}) == {place[1]}" for name, place in fields.items()
    ]
    plain = pack_arguments(0)
    for name in ("arguments", "work_counter", "timeline", "num_tiles"):
        changed = pack_arguments(**({"num_tiles": 0} | {name: 1}))
        first = next(i for i, (a, b) in enumerate(zip(plain, changed, strict=True)) if a != b)
        checks.append(f"__builtin_offsetof(TileArguments, {name}) == {first}")
    source = assemble(HarnessConfig()) + "\n".join(f"static_assert({check});" for check in checks)
    assert compile_source(source, "abi.cu", "sm_90a", use_cache=False).functions


@pytest.mark.parametrize("scheduler", ["dynamic_atomic", "clc"])
@pytest.mark.parametrize("cluster_size", [1, 2, 4])
def test_readers_are_counted_as_the_ledger_counts_them(scheduler: str, cluster_size: int) -> None:
    """The kernel gives schedule_finished every warp of the cluster; so does the contract."""
    ledger = make_tiles_protocol((cluster_size, 1, 1), 256, 0, scheduler, load("b200"), clc_depth=2)
    prefix = "clc" if scheduler == "clc" else "work"
    assert ledger.arrive_count(f"{prefix}_empty") == 256 // 32 * cluster_size
    assert ledger.arrive_count(f"{prefix}_full") == 1
    ptx = build(HarnessConfig(cluster_size, scheduler), "sm_100a").ptx
    assert barrier_counts(ptx) == [1] * 2 + [8 * cluster_size] * 2 + [1]


@pytest.mark.parametrize(
    ("options", "error", "nearest"),
    [
        ({"scheduler": "dynamic"}, UnknownName, "dynamic_atomic"),
        ({"barrier": "grid"}, UnknownName, ""),
        ({"cluster_size": 17}, BadInput, "16"),
        ({"cluster_size": 0}, BadInput, "1"),
        ({"depth": 4}, BadInput, "3"),
        ({"threads": 100}, BadInput, "128"),
        ({"threads": 2048}, BadInput, "1024"),
        ({"smem_bytes": -1}, BadInput, "0"),
    ],
)
def test_a_wrong_value_names_the_nearest(
    options: dict[str, Any], error: type[TilewrightError], nearest: str
) -> None:
    with pytest.raises(error) as refused:
        HarnessConfig(**options)
    assert refused.value.nearest == nearest
    assert refused.value.allowed


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("__device__ void my_tile(const Tile&, void*, unsigned char*) {}", "it has my_tile"),
        ("", "defines no tilewright_tile"),
        ('#include "mine.cuh"\n__device__ void tilewright_tile() {}', 'includes "mine.cuh"'),
    ],
)
def test_a_source_without_the_function_is_refused(source: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        assemble(HarnessConfig(), source)


def test_what_a_device_lacks_is_refused() -> None:
    for options, device, error in (
        ({"scheduler": "clc"}, "h200", Unsupported),
        ({"scheduler": "dynamic_atomic"}, "a100", Unsupported),
        ({"larger_clusters": True}, "a100", Unsupported),
        ({"smem_bytes": 232_448, "scheduler": "dynamic_atomic"}, "h200", NoFit),
    ):
        config = HarnessConfig(**options)
        with pytest.raises(error):
            config.check_fit(load(device))
    HarnessConfig(scheduler="static").check_fit(load("a100"))
    HarnessConfig(16, "dynamic_atomic", smem_bytes=232_320).check_fit(load("h200"))
    HarnessConfig(2, "clc", larger_clusters=True).check_fit(load("b200"))


def test_the_grid() -> None:
    assert HarnessConfig(2, "clc").grid_ctas(1000, 132) == 2000
    assert HarnessConfig(2, "static").grid_ctas(1000, 133) == 132
    assert HarnessConfig(2, "static").grid_ctas(5, 132) == 10
    mixed = HarnessConfig(2, "single_tile", larger_clusters=True)
    assert mixed.grid_ctas(5, 132, preferred_size=4) == 12, (
        "the grid holds whole preferred clusters"
    )
    with pytest.raises(BadInput, match="larger_clusters"):
        HarnessConfig(2, "static").grid_ctas(5, 132, preferred_size=4)
    with pytest.raises(BadInput, match="multiple"):
        mixed.grid_ctas(5, 132, preferred_size=3)
