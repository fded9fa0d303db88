"""Plans of real problems: the answer an expert would defend, whole, sourced and within its own bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from hypothesis import given, settings, strategies as st

from tilewright import Attention, Gemm, GroupedGemm, Options, Plan, TileList, load, make_plan
from tilewright.candidates import Busy
from tilewright.errors import BadInput, NoFit, Unsupported
from tilewright.lists import parse_integers
from tilewright.plan import draft_of
from tilewright.verify import verify

if TYPE_CHECKING:
    from tilewright.problem import Workload

DATA = Path(__file__).parent.parent / "data"
SCHEMA = json.loads((DATA.parent.parent / "docs" / "plan.schema.json").read_text())


def moe() -> GroupedGemm:
    """A DeepSeek-V3 layer: 256 experts, 4096 tokens to 8 each, skewed."""
    counts = parse_integers("counts", str(DATA / "moe_256_experts.csv"))
    assert len(counts) == 256
    assert sum(counts) == 4096 * 8
    return GroupedGemm(counts=counts, n=4096, k=7168)


def varlen() -> Attention:
    """64 causal sequences of 100 to 16k tokens."""
    lengths = parse_integers("seqlens", str(DATA / "varlen_64.csv"))
    assert len(lengths) == 64
    return Attention(seqlens=lengths, heads=32, kv_heads=8, head_dim=128, causal=True)


REAL: dict[str, Workload] = {
    "8192^3": Gemm(m=8192, n=8192, k=8192),
    "fp8": Gemm(m=4096, n=14_336, k=4096, dtype="fp8"),
    "decode": Gemm(m=128, n=8192, k=8192),
    "1152": Gemm(m=1152, n=5120, k=5120),
    "264": Gemm(m=264, n=16_384, k=2048),
    "moe": moe(),
    "varlen": varlen(),
    "uniform": TileList(costs_cycles=(50_000.0,) * 132, smem_bytes=200_000),
}


@pytest.fixture(scope="module")
def plans() -> dict[tuple[str, str], Plan]:
    return {
        (name, device): make_plan(problem, load(device))
        for name, problem in REAL.items()
        for device in ("b200", "h200")
    }


@pytest.mark.parametrize("device", ["b200", "h200"])
@pytest.mark.parametrize("name", REAL)
def test_every_part_is_there(plans: dict[tuple[str, str], Plan], name: str, device: str) -> None:
    plan = plans[name, device]
    as_json = json.loads(plan.model_dump_json())
    jsonschema.validate(as_json, SCHEMA)
    assert set(as_json) == {
        "tilewright", "problem", "device", "conclusion", "evidence", "contract", "schedule",
        "validation", "risks",
    }  # fmt: skip
    assert plan.validation.correctness
    assert plan.validation.boundary
    assert plan.validation.experiment
    chain = [risk.fallback for risk in plan.risks if "--device" in risk.fallback]
    assert any("--device a100" in fallback for fallback in chain)
    assert any("--device h200" in fallback for fallback in chain) == (device == "b200")
    assert len(plan.schedule.bound) == 4
    shares = [row.share for row in plan.schedule.bound]
    if None not in shares:
        assert sum(s or 0.0 for s in shares) == pytest.approx(1.0, abs=0.02)
    assert {e.kind for e in plan.evidence} <= {
        "documented", "queried", "measured", "derived", "assumed",
    }  # fmt: skip
    assert all(e.source for e in plan.evidence)
    slots = plan.schedule.resident_clusters
    expected = {n for n in (slots - 1, slots, slots + 1, 2 * slots, 2 * slots + 1) if n > 0}
    assert {b.tiles for b in plan.schedule.boundary} == expected | {plan.schedule.tiles}


@pytest.mark.parametrize("device", ["b200", "h200"])
@pytest.mark.parametrize("name", REAL)
def test_predictions_respect_the_bounds(
    plans: dict[tuple[str, str], Plan], name: str, device: str
) -> None:
    plan = plans[name, device]
    if plan.schedule.roofline:
        assert plan.conclusion.predicted_us >= plan.schedule.roofline["floor_us"]
    for m in plan.schedule.schedulers.values():
        assert m["makespan_us"] >= m["bound_work_us"] * (1 - 1e-9)
    traffic = plan.contract.traffic
    if "hbm_read_bytes" in traffic:
        moved = traffic["hbm_read_bytes"] + traffic["hbm_write_bytes"]
        assert moved >= traffic["compulsory_bytes"] * (1 - 1e-9)
    assert all(result.passed for result in verify(draft_of(REAL[name], load(device)), REAL[name]))


def test_a_large_gemm_on_b200_takes_pairs(plans: dict[tuple[str, str], Plan]) -> None:
    """NVIDIA/tilus, B200, 8192^3: 1506 TFLOP/s with one CTA, 1610 with a 256x256 pair; cuBLAS 1600."""
    c = plans["8192^3", "b200"].conclusion
    assert (c.cta_group, c.cluster_shape, c.use_cluster) == (2, (2, 1, 1), True)
    assert c.pair_tile is not None
    assert (c.pair_tile.m, c.pair_tile.n) == (256, 256)
    assert c.scheduler == "static"
    assert set(c.answers) == {"pair-mma", "persistent-static"}
    tflops = 2 * 8192**3 / c.predicted_us / 1e6
    assert tflops == pytest.approx(1610, rel=0.05)
    [tiling] = [step for step in c.because if step.what == "tiling"]
    assert tiling.gain == pytest.approx(1610 / 1506 - 1, abs=0.03)
    assert any(flip.value == "l2_bandwidth_gbps" for flip in c.would_flip)


def test_hopper_has_no_pairs(plans: dict[tuple[str, str], Plan]) -> None:
    for name in REAL:
        c = plans[name, "h200"].conclusion
        assert c.cta_group == 1
        assert c.scheduler != "clc"


def test_decode_is_bound_by_bandwidth(plans: dict[tuple[str, str], Plan]) -> None:
    for device in ("b200", "h200"):
        plan = plans["decode", device]
        assert plan.conclusion.bound == "bandwidth"
        assert plan.conclusion.predicted_us < 2 * plan.schedule.roofline["floor_us"]


def test_a_short_m_is_swapped(plans: dict[tuple[str, str], Plan]) -> None:
    """264 rows waste a third of three 128-row tiles; as N of a transposed product they fit 2 x 144."""
    for device in ("b200", "h200"):
        c = plans["264", device].conclusion
        assert c.swap_ab
        assert any("swapped" in note for note in c.notes)
    plain = make_plan(REAL["264"], load("b200"), Options(allow_swap=False))
    assert not plain.conclusion.swap_ab
    assert plain.conclusion.predicted_us > plans["264", "b200"].conclusion.predicted_us


def test_unequal_tiles_get_a_dynamic_schedule(plans: dict[tuple[str, str], Plan]) -> None:
    """Dao-AILab/flash-attention#2455: CLC gains on causal and varlen attention."""
    assert plans["varlen", "b200"].conclusion.scheduler == "clc"
    assert plans["varlen", "h200"].conclusion.scheduler == "dynamic_atomic"
    for device in ("b200", "h200"):
        assert "persistent-dynamic" in plans["varlen", device].conclusion.answers
        assert not plans["varlen", device].conclusion.use_cluster


