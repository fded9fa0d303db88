"""The ledger under random interleavings: no hang, no race, and each wrong count does what its row says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from protocol_machine import Machine
from tilewright.attention import AttentionTiling
from tilewright.device import load
from tilewright.protocol import (
    Protocol,
    make_attention_protocol,
    make_protocol,
    make_tiles_protocol,
)
from tilewright.tiling import make_tiling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tilewright.device import Device

B200, H200 = load("b200"), load("h200")

LENGTHS = ((4, 6), (3, 1), (3, 3))
"""Tiles and k steps to try: a few surplus arrivals make up a phase, and then waits hang instead."""


def outcomes(protocol: Protocol, seeds: int = 30, **wrong: object) -> Iterator[str]:
    """How runs of different lengths and interleavings end."""
    for seed in range(seeds):
        for tiles, k in LENGTHS:
            yield Machine(protocol, tiles, k, seed, **wrong).run()  # type: ignore[arg-type]


def tcgen05(
    cluster: tuple[int, int, int] = (1, 1, 1),
    group: int = 1,
    stages: int = 3,
    scheduler: str = "clc",
    depth: int = 1,
    dtype: str = "bf16",
    accumulators: int = 2,
) -> Protocol:
    tiling = make_tiling(
        dtype,
        2,
        B200,
        cta_tile=(128, 128),
        cluster_shape=cluster,
        cta_group=group,
        num_stages=stages,
        accumulator_stages=accumulators,
    )
    return make_protocol(tiling, scheduler, B200, clc_depth=depth)


def wgmma(
    cluster: tuple[int, int, int] = (1, 1, 1),
    stages: int = 3,
    scheduler: str = "dynamic_atomic",
    depth: int = 1,
) -> Protocol:
    tiling = make_tiling(
        "bf16", 2, H200, cta_tile=(128, 128), cluster_shape=cluster, num_stages=stages
    )
    return make_protocol(tiling, scheduler, H200, clc_depth=depth)


CLUSTERS = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (4, 1, 1), (1, 4, 1))
SHAPES = [(c, g) for c in CLUSTERS for g in (1, 2) if c[0] % g == 0]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(SHAPES),
    st.integers(1, 4),
    st.integers(1, 2),
    st.sampled_from(["static", "clc", "dynamic_atomic"]),
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(0, 2**32),
)
def test_tcgen05_never_hangs_nor_races(
    shape: tuple[tuple[int, int, int], int],
    stages: int,
    accumulators: int,
    scheduler: str,
    depth: int,
    k: int,
    tiles: int,
    seed: int,
) -> None:
    protocol = tcgen05(*shape, stages, scheduler, depth, accumulators=accumulators)
    assert Machine(protocol, tiles, k, seed).run() == "ok"


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(CLUSTERS),
    st.integers(1, 4),
    st.sampled_from(["static", "dynamic_atomic"]),
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(0, 2**32),
)
def test_wgmma_never_hangs_nor_races(
    cluster: tuple[int, int, int], stages: int, scheduler: str, k: int, tiles: int, seed: int
) -> None:
    assert Machine(wgmma(cluster, stages, scheduler), tiles, k, seed).run() == "ok"


ATTENTION: dict[str, tuple[Device, AttentionTiling]] = {
    "sm_100, two query tiles": (B200, AttentionTiling("tcgen05", 128, q_tiles=2, block_kv=64)),
    "sm_100, one query tile": (B200, AttentionTiling("tcgen05", 192, block_kv=32)),
    "sm_90": (H200, AttentionTiling("wgmma", 128, block_kv=64)),
}


def attention(kernel: str, scheduler: str, depth: int = 1, **cut: object) -> Protocol:
    device, tiling = ATTENTION[kernel]
    return make_attention_protocol(replace(tiling, **cut), scheduler, device, clc_depth=depth)  # type: ignore[arg-type]


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(list(ATTENTION)),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 4),
    st.sampled_from(["static", "dynamic_atomic", "clc"]),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(0, 2**32),
)
def test_attention_never_hangs_nor_races(
    kernel: str, size: int, stages: int, scheduler: str, blocks: int, tiles: int, seed: int
) -> None:
    if scheduler == "clc" and kernel == "sm_90":
        scheduler = "dynamic_atomic"
    protocol = attention(kernel, scheduler, kv_stages=stages, cluster_shape=(size, 1, 1))
    assert Machine(protocol, tiles, blocks, seed).run() == "ok"


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["dynamic_atomic", "clc"]),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(0, 2**32),
)
def test_user_tiles_never_hang_nor_race(
    size: int, scheduler: str, depth: int, tiles: int, seed: int
) -> None:
    protocol = make_tiles_protocol((size, 1, 1), 128, 0, scheduler, B200, clc_depth=depth)
    assert Machine(protocol, tiles, 1, seed).run() == "ok"


KERNELS: dict[str, Callable[[int], Protocol]] = {
    "one CTA, clc": lambda depth: tcgen05(depth=depth),
    "pair, clc": lambda depth: tcgen05((2, 1, 1), 2, depth=depth),
    "two pairs, clc": lambda depth: tcgen05((4, 1, 1), 2, depth=depth),
    "pairs, both ways": lambda depth: tcgen05((2, 2, 1), 2, 3, "dynamic_atomic", depth),
    "four CTAs": lambda _: tcgen05((2, 2, 1), 1, scheduler="static"),
    "nvfp4 pair": lambda depth: tcgen05((2, 1, 1), 2, dtype="nvfp4", accumulators=1, depth=depth),
    "wgmma 2x2": lambda depth: wgmma((2, 2, 1), depth=depth),
    "wgmma": lambda depth: wgmma(depth=depth),
    "attention sm_100": lambda depth: attention(
        "sm_100, two query tiles", "clc", depth, cluster_shape=(2, 1, 1)
    ),
    "attention sm_100, one query tile": lambda depth: attention(
        "sm_100, one query tile", "clc", depth, cluster_shape=(2, 1, 1)
    ),
    "attention sm_90": lambda depth: attention(
        "sm_90", "dynamic_atomic", depth, cluster_shape=(2, 1, 1)
    ),
}
ROWS = [
    (name, row["barrier"])
    for name, make in KERNELS.items()
    for row in make(1).ledger()
    if row["first_parity"] is not None
]


def _row(protocol: Protocol, barrier: str) -> dict[str, dict[str, str]]:
    return next(row for row in protocol.ledger() if row["barrier"] == barrier)


@pytest.mark.parametrize(("name", "barrier"), ROWS)
def test_one_arrival_more_does_what_the_ledger_says(name: str, barrier: str) -> None:
    protocol = KERNELS[name](1)
    assert _row(protocol, barrier)["count_too_high"]["effect"] == "deadlock"
    wrong = {barrier: protocol.arrive_count(barrier) + 1}
    assert all(Machine(protocol, 4, 6, seed, counts=wrong).run() == "deadlock" for seed in range(8))


@pytest.mark.parametrize(("name", "barrier"), ROWS)
def test_one_arrival_fewer_does_what_the_ledger_says(name: str, barrier: str) -> None:
    """With one answer slot a slow reader also holds up everything else, with three it does not."""
    tight, loose = KERNELS[name](1), KERNELS[name](3)
    count = tight.arrive_count(barrier)
    effect = _row(tight, barrier)["count_too_low"]["effect"]
    assert effect == ("invalid" if count == 1 else "race")
    if count > 1:
        wrong = {barrier: count - 1}
        runs = zip(
            outcomes(tight, 100, counts=wrong), outcomes(loose, 100, counts=wrong), strict=True
        )
        assert any("race" in run for run in runs)


@pytest.mark.parametrize(
    ("name", "barrier"), [(n, b) for n, b in ROWS if KERNELS[n](1).tx_bytes(b)]
)
def test_wrong_bytes_do_what_the_ledger_says(name: str, barrier: str) -> None:
    protocol = KERNELS[name](1)
    row, right = _row(protocol, barrier), protocol.tx_bytes(barrier)
    assert row["tx_too_high"]["effect"] == "deadlock"
    assert set(outcomes(protocol, 4, tx={barrier: right + 16})) == {"deadlock"}
    pieces = protocol.barrier(barrier).landing(protocol.barrier(barrier).homes[0])
    if len(pieces) == 1:
        assert row["tx_too_low"]["effect"] == "deadlock"
        assert set(outcomes(protocol, 4, tx={barrier: right // 2})) == {"deadlock"}
    else:
        assert row["tx_too_low"]["effect"] == "race"
        assert "race" in outcomes(protocol, 100, tx={barrier: right - pieces[0]})
        assert "race" not in outcomes(protocol, 4, tx={barrier: right - 1})


def _with(protocol: Protocol, **parts: object) -> Protocol:
    return replace(protocol, parts=protocol.parts._replace(**parts))  # type: ignore[arg-type]


def test_case_c5_only_rank_0_arms() -> None:
    protocol = tcgen05((2, 1, 1), 1)
    roles = []
    for role in protocol.roles:
        first = tuple(
            s._replace(ranks=(0,)) if (role.name, s.op) == ("scheduler", "expect_tx") else s
            for s in role.program.first
        )
        roles.append(replace(role, program=replace(role.program, first=first)))
    assert set(outcomes(_with(protocol, roles=tuple(roles)), 4)) == {"deadlock"}
    assert set(outcomes(protocol, 4)) == {"ok"}


def test_case_c6_one_mask_for_both_pairs_hangs() -> None:
    protocol = tcgen05((4, 1, 1), 2, scheduler="static")
    for seed in range(10):
        machine = Machine(protocol, 4, 6, seed)
        commit = machine.signals["mma", "acc_full", "commit"]
        assert commit.targets == {0: 0x3, 2: 0xC}
        machine.signals["mma", "acc_full", "commit"] = commit._replace(targets={0: 0x3, 2: 0x3})
        assert machine.run() != "ok"


def test_case_c14_a_barrier_a_stage() -> None:
    """One full barrier for the whole ring of a pair: the producer laps it from two stages on."""
    for stages in (1, 3):
        protocol = tcgen05((2, 1, 1), 2, stages, "static")
        assert protocol.barrier("full").depth == stages
        ends = {Machine(protocol, 4, 6, seed, one_copy=("full",)).run() for seed in range(10)}
        assert (ends == {"ok"}) is (stages == 1)


def test_a_local_release_of_a_multicast_slot_races() -> None:
    """TMA-08: consumers must release to every CTA that writes into their slots."""
    protocol = wgmma((2, 1, 1), scheduler="static")
    seen = set()
    for seed in range(30):
        machine = Machine(protocol, 3, 6, seed, counts={"empty": 2})
        signal = machine.signals["consumer", "empty", "arrive"]
        machine.signals["consumer", "empty", "arrive"] = signal._replace(targets={0: 1, 1: 2})
        seen.add(machine.run())
    assert "race" in seen


def test_without_the_drain_arrivals_chase_a_role_that_left() -> None:
    """TC-18: the last accumulator's commit does not prove that earlier ones were delivered."""
    protocol = tcgen05((2, 1, 1), 2, scheduler="static")
    seen = set()
    for seed in range(30):
        machine = Machine(protocol, 2, 6, seed)
        for actor in machine.actors:
            if actor.role.name == "tma":
                del actor.acts[-protocol.barrier("empty").depth :]
        seen.add(machine.run())
    assert "race" in seen
