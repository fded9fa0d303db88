"""Numbers of the contract against public kernels, the PTX ISA and cases from bug reports.

CUTLASS: include/cutlass/pipeline/sm100_pipeline.hpp (PipelineTmaUmmaAsync), sm90_pipeline.hpp and
sm100_gemm_tma_warpspecialized.hpp at 7107b05. DeepGEMM: sm100_bf16_gemm.cuh at 54e2261. flash-attention:
flash_attn/cute/flash_fwd_sm100.py at 0251105. Where those let all 32 lanes arrive, one lane does here.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tilewright.attention import AttentionTiling, attention_tiling
from tilewright.device import load
from tilewright.errors import BadInput, NoFit, UnknownName, Unsupported
from tilewright.mma import SWIZZLE_BYTES
from tilewright.problem import Attention
from tilewright.protocol import (
    SCHEDULERS,
    Barrier,
    Protocol,
    ProtocolError,
    Role,
    Signal,
    accumulator_layout,
    arrive_count,
    grid_counts,
    make_attention_protocol,
    make_protocol,
    make_tiles_protocol,
    ranks_of,
    tmem_cell,
)
from tilewright.tiling import Tiling, fitting_tilings, make_tiling

B200, H200, A100, RTX = load("b200"), load("h200"), load("a100"), load("rtx_pro_6000")
LANES = 32
TWO_TILES = AttentionTiling("tcgen05", 128, q_tiles=2)
KEYS = {
    "sharing",
    "dsmem",
    "multicast",
    "barriers",
    "phases",
    "slots",
    "clc",
    "mma",
    "tmem",
    "smem",
    "roles",
    "launch",
}


def tiling(
    cluster: tuple[int, int, int] = (1, 1, 1),
    group: int = 1,
    tile: tuple[int, int] = (128, 128),
    dtype: str = "bf16",
    **more: Any,
) -> Tiling:
    return make_tiling(
        dtype, 2, B200, cta_tile=tile, cluster_shape=cluster, cta_group=group, **more
    )


def blackwell(*args: Any, scheduler: str = "clc", **more: Any) -> Protocol:
    return make_protocol(tiling(*args, **more), scheduler, B200)


def hopper(cluster: tuple[int, int, int], tile: tuple[int, int] = (128, 128)) -> Protocol:
    cut = make_tiling("bf16", 2, H200, cta_tile=tile, cluster_shape=cluster)
    return make_protocol(cut, "static", H200)


def masks(protocol: Protocol, barrier: str) -> dict[int, int]:
    (signal,) = protocol.barrier(barrier).signals
    return dict(signal.targets)


PAIRS = [(1, 1, 1), (2, 1, 2), (2, 1, 1), (4, 1, 2), (2, 2, 2), (4, 2, 2), (4, 4, 1), (8, 2, 2)]


@pytest.mark.parametrize(("x", "y", "group"), PAIRS)
def test_empty_count_is_that_of_cutlass_tma_umma(x: int, y: int, group: int) -> None:
    """multicast_consumer_arrival_count = x / atom + y - 1, arrivals by tcgen05.commit."""
    assert blackwell((x, y, 1), group).arrive_count("empty") == x // group + y - 1


@pytest.mark.parametrize(("x", "y"), [(2, 1), (1, 2), (2, 2), (4, 2), (4, 4)])
@pytest.mark.parametrize(("rows", "warpgroups"), [(64, 1), (128, 2)])
def test_empty_count_is_that_of_cutlass_sm90(x: int, y: int, rows: int, warpgroups: int) -> None:
    """multicast_consumer_arrival_count = (x + y - 1) * consumer warpgroups."""
    assert hopper((x, y, 1), (rows, 128)).arrive_count("empty") == (x + y - 1) * warpgroups


@pytest.mark.parametrize(("cluster", "group"), [((1, 1, 1), 1), ((2, 1, 1), 2), ((4, 2, 1), 2)])
def test_accumulator_counts(cluster: tuple[int, int, int], group: int) -> None:
    """CUTLASS: producer 1, consumer size(AtomThrShape) * 128 threads; DeepGEMM the same 2 * 128."""
    protocol = blackwell(cluster, group)
    assert protocol.arrive_count("acc_full") == 1
    assert protocol.arrive_count("acc_empty") * LANES == group * 128
    assert protocol.arrive_count("full") == 1


@pytest.mark.parametrize("size", [1, 2, 4])
def test_clc_reader_count_of_cutlass_roles(size: int) -> None:
    """consumer_arv_count = NumSchedThreads + cluster_size * (load + epilogue + MMA threads)."""
    ranks = tuple(range(size))
    roles = (
        Role("sched", (1,), (0,), ""),
        Role("load", (2,), ranks, ""),
        Role("mma", (0,), ranks, ""),
        Role("epilogue", (4, 5, 6, 7), ranks, ""),
    )
    signals = tuple(Signal(r.name, "arrive", "warp", dict.fromkeys(r.ranks, 1)) for r in roles)
    home = dict.fromkeys(ranks, 0)
    barrier = Barrier("clc_empty", 2, "empty", home, "rank 0 of the cluster", signals, "", "", ())
    assert arrive_count(barrier, roles) * LANES == 32 + size * (32 + 128 + 32)


def test_clc_reader_count_of_a_pair() -> None:
    """13 warps, as CUTLASS's 416 threads: our idle MMA warp of the odd CTA does not read, our second
    scheduler warp does."""
    assert blackwell((2, 1, 1), 2).arrive_count("clc_empty") == 13
    assert blackwell().arrive_count("clc_empty") == 7


def test_joint_arrival_of_softmax_and_correction() -> None:
    """flash_fwd_sm100: softmax and correction threads together, 256."""
    protocol = make_attention_protocol(TWO_TILES, "static", B200)
    assert protocol.arrive_count("p0_full") * LANES == 256
    assert protocol.arrive_count("stats1_full") * LANES == 128


def test_case_c5_every_cta_arms_its_own_barrier() -> None:
    protocol = blackwell((2, 1, 1), 1)
    assert masks(protocol, "clc_full") == {0: 0b01, 1: 0b10}
    assert protocol.tx_bytes("clc_full") == 16
    assert protocol.arrive_count("clc_full") == 1
    assert "multicast::cluster::all" in protocol.as_dict()["clc"]["instruction"]
    assert "multicast" not in blackwell().as_dict()["clc"]["instruction"]


def test_case_c6_commit_masks_by_pair() -> None:
    protocol = blackwell((4, 1, 1), 2)
    assert masks(protocol, "acc_full") == {0: 0x3, 2: 0xC}
    alone = make_protocol(replace(tiling((4, 1, 1), 2), multicast=False), "clc", B200)
    assert masks(alone, "empty") == {0: 0x3, 2: 0xC}


def test_empty_masks_reach_everyone_who_multicasts_into_the_pair() -> None:
    """Cluster 4x2, pairs (0,1) (2,3) / (4,5) (6,7): a pair's row of pairs and its column."""
    assert masks(blackwell((4, 2, 1), 2), "empty") == {
        0: 0b0011_1111,
        2: 0b1100_1111,
        4: 0b1111_0011,
        6: 0b1111_1100,
    }