def test_case_c18_dense_attention_needs_no_clc() -> None:
    """Dao-AILab/flash-attention#2455: CLC loses 2.5 % on dense non-causal attention."""
    dense = Attention(seqlens=(8192,) * 8, heads=16, kv_heads=16, head_dim=128)
    plan = make_plan(dense, load("b200"))
    assert plan.conclusion.scheduler != "clc"
    clc, static = (plan.schedule.schedulers[s]["kernel_us"] for s in ("clc", "static"))
    assert clc == pytest.approx(static, rel=0.03)


def test_one_tile_an_sm_is_left_alone() -> None:
    for device, sms in (("b200", 148), ("h200", 132)):
        tiles = TileList(costs_cycles=(50_000.0,) * sms, smem_bytes=200_000)
        plan = make_plan(tiles, load(device))
        c = plan.conclusion
        assert not c.applies
        assert c.answer == "leave-it-alone"
        assert (c.scheduler, c.use_cluster) == ("single_tile", False)
        assert c.summary.startswith("Leave it alone")
    small = make_plan(Gemm(m=1920, n=1024, k=256), load("a100"))
    assert not small.conclusion.applies


def test_case_c20_the_json_names_both_tiles(plans: dict[tuple[str, str], Plan]) -> None:
    c = plans["8192^3", "b200"].conclusion
    assert c.tile is not None
    assert c.pair_tile is not None
    assert (c.tile.m * 2, c.tile.n, c.tile.k) == (c.pair_tile.m, c.pair_tile.n, c.pair_tile.k)


