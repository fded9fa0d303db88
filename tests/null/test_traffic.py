"""Traffic never falls under what must move, and follows a cache that is simulated tile by tile."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tilewright.device import load
from tilewright.problem import Gemm, GroupedGemm, Matmul
from tilewright.tile_map import Raster, TileMap
from tilewright.tiling import Tiling, make_tiling
from tilewright.traffic import (
    L2_USABLE,
    RASTERS,
    best_raster,
    find_traffic,
    hbm_weights,
    reads_of,
    unique_groups,
)

B200 = load("b200")


def pair(size: int = 2, columns: int = 1, group: int = 2) -> Tiling:
    return make_tiling(
        "bf16", 2, B200, cta_tile=(128, 256), cta_group=group, cluster_shape=(size, columns, 1)
    )


problems = st.one_of(
    st.builds(
        Gemm,
        m=st.integers(1, 40_000),
        n=st.integers(1, 40_000),
        k=st.integers(1, 2_000).map(lambda k: k * 8),
        batch=st.integers(1, 3),
        epilogue_bytes=st.sampled_from([0.0, 2.0]),
    ),
    st.builds(
        GroupedGemm,
        counts=st.lists(st.integers(0, 3_000), min_size=1, max_size=20).map(tuple),
        n=st.integers(1, 8_000),
        k=st.integers(1, 1_000).map(lambda k: k * 8),
    ),
)


@given(problems, st.integers(1, 300), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]))
@settings(max_examples=200)
def test_traffic_is_at_least_compulsory(
    problem: Matmul, resident: int, size: int, columns: int
) -> None:
    tiling = pair(size, columns, group=2 if size % 2 == 0 else 1)
    unique = unique_groups(problem.groups())
    for raster in RASTERS:
        reads = reads_of(problem, tiling, resident, B200, raster)
        assert reads.a >= 1 - 1e-12
        assert reads.b >= 1 - 1e-12
    _, reads = best_raster(problem, tiling, resident, B200, unique)
    traffic = find_traffic(problem, tiling, resident, reads, unique)
    assert traffic.hbm_bytes >= problem.compulsory_bytes * (1 - 1e-12)
    assert traffic.l2_bytes <= traffic.l2_bytes_unshared
    assert traffic.l2_bytes + traffic.dsmem_bytes == pytest.approx(traffic.l2_bytes_unshared)


def waves(
    problem: Gemm, tiling: Tiling, resident: int, raster: Raster
) -> list[list[tuple[str, int]]]:
    """Distinct operand panels that each wave of clusters touches, in order."""
    tiles = TileMap(problem.groups(), tiling.cta_tile, tiling.cluster_shape, raster)
    order = tiles.coordinates()[:, 1:].tolist()
    return [
        list(dict.fromkeys([("b", n) for _, n in wave] + [("a", m) for m, _ in wave]))
        for wave in (order[i : i + resident] for i in range(0, len(order), resident))
    ]


def cached_reads(
    problem: Gemm, tiling: Tiling, resident: int, raster: Raster, *, best: bool
) -> float:
    """Bytes read from HBM by waves in step, with whole panels in a cache.

    `best` evicts the panel whose next use is farthest (Belady: no policy reads less); otherwise the least
    recently used, the worst for operands that are walked in a circle.
    """
    size = {
        "a": tiling.cluster_tile.m * problem.k * 2,
        "b": tiling.cluster_tile.n * problem.k * 2,
    }
    room = L2_USABLE * (B200.l2_bytes or 0) / (B200.l2_partitions or 1)
    accesses = [panel for wave in waves(problem, tiling, resident, raster) for panel in wave]
    next_use = [len(accesses)] * len(accesses)
    seen: dict[tuple[str, int], int] = {}
    for at in range(len(accesses) - 1, -1, -1):
        next_use[at] = seen.get(accesses[at], len(accesses))
        seen[accesses[at]] = at
    cache: OrderedDict[tuple[str, int], int] = OrderedDict()  # panel -> next use
    read = 0.0
    for at, panel in enumerate(accesses):
        if panel in cache:
            cache.move_to_end(panel)
        else:
            read += size[panel[0]]
        cache[panel] = next_use[at]
        while sum(size[kind] for kind, _ in cache) > room and len(cache) > 1:
            victim = max(cache, key=lambda p: cache[p]) if best else next(iter(cache))
            del cache[victim]
    return read


@pytest.mark.parametrize("swizzle", [1, 4, 16])
@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (8192, 8192, 2048), (8192, 8192, 8192)])
def test_closed_form_between_the_best_and_the_worst_cache(
    shape: tuple[int, int, int], swizzle: int
) -> None:
    m, n, k = shape
    problem, tiling = Gemm(m=m, n=n, k=k), pair()
    for raster in (Raster("m", swizzle), Raster("n", swizzle)):
        reads = reads_of(problem, tiling, 74, B200, raster)
        form = 2 * k * (m * reads.a + n * reads.b)
        assert form >= 0.8 * cached_reads(problem, tiling, 74, raster, best=True)
        assert form <= 1.4 * cached_reads(problem, tiling, 74, raster, best=False)


def test_everything_fits_l2() -> None:
    reads = reads_of(Gemm(m=4096, n=4096, k=2048), pair(), 74, B200, Raster("m", 1))
    assert reads == (1.0, 1.0)


def test_case_c19_the_order_flips_with_l2() -> None:
    """vllm-project/vllm#55180: 24 MiB of L2, weight 16384x2560 in fp8 (40 MiB).

    At M = 4096 the activations stay in L2 and the plain order is best (167 against 153 TFLOP/s); at
    M = 32768 they do not, and strips of eight win (156 against 53).
    """
    gb10 = replace(
        load("h200"),
        sm_count=48,
        gpc_sms=None,
        gpc_sms_max=12,
        l2_bytes=24 * 2**20,
        name="gb10",
        l2_partitions=1,
    )
    tiling = make_tiling("fp8_e4m3", 2, gb10, cta_tile=(128, 128))
    plain, strips = Raster("m", 1), Raster("m", 8)

    def hbm(m: int, raster: Raster) -> float:
        reads = reads_of(Gemm(m=m, n=16_384, k=2560, dtype="fp8"), tiling, 48, gb10, raster)
        return m * reads.a + 16_384 * reads.b

    assert hbm(4096, plain) <= hbm(4096, strips)
    assert hbm(32_768, strips) < 0.5 * hbm(32_768, plain)
    small = Gemm(m=4096, n=16_384, k=2560, dtype="fp8")
    large = Gemm(m=32_768, n=16_384, k=2560, dtype="fp8")
    chosen = [
        best_raster(p, tiling, 48, gb10, unique_groups(p.groups()))[0].swizzle
        for p in (small, large)
    ]
    assert chosen[0] < chosen[1]


def test_sharing_by_hand() -> None:
    """Pair of 128x256 CTA tiles, K = 64: 16 KiB of A and 16 KiB of B a CTA and stage, 48 KiB unshared."""
    problem = Gemm(m=256, n=256, k=64)
    unique = unique_groups(problem.groups())
    reads = reads_of(problem, pair(), 74, B200, Raster("m", 1))
    shared = find_traffic(problem, pair(), 74, reads, unique)
    assert shared.l2_bytes == 2 * 32_768
    assert shared.l2_bytes_unshared == 2 * 49_152
    assert shared.smem_write_bytes == 2 * 32_768
    assert shared.smem_read_bytes == 2 * 32_768
    alone = find_traffic(problem, pair(1, group=1), 148, reads, unique)
    assert alone.l2_bytes == alone.l2_bytes_unshared == 2 * 49_152
    assert alone.dsmem_bytes == 0


def test_distinct_groups_keep_their_number() -> None:
    unique = unique_groups(GroupedGemm(counts=(5, 0, 5, 7), n=64, k=64).groups())
    assert sorted(zip(unique.m.tolist(), unique.times.tolist(), strict=True)) == [(5, 2), (7, 1)]
    assert unique.spread(unique.m * 10).tolist() == [50, 0, 50, 70]


@given(problems, st.integers(1, 300), st.sampled_from(RASTERS))
@settings(max_examples=200)
def test_weights_of_groups_share_out_the_launch_s_bytes(
    problem: Matmul, resident: int, raster: Raster
) -> None:
    tiling = pair()
    unique = unique_groups(problem.groups())
    weights = hbm_weights(problem, tiling, resident, B200, raster, unique)
    if isinstance(problem, Gemm):
        assert weights.tolist() == pytest.approx([1.0])
    tile_m, tile_n, tile_k = tiling.cluster_tile
    stages = np.ceil(unique.m / tile_m) * np.ceil(unique.n / tile_n) * np.ceil(unique.k / tile_k)
    count = float((stages * unique.times).sum())
    assert float((weights * stages * unique.times).sum()) == pytest.approx(count)


def test_a_skinny_group_reads_its_weights_for_one_row_of_tiles() -> None:
    """By hand: 2 groups, N = K = 4096, bf16, everything read once. 32 MiB of weights each; the groups have 1 and 8
    rows of 256x256 tiles, 16 across, 64 stages of K: 1,024 and 8,192 stages."""
    problem = GroupedGemm(counts=(256, 2048), n=4096, k=4096)
    unique = unique_groups(problem.groups())
    weights = hbm_weights(problem, pair(), 74, B200, Raster("m", 1), unique)
    skinny = (256 * 4096 + 4096 * 4096 + 256 * 4096) * 2 / 1024
    fat = (2048 * 4096 + 4096 * 4096 + 2048 * 4096) * 2 / 8192
    assert weights[0] / weights[1] == pytest.approx(skinny / fat)