@pytest.mark.parametrize("size", [2, 4, 8])
def test_case_c7_pair_bytes_do_not_grow_with_the_cluster(size: int) -> None:
    cut = tiling((size, 1, 1), 2)
    protocol = make_protocol(cut, "clc", B200)
    full = protocol.barrier("full")
    a_part = 128 * 64 * 2
    of_a = [t for t in full.transfers if t.what == "A"]
    landed = sum(
        t.bytes * len([c for c in ranks_of(mask) if full.home[c] == 0])
        for t in of_a
        for mask in t.targets.values()
    )
    assert landed == 2 * a_part == 32_768
    assert protocol.tx_bytes("full") == cut.expect_tx_bytes == 49_152


def test_case_c8_nobody_signals_a_cta_that_left() -> None:
    contract = blackwell((2, 1, 1), 1).as_dict()
    names = [row["barrier"] for row in contract["barriers"]]
    assert "exit_cluster" in names
    fetches = [
        r["program"]["fetch_next_tile"]
        for r in contract["roles"]
        if "fetch_next_tile" in r["program"]
    ]
    assert fetches
    assert all("if granted" in fetch[-1] for fetch in fetches)


def test_case_c9_both_counts_of_a_launch() -> None:
    assert grid_counts(4, (2, 1, 1)) == {"grid_clusters": 4, "grid_ctas": 8}
    with pytest.raises(BadInput, match="nothing to launch"):
        grid_counts(0, (2, 1, 1))