def test_case_c9_grids_in_clusters_and_in_ctas(plans: dict[tuple[str, str], Plan]) -> None:
    """NVIDIA/cuda-python#867: a grid of 1024 clusters of two is 2048 CTAs; both are printed."""
    tiles = plans["8192^3", "b200"].contract.tile_map
    assert (tiles["grid_clusters"], tiles["grid_ctas"]) == (1024, 2048)


def test_case_c22_sm_120_has_clusters_but_no_pairs() -> None:
    device = load("rtx_pro_6000")
    plan = make_plan(Gemm(m=4096, n=4096, k=4096), device)
    assert plan.conclusion.cta_group == 1
    assert device.clusters
    assert not device.tcgen05
    rows = {row.cluster_size: row for row in plan.contract.residency}
    assert rows[2].resident_clusters_max > 0
    with pytest.raises(BadInput, match="cta_group 2 does not exist for mma"):
        make_plan(Gemm(m=4096, n=4096, k=4096), device, Options(cta_group=2))


def test_case_c21_busy_sms_and_budget() -> None:
    """pytorch/pytorch#144974: SMs held by a collective; the plan takes them as busy or as a budget."""
    problem = Gemm(m=8192, n=8192, k=8192)
    alone = make_plan(problem, load("b200"))
    busy = make_plan(problem, load("b200"), Options(busy=Busy(busy_sms=8)))
    budget = make_plan(problem, load("b200"), Options(busy=Busy(sm_budget=140)))
    for plan in (busy, budget):
        x, y, z = plan.conclusion.cluster_shape
        assert plan.schedule.resident_clusters * x * y * z <= 140
    assert busy.conclusion.predicted_us > alone.conclusion.predicted_us
    [held] = [r for r in alone.risks if "another kernel holds" in r.risk]
    assert "clc takes" in held.fallback


def test_what_the_user_fixes_is_kept() -> None:
    problem = Gemm(m=8192, n=8192, k=8192)
    fixed = Options(cluster_shape=(4, 1, 1), cta_group=2, tile=(128, 128))
    c = make_plan(problem, load("b200"), fixed).conclusion
    assert c.cluster_shape == (4, 1, 1)
    assert c.tile is not None
    assert (c.tile.m, c.tile.n, c.cta_group) == (128, 128, 2)
    with pytest.raises(NoFit, match="cluster_shape="):
        make_plan(problem, load("b200"), Options(cluster_shape=(3, 1, 1)))


def test_a_scheduler_of_the_users_choice() -> None:
    problem = Gemm(m=8192, n=8192, k=8192)
    plan = make_plan(problem, load("b200"), Options(scheduler="clc"))
    assert plan.conclusion.scheduler == "clc"
    assert set(plan.conclusion.answers) == {"pair-mma", "persistent-dynamic"}
    clc = plan.contract.clc
    assert clc["expect_tx_bytes_each_cta"] == 16  # C5: every CTA arms its own barrier
    assert "not proof that the queue is empty" in clc["declined"]  # C24
    assert any("declined while clusters are still pending" in risk.risk for risk in plan.risks)
    with pytest.raises(Unsupported, match="no cluster launch control"):
        make_plan(problem, load("h200"), Options(scheduler="clc"))
    tiles = TileList(costs_cycles=(1000.0,) * 10)
    assert make_plan(tiles, load("h200"), Options(scheduler="static")).conclusion.answers == (
        "persistent-static",
    )


