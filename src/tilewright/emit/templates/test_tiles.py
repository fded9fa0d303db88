"""Is every tile done exactly once, whatever its number and the scheduler?

Needs a GPU, NVRTC, numpy and pytest. A tile function that counts runs in place of the emitted one; what that
one computes is for its author to test.
"""

from __future__ import annotations

import numpy as np
import pytest
from arrays import DeviceArray, LaunchError
from paths import read_constants
from tiles import Tiles, read_times

CONSTANTS = read_constants()
NAMES = [entry["name"] for entry in (*CONSTANTS["paths"], *CONSTANTS["candidates"])]
COUNT = """
__device__ void tilewright_tile(const Tile& tile, void* arguments, unsigned char*) {
    if (threadIdx.x == 0) atomicAdd(static_cast<int*>(arguments) + tile.id * tile.size + tile.rank, 1);
}
"""


@pytest.fixture(params=NAMES, scope="module")
def tiles(request: pytest.FixtureRequest) -> Tiles:
    """Each path and scheduler that this GPU runs."""
    try:
        return Tiles(path=request.param, tile=COUNT)
    except LaunchError as error:
        if "needs compute capability" in str(error):
            pytest.skip(str(error))
        raise


def counts_of(
    tiles: Tiles, num_tiles: int, launches: int = 1
) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """How often each CTA's share of each tile was done."""
    zeros = np.zeros(num_tiles * tiles.numbers["cluster_size"], np.int32)
    seen = DeviceArray.of(tiles.cuda, zeros, "int32")
    launch = tiles.bind(seen, num_tiles)
    for _ in range(launches):
        launch()
    return seen.numpy()


@pytest.mark.parametrize("rounds", [0, 1, 2])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_each_tile_once_around_the_resident_clusters(tiles: Tiles, rounds: int, more: int) -> None:
    """0, 1, R - 1, R, R + 1, 2 R - 1, 2 R and 2 R + 1 tiles."""
    number = max(0, rounds * tiles.resident_clusters + more)
    assert np.all(counts_of(tiles, number) == 1), number


def test_launches_leave_nothing_behind(tiles: Tiles) -> None:
    """Three times the same: counters are zero again."""
    assert np.all(counts_of(tiles, 3 * tiles.resident_clusters + 5, launches=3) == 3)


def test_the_timeline_has_every_tile(tiles: Tiles) -> None:
    """Start, end and place of each."""
    with_times = Tiles(path=tiles.path, tile=COUNT, timeline=True)
    number = 2 * tiles.resident_clusters + 1
    size = tiles.numbers["cluster_size"]
    seen = DeviceArray.of(tiles.cuda, np.zeros(number * size, np.int32), "int32")
    times = with_times.timeline_array(number)
    with_times.bind(seen, number, times=times)()
    rows = read_times(times)
    assert len(rows) == number * size
    assert np.all(rows["start_ns"] > 0)
    assert np.all(rows["end_ns"] >= rows["start_ns"])