def test_case_c14_a_barrier_a_stage() -> None:
    protocol = blackwell((2, 1, 1), 2, num_stages=3)
    row = next(r for r in protocol.ledger() if r["barrier"] == "full")
    assert (row["depth"], row["whose"]) == (3, "leader of the pair")


def test_case_c24_declined_is_not_the_end_of_the_queue() -> None:
    clc = blackwell().as_dict()["clc"]
    assert "not proof that the queue is empty" in clc["declined"]
    assert any("coordinates are not read" in step["step"] for step in clc["steps"])


def test_parities_of_a_ring_of_three() -> None:
    """PTX ISA, test_wait.parity: a fresh barrier blocks on parity 0 and passes on parity 1."""
    protocol = blackwell(num_stages=3)
    rows = [r for r in protocol.phases(7) if r["role"] == "tma" and r["barrier"] == "empty"]
    assert [(r["when"], r["stage"], r["parity"]) for r in rows] == [
        ("prologue", 0, 1),
        ("steady", 0, 0),
        ("steady", 1, 0),
        ("steady", 2, 0),
        ("drain", 1, 1),  # uses 7, 8: third lap
        ("drain", 2, 1),
        ("drain", 0, 0),  # use 9: fourth lap
    ]
    full = [r for r in protocol.phases() if r["role"] == "mma" and r["barrier"] == "full"]
    assert [(r["when"], r["parity"]) for r in full] == [
        ("prologue", 0),
        *[("steady", 1)] * 3,
        ("drain", 1),
    ]


def test_a_short_kernel_drains_what_it_never_used() -> None:
    rows = [
        r for r in blackwell(num_stages=4).phases(2) if r["when"] == "drain" and r["role"] == "tma"
    ]
    assert [r["note"] for r in rows if r["barrier"] == "empty"] == [
        "passes at once: never used",
        "passes at once: never used",
        "needs phase 0 complete",
        "needs phase 0 complete",
    ]


LAYOUTS = [
    ("A", (256, 1), 2, 128, (127, 255), (127, 255)),
    ("B", (128, 1), 2, 64, (63, 128), (127, 0)),
    ("D", (128, 1), 1, 128, (5, 7), (5, 7)),
    ("F", (64, 1), 1, 64, (17, 7), (33, 7)),
]


@pytest.mark.parametrize(("letter", "_m", "group", "rows", "element", "cell"), LAYOUTS)
def test_accumulator_cells(  # PTX ISA, tcgen05 data path layouts A, B, D and F
    letter: str, _m: object, group: int, rows: int, element: tuple[int, int], cell: tuple[int, int]
) -> None:
    cut = tiling((group, 1, 1), group, (rows, 256))
    assert accumulator_layout(cut) == letter
    assert tmem_cell(letter, *element, 256) == cell
    cells = {tmem_cell(letter, r, n, 256) for r in range(rows) for n in range(256)}
    assert len(cells) == rows * 256
    assert max(column for _, column in cells) + 1 == cut.accumulator_columns


@pytest.mark.parametrize(("letter", "_m", "group", "rows", "_e", "_c"), LAYOUTS)
def test_epilogue_warps_read_their_own_lanes(
    letter: str, _m: object, group: int, rows: int, _e: object, _c: object
) -> None:
    """TC-15: warp w reaches lanes 32 w to 32 w + 31; together the warps cover the share once."""
    protocol = blackwell((group, 1, 1), group, (rows, 256))
    fragments = protocol.as_dict()["mma"]["epilogue"]["warps"]
    seen = set()
    for w, fragment in enumerate(fragments):
        assert fragment["lanes"] == [32 * w, 32 * w + 32]
        for r in range(*fragment["rows"]):
            for n in range(*fragment["columns"]):
                lane, _ = tmem_cell(letter, r, n, 256)
                assert lane // 32 == w
                seen.add((r, n))
    assert len(seen) == rows * 256


