"""Tile maps: every tile once, no cluster across groups, owners that tile the cluster tile."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tilewright.errors import BadInput
from tilewright.mma import Shape
from tilewright.problem import Gemm, GroupedGemm, Groups
from tilewright.tile_map import Raster, TileMap, cta_shares

TILE = Shape(128, 128, 64)

shapes = st.sampled_from([(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (4, 2, 1), (16, 1, 1)])
rasters = st.builds(Raster, st.sampled_from(["m", "n"]), st.integers(1, 9))


def groups_of(pairs: list[tuple[int, int]], repeat: int = 1) -> Groups:
    m, n = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    return Groups(m, n, np.full_like(m, 64), repeat)


@given(
    st.lists(st.tuples(st.integers(0, 1500), st.integers(1, 1500)), min_size=1, max_size=6),
    shapes,
    rasters,
    st.integers(1, 3),
)
@settings(max_examples=200)
def test_each_tile_exactly_once(
    pairs: list[tuple[int, int]], cluster: tuple[int, int, int], raster: Raster, repeat: int
) -> None:
    tiles = TileMap(groups_of(pairs, repeat), TILE, cluster, raster)
    expected = {
        (copy * len(pairs) + group, m, n)
        for copy in range(repeat)
        for group, (rows, columns) in enumerate(pairs)
        for m in range(-(-rows // (128 * cluster[0])))
        for n in range(-(-columns // (128 * cluster[1])))
    }
    seen = [tuple(int(v) for v in row) for row in tiles.coordinates()]
    assert len(seen) == tiles.num_tiles
    assert set(seen) == expected
    assert len(set(seen)) == len(seen)
    for cluster_id in range(0, tiles.num_tiles, max(1, tiles.num_tiles // 7)):
        assert tuple(tiles.locate(cluster_id)) == seen[cluster_id]


@pytest.mark.parametrize("along", ["m", "n"])
def test_case_c3_thirteen_tiles(along: str) -> None:
    """NVIDIA/cutlass#3497: groups of 2x2 and 3x3 tiles, swizzle 4: 13 tiles, not 20."""
    tiles = TileMap(groups_of([(256, 256), (384, 384)]), TILE, (1, 1, 1), Raster(along, 4))  # type: ignore[arg-type]
    assert tiles.num_tiles == 13
    assert len(np.unique(tiles.coordinates(), axis=0)) == 13


def test_case_c4_clusters_do_not_straddle_groups() -> None:
    """deepseek-ai/DeepGEMM#415: two groups of 129 CTA tiles, cluster 2: 130 a group."""
    tiles = TileMap(groups_of([(129 * 128, 128)] * 2), TILE, (2, 1, 1), Raster("m", 1))
    assert tiles.num_tiles == 2 * 65
    assert tiles.grid_ctas == 260
    assert tiles.padded_ctas == 2
    assert [tiles.locate(i).group for i in (0, 64, 65, 129)] == [0, 0, 1, 1]


def test_case_c16_empty_groups() -> None:
    """pytorch/torchtitan#1166: no tile for an empty M group, a tile of zeros for an empty K group."""
    ragged_m = GroupedGemm(counts=(0, 128, 0), n=128, k=64)
    tiles = TileMap(ragged_m.groups(), TILE, (1, 1, 1), Raster("m", 1))
    assert [tuple(row) for row in tiles.coordinates().tolist()] == [(1, 0, 0)]
    ragged_k = GroupedGemm(counts=(0, 64), grouped="k", m=128, n=128)
    tiles = TileMap(ragged_k.groups(), TILE, (1, 1, 1), Raster("m", 1))
    assert tiles.num_tiles == 2
    assert tiles.tile_k_steps().tolist() == [0, 1]
    nothing = GroupedGemm(counts=(0, 0), n=128, k=64)
    assert TileMap(nothing.groups(), TILE, (2, 1, 1), Raster("m", 1)).num_tiles == 0


def test_case_c15_clusters_lie_on_x() -> None:
    """Dao-AILab/quack#81: 70,000 clusters do not fit grid z; along x they do."""
    problem = Gemm(m=70_000 * 128, n=128, k=64)
    tiles = TileMap(problem.groups(), TILE, (1, 1, 1), Raster("m", 1))
    assert tiles.grid_ctas == 70_000
    with pytest.raises(BadInput, match="grid limit"):
        TileMap(Gemm(m=2**31 - 1, n=2**31 - 8, k=64).groups(), TILE, (1, 1, 1), Raster("m", 1))


def test_a_strip_is_walked_minor_axis_first() -> None:
    tiles = TileMap(groups_of([(3 * 128, 5 * 128)]), TILE, (1, 1, 1), Raster("m", 2))
    assert tiles.coordinates()[:, 1:].tolist() == [
        [0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1],
        [0, 2], [0, 3], [1, 2], [1, 3], [2, 2], [2, 3],
        [0, 4], [1, 4], [2, 4],
    ]  # fmt: skip


@given(
    st.sampled_from([(1, 1, 1), (2, 1, 1), (4, 1, 1), (2, 2, 1), (4, 4, 1), (8, 2, 1)]),
    st.sampled_from([1, 2]),
    st.booleans(),
)
def test_owners_and_loads_cover_the_cluster_tile(
    cluster: tuple[int, int, int], group: int, multicast: bool
) -> None:
    if cluster[0] % group:
        return
    shares = cta_shares(Shape(128, 256, 64), cluster, group, multicast=multicast)
    owned = {(s.rows, s.columns) for s in shares}
    assert len(owned) == len(shares) == cluster[0] * cluster[1]
    for share in shares:
        # every row of A and every column of B that a CTA needs reaches it from somebody
        rows = {row for s in shares if s.a_mask >> share.rank & 1 for row in range(*s.a_rows)}
        assert rows == set(range(*share.rows))
        columns = {
            column for s in shares if s.b_mask >> share.rank & 1 for column in range(*s.b_columns)
        }
        half = 256 // group
        start = share.columns[0] + (share.x % group) * half
        assert columns == set(range(start, start + half))


def test_case_c6_pairs_of_a_cluster_of_four() -> None:
    """facebookexperimental/triton#783: pair (0, 1) is 0x3, pair (2, 3) is 0xC."""
    shares = cta_shares(Shape(128, 256, 64), (4, 1, 1), 2, multicast=True)
    assert [sum(1 << r for r in s.pair) for s in shares] == [0x3, 0x3, 0xC, 0xC]
    assert [s.leader for s in shares] == [True, False, True, False]
    assert [s.b_mask for s in shares] == [0b0101, 0b1010, 0b0101, 0b1010]