def test_nothing_to_launch() -> None:
    plan = make_plan(GroupedGemm(counts=(0, 0), n=128, k=64), load("b200"))
    assert plan.schedule.tiles == 0
    assert not plan.conclusion.applies
    assert plan.conclusion.summary.startswith("Nothing to launch")
    with pytest.raises(BadInput, match="nothing to launch"):
        make_plan(Attention(seqlens=(0,), heads=1, kv_heads=1, head_dim=64), load("b200"))


@pytest.mark.parametrize(
    ("device", "dtype"), [("h200", "nvfp4"), ("a100", "fp8"), ("h100_sxm", "mxfp8")]
)
def test_dtypes_that_a_device_lacks(device: str, dtype: str) -> None:
    with pytest.raises(Unsupported, match="no known tensor rate"):
        make_plan(Gemm(m=1024, n=1024, k=1024, dtype=dtype), load(device))


@pytest.mark.parametrize(
    "dtype", ["bf16", "fp16", "tf32", "fp8", "fp8_e5m2", "mxfp8", "nvfp4", "int8"]
)
def test_every_dtype_plans_on_b200(dtype: str) -> None:
    plan = make_plan(Gemm(m=2048, n=2048, k=2048, dtype=dtype), load("b200"))
    assert plan.conclusion.predicted_us > 0


@pytest.mark.parametrize(
    "device", ["b200", "gb200", "b300", "h100_sxm", "h200", "a100", "rtx_pro_6000", "thor"]
)
def test_every_device_plans(device: str) -> None:
    plan = make_plan(Gemm(m=4096, n=4096, k=4096), load(device))
    assert plan.conclusion.predicted_us >= plan.schedule.roofline["floor_us"]
    attention = Attention(seqlens=(1024, 2048), heads=8, kv_heads=2, head_dim=128, causal=True)
    assert make_plan(attention, load(device)).conclusion.predicted_us > 0


def test_an_unknown_topology_gives_an_interval() -> None:
    plan = make_plan(Gemm(m=8192, n=8192, k=8192), load("b300"))
    rows = {row.cluster_size: row for row in plan.contract.residency}
    assert rows[2].resident_clusters == rows[2].resident_clusters_max == 74
    assert rows[4].resident_clusters < rows[4].resident_clusters_max
    assert rows[4].resident_clusters <= 33 <= rows[4].resident_clusters_max  # reported for a B300
    assert "cudaOccupancyMaxActiveClusters" in rows[4].decides


def test_the_published_schema_is_current() -> None:
    assert Plan.model_json_schema() == SCHEMA


@given(
    st.integers(1, 20_000),
    st.integers(1, 20_000),
    st.integers(1, 600).map(lambda k: 8 * k),
    st.sampled_from(["b200", "h200", "a100"]),
)
@settings(max_examples=25, deadline=None)
def test_any_gemm_plans_within_its_bounds(m: int, n: int, k: int, device: str) -> None:
    problem = Gemm(m=m, n=n, k=k)
    draft = draft_of(problem, load(device))
    assert draft.roofline is not None
    assert draft.decision.chosen.us >= draft.roofline.floor_us
    assert all(result.passed for result in verify(draft, problem))


def test_the_same_plan_twice() -> None:
    problem = varlen()
    one, two = (make_plan(problem, load("b200")) for _ in range(2))
    assert one == two


def test_plans_are_frozen_and_round_trip() -> None:
    plan = make_plan(Gemm(m=512, n=512, k=512), load("b200"))
    with pytest.raises(Exception, match="frozen"):
        plan.conclusion = None  # type: ignore[assignment]
    again: Any = json.loads(plan.model_dump_json())
    assert Plan.model_validate(again).conclusion == plan.conclusion