def test_scale_factor_columns_of_nvfp4() -> None:
    """CuTe DSL dense_blockscaled_gemm_persistent: 16 + 32 columns for 128x256x256, block 16."""
    mma = blackwell(dtype="nvfp4", tile=(128, 256)).as_dict()["mma"]
    assert (mma["scale_factors"]["sfa_columns"], mma["scale_factors"]["sfb_columns"]) == (16, 32)
    assert mma["instruction"].endswith("kind::mxf4nvf4.block_scale")
    assert blackwell().as_dict()["mma"]["scale_factors"] is None


def test_wgmma_accumulator_registers() -> None:
    """N / 2 registers a thread for each 64 rows of a warpgroup (PTX ISA, wgmma.mma_async)."""
    mma = hopper((1, 1, 1), (128, 256)).as_dict()["mma"]
    assert mma["accumulator"]["registers_a_thread"] == 128
    assert mma["instruction"] == "wgmma.mma_async.sync.aligned.m64n256k16"


@pytest.mark.parametrize("device", [B200, H200, A100, RTX], ids=lambda d: d.name)
def test_every_fitting_tiling_has_a_contract(device: Any) -> None:
    for cut in fitting_tilings("bf16", 2, device)[::9]:
        for scheduler in SCHEDULERS:
            if scheduler == "clc" and not device.clc:
                continue
            protocol = make_protocol(cut, scheduler, device)
            contract = json.loads(json.dumps(protocol.as_dict()))
            assert set(contract) >= KEYS
            _check(protocol, cut)


def _check(protocol: Protocol, cut: Tiling | AttentionTiling) -> None:
    """Laws: bytes agree with the tiling, buffers are disjoint and aligned, barriers start where they end."""
    names = {b.name for b in protocol.barriers}
    if "full" in names:
        assert isinstance(cut, Tiling)
        assert protocol.tx_bytes("full") == cut.expect_tx_bytes
    end = 0
    for region in protocol.as_dict()["smem"]["regions"]:
        assert region["offset"] >= end
        assert region["offset"] % region["alignment"] == 0
        end = region["offset"] + region["size"] * region["copies"]
        if (
            region["name"] in {"A", "B"}
            and isinstance(cut, Tiling)
            and cut.mma.family != "mma.sync"
        ):
            assert region["size"] % (8 * SWIZZLE_BYTES) == 0
    assert end <= cut.smem_bytes
    warps = [w for role in protocol.roles for w in role.warps]
    assert len(warps) == len(set(warps))
    assert max(warps) < cut.threads // 32


def test_no_wait_on_another_ctas_barrier() -> None:
    """CLU-12: every role that waits finds the barrier in its own CTA."""
    for protocol in (blackwell((4, 2, 1), 2), hopper((2, 2, 1))):
        for role in protocol.roles:
            for step in role.program.steps:
                if step.op == "wait":
                    ranks = step.ranks if step.ranks is not None else role.ranks
                    assert set(ranks) <= set(protocol.barrier(step.barrier).homes)


def test_rules_exist_in_the_catalogue() -> None:
    families = {"CLC": 22, "MBAR": 15, "CLU": 16, "TMA": 15, "TC": 22, "REG": 2, "WG": 6}
    for protocol in (
        blackwell((4, 2, 1), 2),
        hopper((2, 2, 1)),
        make_attention_protocol(TWO_TILES, "clc", B200),
    ):
        contract = protocol.as_dict()
        rows = contract["barriers"] + contract["dsmem"] + contract["multicast"]
        for row in rows:
            assert row["rules"]
            for rule in row["rules"]:
                family, number = rule.split("-")
                assert 1 <= int(number) <= families[family]


def test_dsmem_is_empty_without_a_cluster_and_lists_pair_loads_with_one() -> None:
    assert blackwell().as_dict()["dsmem"] == []
    rows = blackwell((2, 1, 1), 2).as_dict()["dsmem"]
    assert {"A", "B", "CLC response"} <= {row["what"] for row in rows}
    assert all(row["unit_stride"] for row in rows)


