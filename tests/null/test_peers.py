"""Plans beside nvidia-matmul-heuristics: its recorded answers, and this model's time for both."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from tilewright.candidates import WORTH

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def peers() -> Any:
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        return importlib.import_module("compare_heuristics")
    finally:
        sys.path.remove(str(ROOT / "bench"))


def test_document_is_what_the_script_writes(peers: Any) -> None:
    text = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
    assert peers.render(text) == text


def test_every_shape_is_recorded_for_every_target(peers: Any) -> None:
    found = [(plan.device, plan.dtype, plan.shape) for plan in peers.recorded()]
    assert found == [
        (device, dtype, shape) for device, dtype in peers.TARGETS for shape in peers.SHAPES
    ]
    assert len(peers.SHAPES) == 20


def test_recorded_answer_is_the_one_on_record_elsewhere(peers: Any) -> None:
    # NVIDIA's own numbers for 8192 cubed: tile 128x256x64, cluster 2x1, 646.8 us
    plan = peers.recorded()[0]
    assert (plan.tile_m, plan.tile_n, plan.cluster_m, plan.us) == (128, 256, 2, 646.8)
    assert plan.pair


def test_own_choice_costs_no_more_than_the_peers(peers: Any) -> None:
    # the smaller cluster is taken within 2 % of a class's fastest, the simpler class within 2 % again
    worse = [
        (str(row.peer), row.peer.shape)
        for row in peers.rows()
        if row.theirs_us is not None and row.ours_us > row.theirs_us * (1 + WORTH) ** 2
    ]
    assert worse == []


def test_every_choice_of_the_peer_can_be_costed(peers: Any) -> None:
    assert [row.why_not for row in peers.rows() if row.theirs_us is None] == []


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_the_two_agree_on_pairs(peers: Any, dtype: str) -> None:
    mine = [row for row in peers.rows() if (row.peer.device, row.peer.dtype) == ("b200", dtype)]
    assert sum(row.same_pair for row in mine) >= 18
    # where they do not, M is short and this plan is swapped: the peer never swaps
    assert all(row.same_pair or row.ours.swap_ab for row in mine)


def test_large_square_product_gets_the_same_plan(peers: Any) -> None:
    row = peers.rows()[0]
    assert row.describe == "128x256x64 c2x1 pair"
    assert row.peer.pair