def test_multicast_shares_add_up() -> None:
    rows = blackwell((4, 2, 1), 2).as_dict()["multicast"]
    for rank in range(8):
        for operand in "AB":
            mine = [r for r in rows if r["operand"] == operand and rank in r["receivers"]]
            assert sum(r["bytes"] for r in mine) == mine[0]["bytes_received_each"]


@pytest.mark.parametrize("scheduler", ["single_tile", "static", "static_blocked"])
def test_static_schedulers_add_nothing(scheduler: str) -> None:
    protocol = blackwell(scheduler=scheduler)
    assert protocol.as_dict()["clc"] == {}
    assert not any(b.name.startswith(("clc", "work")) for b in protocol.barriers)


def test_dynamic_broadcasts_to_every_cta_and_resets_itself() -> None:
    protocol = blackwell((2, 2, 1), 1, scheduler="dynamic_atomic")
    assert masks(protocol, "work_full") == {0: 0xF}
    table = protocol.as_dict()["clc"]["dynamic_atomic"]
    assert table["readers_release_count"] == 4 * (1 + 1 + 4)
    assert "No second launch" in table["reset"]


def test_the_last_draw_resets_the_counter() -> None:
    """Played out: clusters draw until past the end, in any order; exactly one sees num_tiles - 1."""
    for tiles, clusters in ((5, 5), (17, 4), (8, 1)):
        counter, left, resets = 0, clusters, 0
        while left:
            value, counter = counter, counter + 1
            left -= clusters + value >= tiles
            resets += value == tiles - 1
            assert left or value == tiles - 1
        assert resets == 1


def test_mma_sync_has_no_mbarriers() -> None:
    cut = make_tiling("bf16", 2, A100, cta_tile=(128, 128))
    for scheduler in SCHEDULERS[:-1]:
        protocol = make_protocol(cut, scheduler, A100)
        assert protocol.barriers == ()
        names = {row["barrier"] for row in protocol.ledger()}
        assert {"cp_async_group", "stage_barrier"} <= names
        assert ("tile_draw" in names) is (scheduler == "dynamic_atomic")


def test_user_tiles() -> None:
    protocol = make_tiles_protocol((2, 1, 1), 256, 200_000, "dynamic_atomic", H200)
    assert protocol.arrive_count("work_empty") == 2 * 8
    assert protocol.as_dict()["launch"]["dynamic_smem_bytes"] > 200_000
    with pytest.raises(NoFit):
        make_tiles_protocol((2, 1, 1), 256, 232_448, "dynamic_atomic", H200)
    assert make_tiles_protocol((2, 1, 1), 256, 232_448, "static", H200).barriers == ()


def test_refusals() -> None:
    with pytest.raises(UnknownName, match="dynamic_atomic"):
        make_protocol(tiling(), "dynamic_atomc", B200)
    with pytest.raises(BadInput, match="1 to 8"):
        make_protocol(tiling(), "clc", B200, clc_depth=0)
    with pytest.raises(Unsupported, match="dynamic_atomic"):
        make_tiles_protocol((1, 1, 1), 128, 0, "clc", H200)


REFUSED: list[tuple[str, Any, dict[str, Any]]] = [
    ("576 TMEM columns", B200, {"head_dim": 160, "q_tiles": 2}),
    ("two S of 256 columns", B200, {"head_dim": 64, "block_kv": 256}),
    ("multicast shares", B200, {"block_kv": 48, "cluster_shape": (4, 1, 1)}),
    ("MMA steps of 16 and 32 keys", B200, {"block_kv": 48, "dtype": "fp8_e4m3"}),
    ("3 query tiles", B200, {"head_dim": 64, "q_tiles": 3}),
    ("whose kernel uses wgmma", H200, {}),
    ("no TMA multicast", RTX, {"family": "mma.sync", "kv_stages": 1, "cluster_shape": (2, 1, 1)}),
    ("one slot of K", A100, {"family": "mma.sync"}),
]


@pytest.mark.parametrize(("match", "device", "cut"), REFUSED, ids=[r[0] for r in REFUSED])
def test_refused_attention_cuts(match: str, device: Any, cut: dict[str, Any]) -> None:
    values: dict[str, Any] = {"family": "tcgen05", "head_dim": 128}
    with pytest.raises((BadInput, Unsupported), match=match) as refusal:
        make_attention_protocol(AttentionTiling(**values | cut), "static", device)
    assert refusal.value.nearest


def test_an_attention_cut_that_needs_more_shared_memory_than_there_is() -> None:
    with pytest.raises(NoFit, match="bytes of shared memory"):
        make_attention_protocol(replace(TWO_TILES, kv_stages=3), "static", B200)


ATTENTION = [
    (device, head_dim, dtype, cluster)
    for device in (B200, H200, A100, RTX)
    for head_dim in (64, 80, 128, 144, 192, 208, 256)
    for dtype in ("bf16", "fp8_e4m3")
    for cluster in (1, 2, 4)
    if device.tensor_rate(dtype) is not None and (cluster == 1 or device.multicast)
]


@pytest.mark.parametrize(
    ("device", "head_dim", "dtype", "cluster"),
    ATTENTION,
    ids=[f"{d.name}-{h}-{t}-{c}" for d, h, t, c in ATTENTION],
)
def test_every_attention_tiling_has_a_contract(
    device: Any, head_dim: int, dtype: Any, cluster: int
) -> None:
    """Residency and contract count the same bytes and columns; slots hold what lands in them."""
    problem = Attention(seqlens=(1,), heads=1, kv_heads=1, head_dim=head_dim, dtype=dtype)
    cut = attention_tiling(problem, device, (cluster, 1, 1))
    protocol = make_attention_protocol(cut, "dynamic_atomic", device)
    contract = json.loads(json.dumps(protocol.as_dict()))
    _check(protocol, cut)
    buffers = [r for r in contract["smem"]["regions"] if r["alignment"] >= 128]
    assert sum(r["size"] * r["copies"] for r in buffers) + 1024 == cut.smem_bytes
    assert contract["launch"]["dynamic_smem_bytes"] == cut.resources.smem_bytes
    assert contract["launch"]["threads"] == cut.threads
    assert {r["size"] % 1024 for r in buffers if r["alignment"] == 1024} == {0}
    assert buffers[0]["size"] >= 128 * head_dim * problem.out_bytes
    if device.tcgen05:
        used = 2 * cut.block_kv + cut.q_tiles * head_dim
        assert contract["tmem"]["used_columns"] == used <= 512
        assert contract["tmem"]["columns"] == cut.tmem_columns
        assert contract["tmem"]["allocated_by"].endswith(f"warp {cut.threads // 32 - 1}")
    for name in () if cut.family == "mma.sync" else ("k", "v"):
        assert protocol.tx_bytes(f"{name}_full") == cut.kv_block_bytes


def test_the_next_q_waits_for_the_output_in_its_buffer() -> None:
    """flash_fwd_sm100 turns persistence off where sO overlaps sQ; here O's store is an arrival."""
    assert make_attention_protocol(TWO_TILES, "static", B200).arrive_count("q0_empty") == 2
    for device, role in ((B200, "correction"), (H200, "consumer")):
        problem = Attention(seqlens=(1,), heads=1, kv_heads=1, head_dim=128)
        protocol = make_attention_protocol(attention_tiling(problem, device), "static", device)
        last = next(r for r in protocol.roles if r.name == role).program.last
        stored = [i for i, s in enumerate(last) if s.op == "read" and s.reads[0].startswith("q")]
        freed = [i for i, s in enumerate(last) if s.op == "arrive" and s.barrier.startswith("q")]
        assert stored
        assert [i + 1 for i in stored] == freed


def test_a_lopsided_ledger_is_refused() -> None:
    roles = (Role("tma", (0,), (0, 1), ""),)
    signal = Signal("tma", "arrive", "thread", {0: 0b01})
    barrier = Barrier("full", 1, "full", {0: 0, 1: 1}, "own CTA", (signal,), "", "", ())
    with pytest.raises(ProtocolError, match="differs by CTA"):
        arrive_count(barrier, roles)
