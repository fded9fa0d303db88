"""Lanes that part and meet, memory and its order, barriers, deadlocks: small kernels on the emulator."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ptx_lines import kernel, run
from tilewright.emulate import Buffers, CheckFailed, NotModelled, Options, Outcome, launch, prepare
from tilewright.emulate.explore import Explorer
from tilewright.emulate.instructions import load_instructions
from tilewright.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from tilewright.emulate.schedule import Strategy

STORE = "mul.wide.u32 %d9, t, 4; add.u64 %d9, %d9, %d0; st.global.u32 [%d9], %r0;"
"""out[t] = %r0."""


def rules_of(text: str, *args: Any, **options: Any) -> list[str]:
    report = run(text, *args, check=False, **options)
    return [found.rule for found in report.findings]


def out(count: int = 32) -> Any:
    return np.zeros(count, np.uint32)


# --- lanes --------------------------------------------------------------------------------------------


def test_lanes_go_round_a_loop_as_often_as_each_wants() -> None:
    body = """
    mov.u32 %r0, 0; mov.u32 %r1, 0;
    LOOP: setp.ge.u32 %p0, %r1, t; @%p0 bra OVER;
    add.u32 %r0, %r0, %r1; add.u32 %r1, %r1, 1; bra LOOP;
    OVER: """
    data = out()
    run(kernel(body + STORE), data)
    assert data.tolist() == [n * (n - 1) // 2 for n in range(32)]


def test_sides_of_nested_branches_meet_again() -> None:
    """activemask after each join: 32 lanes again."""
    body = """
    setp.lt.u32 %p0, t, 7; and.b32 %r2, t, 1; setp.eq.u32 %p1, %r2, 0;
    @%p0 bra LOW;
    @%p1 bra EVEN; mov.u32 %r0, 1; bra HIGH_END; EVEN: mov.u32 %r0, 2;
    HIGH_END: activemask.b32 %r3; bra END;
    LOW: mov.u32 %r0, 3; mov.u32 %r3, 0;
    END: activemask.b32 %r4; add.u32 %r0, %r0, 100; setp.ne.u32 %p2, %r4, 0xffffffff; @%p2 trap;
    popc.b32 %r3, %r3; mad.lo.u32 %r0, %r3, 1000, %r0;"""
    data = out()
    run(kernel(body + STORE), data)
    assert data.tolist() == [103] * 7 + [
        101 + 25_000 if n % 2 else 102 + 25_000 for n in range(7, 32)
    ]


def test_a_lane_that_waits_for_another_of_its_warp_is_served() -> None:
    """Lane 0 spins until lane 5, on the other side of the branch and beyond its end, has written."""
    body = """
    .shared .align 4 .b32 flag[1];
    setp.ne.u32 %p0, t, 0; @%p0 bra OTHERS;
    SPIN: ld.volatile.shared.u32 %r1, [flag]; setp.eq.u32 %p1, %r1, 0; @%p1 bra SPIN;
    OTHERS: setp.ne.u32 %p2, t, 5; @%p2 bra DONE;
    mov.u32 %r2, 9; st.volatile.shared.u32 [flag], %r2;
    DONE: mov.u32 %r0, t;"""
    text = kernel(body + STORE)
    data = out()
    run(text, data)
    assert data.tolist() == list(range(32))
    with pytest.raises(CheckFailed, match="HANG"):
        run(text.replace("%p2, t, 5", "%p2, t, 77"), out())
    barrier = """
    .shared .align 8 .b64 bar[1];
    setp.ne.u32 %p0, t, 0; @%p0 bra INITED; mbarrier.init.shared::cta.b64 [bar], 1;
    INITED: bar.warp.sync 0xffffffff; @%p0 bra OTHERS;
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], 0; @!%p1 bra WAIT;
    OTHERS: setp.ne.u32 %p2, t, 5; @%p2 bra DONE; mbarrier.arrive.shared::cta.b64 _, [bar];
    DONE: mov.u32 %r0, t;"""
    run(kernel(barrier + STORE), data)
    assert data.tolist() == list(range(32))


def test_shuffles_follow_their_segments() -> None:
    body = """
    shfl.sync.bfly.b32 %r0, t, 3, 0x1f, 0xffffffff;
    shfl.sync.up.b32 %r1|%p0, t, 4, 0x1800, 0xffffffff;
    shfl.sync.idx.b32 %r2, t, 30, 0x1f, 0xffffffff;
    mad.lo.u32 %r0, %r1, 100, %r0; mad.lo.u32 %r0, %r2, 10000, %r0; @!%p0 add.u32 %r0, %r0, 1000000;"""
    data = out()
    run(kernel(body + STORE), data)
    expected = []
    for lane in range(32):
        moved = lane - 4 if lane % 8 >= 4 else lane  # segments of 8
        expected.append((lane ^ 3) + 100 * moved + 300_000 + (0 if lane % 8 >= 4 else 1_000_000))
    assert data.tolist() == expected


def test_votes_matches_and_reductions() -> None:
    body = """
    setp.lt.u32 %p0, t, 5; vote.sync.ballot.b32 %r0, %p0, 0xffffffff;
    and.b32 %r1, t, 3; match.any.sync.b32 %r2, %r1, 0xffffffff; popc.b32 %r2, %r2;
    redux.sync.add.u32 %r3, t, 0xffffffff; vote.sync.any.pred %p1, %p0, 0xffffffff;
    mad.lo.u32 %r0, %r2, 100, %r0; mad.lo.u32 %r0, %r3, 10000, %r0; @!%p1 trap;"""
    data = out()
    run(kernel(body + STORE), data)
    assert set(data.tolist()) == {31 + 800 + 496 * 10_000}


def test_one_lane_is_elected_and_which_is_the_seed_s_choice() -> None:
    body = "elect.sync %r1|%p0, 0xffffffff; selp.u32 %r0, 1, 0, %p0;"
    chosen = set()
    for seed in range(6):
        data = out()
        run(kernel(body + STORE), data, seed=seed)
        assert data.sum() == 1
        chosen.add(int(np.argmax(data)))
        ready = prepare(kernel(body + STORE), grid=1, args=[data])
        ready.run(ready.strategy(seed), Options(elects_first=True))
        assert data[0] == data.sum() == 1
    assert len(chosen) > 1


def test_a_call_takes_parameters_and_gives_a_result() -> None:
    text = kernel(
        """{ .param .b32 given; .param .b32 got; st.param.b32 [given], t;
        call (got), twice, (given); ld.param.b32 %r0, [got]; }"""
        + STORE
    )
    callee = """.func (.param .b32 result) twice(.param .b32 value)
    { .reg .b32 %r<3>; .reg .pred %p<2>; ld.param.b32 %r1, [value]; setp.gt.u32 %p1, %r1, 9; @%p1 bra BIG;
      shl.b32 %r1, %r1, 1; BIG: st.param.b32 [result], %r1; ret; }\n"""
    at = text.index(".visible")
    data = out()
    run(text[:at] + callee + text[at:], data)
    assert data.tolist() == [2 * n if n <= 9 else n for n in range(32)]


def test_a_table_of_labels() -> None:
    body = """
    and.b32 %r1, t, 3;
    table: .branchtargets A, B, C, D;
    brx.idx %r1, table;
    A: mov.u32 %r0, 10; bra E; B: mov.u32 %r0, 11; bra E; C: mov.u32 %r0, 12; bra E; D: mov.u32 %r0, 13;
    E: """
    data = out()
    run(kernel(body + STORE), data)
    assert data.tolist() == [10, 11, 12, 13] * 8


# --- memory -------------------------------------------------------------------------------------------


def test_an_access_beyond_an_array_is_found_with_its_line() -> None:
    with pytest.raises(CheckFailed) as failed:
        run(kernel("mov.u32 %r0, t;" + STORE), out(31))
    finding = failed.value.report.findings[0]
    assert finding.rule == "OOB"
    assert "lane 31" in finding.message
    assert "st.global.u32" in finding.span.file or finding.span.line > 5


def test_windows_are_told_apart() -> None:
    body = """
    .shared .align 4 .b32 s[32]; .local .align 4 .b32 l[2];
    mov.u64 %d2, s; cvta.shared.u64 %d2, %d2; isspacep.shared %p0, %d2; isspacep.global %p1, %d0;
    mov.u64 %d3, l; cvta.local.u64 %d3, %d3; isspacep.local %p2, %d3; isspacep.shared %p3, %d3;
    mul.wide.u32 %d4, t, 4; add.u64 %d4, %d4, %d2; st.u32 [%d4], t; st.u32 [%d3+4], t;
    ld.shared.u32 %r1, [s+4]; ld.local.u32 %r2, [l+4];
    selp.u32 %r0, 1, 0, %p0; @%p1 add.u32 %r0, %r0, 2; @%p2 add.u32 %r0, %r0, 4; @%p3 add.u32 %r0, %r0, 8;
    mad.lo.u32 %r0, %r2, 16, %r0;"""
    data = out()
    run(
        kernel(body.replace("ld.shared.u32", "bar.warp.sync 0xffffffff; ld.shared.u32") + STORE),
        data,
    )
    assert data.tolist() == [7 + 16 * n for n in range(32)]


def test_vectors_and_128_bits() -> None:
    source = np.arange(128, dtype=np.uint32)
    target = np.zeros(128, np.uint32)
    body = """
    mul.wide.u32 %d4, t, 16; add.u64 %d5, %d4, %d0; add.u64 %d6, %d4, %d1;
    ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d5]; ld.global.b128 %q0, [%d5];
    mov.b128 {%d7, %d8}, %q0; xor.b64 %d7, %d7, %d7; mov.b128 %q1, {%d8, %d7}; st.global.b128 [%d6], %q1;
    add.u32 %r1, %r4, 1000; st.global.v2.u32 [%d6+8], {%r1, %r2};"""
    run(kernel(body, 2), source, target)
    rows = source.reshape(32, 4)
    wanted = np.stack([rows[:, 2], rows[:, 3], rows[:, 3] + 1000, rows[:, 1]], axis=1)
    assert np.array_equal(target.reshape(32, 4), wanted)


def test_atomics_return_what_was_there() -> None:
    data, seen = np.zeros(4, np.uint32), out()
    body = """
    atom.global.add.u32 %r0, [%d0], 2; atom.global.max.u32 %r1, [%d0+4], t; atom.global.inc.u32 %r2, [%d0+8], 9;
    atom.global.cas.b32 %r3, [%d0+12], 0, t;
    mul.wide.u32 %d9, t, 4; add.u64 %d9, %d9, %d1; st.global.u32 [%d9], %r0;"""
    run(kernel(body, 2), data, seen)
    assert sorted(seen.tolist()) == list(range(0, 64, 2))
    assert data.tolist() == [64, 31, 2, 1], (
        "32 steps of a counter that wraps after 9; the first to find 0"
    )


def test_module_variables_hold_their_initialisers() -> None:
    text = kernel(
        "ld.global.u32 %r1, [table+4]; ld.const.u32 %r2, [five]; add.u32 %r0, %r1, %r2;" + STORE
    )
    at = text.index(".visible")
    globals_ = ".global .align 4 .u32 table[3] = {10, 20, 30};\n.const .align 4 .u32 five = 5;\n"
    data = out()
    run(text[:at] + globals_ + text[at:], data)
    assert set(data.tolist()) == {25}


# --- order --------------------------------------------------------------------------------------------

NEIGHBOUR = """
    .shared .align 4 .b32 s[64];
    mov.u32 %r5, s; mad.lo.u32 %r6, t, 4, %r5; st.shared.u32 [%r6], t; {barrier}
    xor.b32 %r7, t, 32; mad.lo.u32 %r6, %r7, 4, %r5; ld.shared.u32 %r0, [%r6];"""


@pytest.mark.parametrize(
    ("barrier", "found"),
    [
        ("bar.sync 0;", []),
        ("", ["RACE"]),
        ("bar.warp.sync 0xffffffff;", ["RACE"]),
        ("membar.cta;", ["RACE"]),
    ],
)
def test_warps_see_each_other_through_a_barrier_alone(barrier: str, found: list[str]) -> None:
    data = out(64)
    text = kernel(NEIGHBOUR.replace("{barrier}", barrier) + STORE, threads=64)
    assert sorted(set(rules_of(text, data))) == found
    if not found:
        assert data.tolist() == [n ^ 32 for n in range(64)]


MESSAGE = """
    .shared .align 4 .b32 s[2];
    setp.ge.u32 %p0, t, 32; mov.u32 %r0, 0; @%p0 bra READER;
    setp.ne.u32 %p1, t, 0; @%p1 bra END;
    mov.u32 %r1, 7; st.shared.u32 [s], %r1; {send} bra END;
    READER: {receive} setp.eq.u32 %p2, %r2, 0; @%p2 bra READER;
    {fence} ld.shared.u32 %r0, [s];
    END: """


@pytest.mark.parametrize(
    ("send", "receive", "fence", "found"),
    [
        ("st.release.cta.shared.u32 [s+4], %r1;", "ld.acquire.cta.shared.u32 %r2, [s+4];", "", False),
        ("fence.acq_rel.cta; st.relaxed.cta.shared.u32 [s+4], %r1;", "ld.acquire.cta.shared.u32 %r2, [s+4];", "", False),
        ("st.release.cta.shared.u32 [s+4], %r1;", "ld.relaxed.cta.shared.u32 %r2, [s+4];", "", True),
        ("st.relaxed.cta.shared.u32 [s+4], %r1;", "ld.acquire.cta.shared.u32 %r2, [s+4];", "", True),
        ("st.shared.u32 [s+4], %r1;", "ld.shared.u32 %r2, [s+4];", "", True),
    ],
)  # fmt: skip
def test_a_flag_carries_a_message_if_released_and_acquired(
    send: str, receive: str, fence: str, found: bool
) -> None:
    body = MESSAGE
    for name, value in (("send", send), ("receive", receive), ("fence", fence)):
        body = body.replace("{" + name + "}", value)
    text = kernel(body + STORE, threads=64)
    assert ("RACE" in rules_of(text, out(64))) == found


def test_races_can_be_left_out() -> None:
    text = kernel(NEIGHBOUR.replace("{barrier}", "") + STORE, threads=64)
    assert rules_of(text, out(64), races=False) == []


# --- barriers and deadlocks ---------------------------------------------------------------------------


def test_a_deadlock_says_who_waits_where() -> None:
    body = """
    .shared .align 8 .b64 bar[1];
    setp.ne.u32 %p0, t, 0; @%p0 bra INITED; mbarrier.init.shared::cta.b64 [bar], 3;
    INITED: bar.sync 0; @%p0 bra WAIT; mbarrier.arrive.shared::cta.b64 _, [bar];
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], 0; @!%p1 bra WAIT;"""
    report = run(kernel(body, threads=64), out(), check=False)
    (finding,) = report.findings
    assert finding.rule == "DEADLOCK"
    assert "phase 0, 2 of 3 arrivals pending" in finding.message
    assert "cluster 0 CTA 0 warps 0-1" in finding.message


def test_named_barriers_count_whole_warps() -> None:
    """Warps 0 and 1 meet at barrier 1, warp 2 only arrives; warp 3 stays away."""
    body = """
    shr.u32 %r1, t, 5; setp.eq.u32 %p0, %r1, 3; @%p0 bra END; setp.eq.u32 %p1, %r1, 2; @%p1 bra ARRIVE;
    bar.sync 1, 96; bra END; ARRIVE: bar.arrive 1, 96; END: mov.u32 %r0, 1;"""
    data = out(128)
    run(kernel(body + STORE, threads=128), data)
    assert data.sum() == 128


def test_a_reduction_over_the_cta() -> None:
    body = "setp.lt.u32 %p0, t, 40; bar.red.popc.u32 %r0, 0, %p0;"
    data = out(64)
    run(kernel(body + STORE, threads=64), data)
    assert set(data.tolist()) == {40}


def test_states_of_an_mbarrier_are_tokens_of_its_phases() -> None:
    body = """
    .shared .align 8 .b64 bar[1];
    setp.ne.u32 %p0, t, 0; @%p0 bra INITED; mbarrier.init.shared::cta.b64 [bar], 32;
    INITED: bar.warp.sync 0xffffffff;
    mbarrier.arrive.shared::cta.b64 %d4, [bar];
    WAIT: mbarrier.try_wait.shared::cta.b64 %p1, [bar], %d4; @!%p1 bra WAIT; mov.u32 %r0, 1;"""
    data = out()
    run(kernel(body + STORE), data)
    assert data.sum() == 32


def test_a_cluster_shares_memory() -> None:
    body = """
    .shared .align 4 .b32 s[32];
    mov.u32 %r1, s; mov.u32 %r2, %cluster_ctarank; xor.b32 %r3, %r2, 1;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mapa.shared::cluster.u32 %r4, %r1, %r3; mad.lo.u32 %r4, t, 4, %r4;
    mad.lo.u32 %r5, %r2, 100, t; st.shared::cluster.u32 [%r4], %r5;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mad.lo.u32 %r1, t, 4, %r1; ld.shared.u32 %r0, [%r1];
    mov.u32 %r6, %ctaid.x; mad.lo.u32 t, %r6, 32, t;"""
    data = out(128)
    run(kernel(body + STORE, cluster=2), data, grid=4)
    assert data.reshape(4, 32)[:, 0].tolist() == [100, 0, 100, 0]


def test_shared_addresses_are_those_of_an_h200() -> None:
    """Rank in bits 24 and up, the first user byte at 0x400: measured (design notes)."""
    body = """.shared .align 16 .b8 s[16]; mov.u32 %r0, s;
    mov.u32 %r6, %ctaid.x; mad.lo.u32 t, %r6, 32, t;"""
    data = out(128)
    run(kernel(body + STORE, cluster=4), data, grid=4)
    assert data.reshape(4, 32)[:, 0].tolist() == [0x400, 0x01000400, 0x02000400, 0x03000400]


# --- launches -----------------------------------------------------------------------------------------


def test_the_same_seed_is_the_same_run() -> None:
    text = kernel(NEIGHBOUR.replace("{barrier}", "bar.sync 0;") + STORE, threads=64)
    for seed in (0, 1, 2, 3):
        picks = [
            run(text, out(64), grid=2, seed=seed, check=False).outcomes[0].picks for _ in range(2)
        ]
        assert picks[0] == picks[1]


def test_wrong_launches_are_refused() -> None:
    text = kernel("mov.u32 %r0, 1;" + STORE, cluster=2)
    with pytest.raises(BadInput, match="not a multiple"):
        run(text, out(), grid=3)
    with pytest.raises(BadInput, match="1 parameters"):
        launch(text, grid=2, args=[])
    with pytest.raises(BadInput, match=r"reqntid \(32, 1, 1\)"):
        launch(text, grid=2, block=64, args=[out()])
    with pytest.raises(UnknownName, match="kernel"):
        launch(text, kernel="other", grid=2, args=[out()])
    with pytest.raises(BadInput, match="contiguous"):
        Buffers().address_of(np.zeros((4, 4))[:, 1])


def test_every_instruction_of_the_catalogue_s_list_is_known() -> None:
    """Root words of rules.md's instruction forms, and of what it says to add for real code."""
    roots = {name.split(".")[0] for name in load_instructions()}
    wanted = (
        "add and atom bar barrier bra clusterlaunchcontrol cp cvt cvta div elect fence fma getctarank "
        "griddepcontrol ld mad mapa mbarrier mov mul not or red rem ret selp setmaxnreg setp shl shr st sub "
        "tcgen05 wgmma xor prefetch stmatrix ldmatrix createpolicy shfl vote nanosleep"
    )
    assert set(wanted.split()) <= roots


# --- every order --------------------------------------------------------------------------------------

TICKETS = """
    and.b32 %r4, t, 31; setp.ne.u32 %p0, %r4, 0; @%p0 bra END; shr.u32 %r1, t, 5;
    add.u32 %r2, %r1, 1; atom.global.exch.b32 %r3, [%d0], %r2;
    mul.wide.u32 %d4, %r1, 128; add.u64 %d4, %d4, %d1; st.global.u32 [%d4], %r3; st.global.u32 [%d4+4], %r3;
    END: """
"""Each of some warps puts its number into one word and keeps what it found, twice over in a place of its own."""


def orders(warps: int, *, reduces: bool) -> tuple[set[tuple[int, ...]], int]:
    word, found = np.zeros(1, np.uint32), np.zeros(32 * warps, np.uint32)
    text = kernel(TICKETS, 2, threads=32 * warps)
    explorer = Explorer(prepare(text, grid=1, args=[word, found]))
    seen: set[tuple[int, ...]] = set()

    class Seen(Explorer):
        def _run(self, strategy: Strategy, options: Options) -> Outcome:
            outcome = super()._run(strategy, options)
            seen.add(tuple(found[::32].tolist()))
            return outcome

    explorer.__class__ = Seen
    report, complete = explorer.exhaust(reduces=reduces)
    assert complete
    assert report.verdict == "pass"
    return seen, len(report.outcomes)


def in_line(warps: int) -> set[tuple[int, ...]]:
    """Warps in any order: what each finds is the number of the one before it."""
    numbers = range(1, warps + 1)
    return {
        tuple((0, *line)[line.index(warp)] for warp in numbers)
        for line in itertools.permutations(numbers)
    }


def test_every_order_of_exchanges_is_found_and_few_twice_over() -> None:
    found, runs = orders(2, reduces=True)
    assert found == in_line(2)
    all_found, all_runs = orders(2, reduces=False)
    assert all_found == found
    assert runs * 4 < all_runs


def test_three_warps_exchange_in_all_six_orders() -> None:
    found, runs = orders(3, reduces=True)
    assert found == in_line(3)
    assert runs < 200


def test_a_race_needs_no_particular_order() -> None:
    body = """setp.ne.u32 %p0, t, 0; @!%p0 st.global.u32 [%d0], t;
    setp.ne.u32 %p1, t, 32; @!%p1 st.global.u32 [%d0], t;"""
    launch_ = prepare(kernel(body, threads=64), grid=1, args=[out(1)])
    report, complete = Explorer(launch_).exhaust()
    assert complete
    assert {f.rule for f in report.findings} == {"RACE"}


# --- bulk copies --------------------------------------------------------------------------------------

BULK_STORE = """
    .shared .align 16 .b8 s[128];
    mov.u32 %r1, s; mad.lo.u32 %r2, t, 4, %r1; st.shared.u32 [%r2], t; {fence} bar.warp.sync 0xffffffff;
    setp.ne.u32 %p0, t, 0; @%p0 bra END;
    cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r1], 128; cp.async.bulk.commit_group; {wait}
    END: """


@pytest.mark.parametrize(
    ("fence", "wait", "found"),
    [
        ("fence.proxy.async.shared::cta;", "cp.async.bulk.wait_group 0;", set()),
        ("fence.proxy.async.shared::cta;", "cp.async.bulk.wait_group.read 0;", set()),
        ("", "cp.async.bulk.wait_group 0;", {"TMA-15"}),
        ("fence.proxy.async.shared::cta;", "", {"TMA-15"}),
    ],
)
def test_a_bulk_store_needs_a_proxy_fence_and_a_wait(
    fence: str, wait: str, found: set[str]
) -> None:
    data = out()
    text = kernel(BULK_STORE.replace("{fence}", fence).replace("{wait}", wait))
    for seed in range(4):
        assert set(rules_of(text, data, seed=seed)) == found
    if not found:
        assert data.tolist() == list(range(32))


@pytest.mark.parametrize(
    ("expected", "size", "found"),
    [(128, 128, None), (64, 128, "DEADLOCK"), (128, 120, "CLU-09"), (256, 128, "DEADLOCK")],
)
def test_a_bulk_load_completes_the_bytes_that_are_expected(
    expected: int, size: int, found: str | None
) -> None:
    source, data = np.arange(32, dtype=np.uint32), out()
    body = f"""
    .shared .align 16 .b8 s[128]; .shared .align 8 .b64 bar[1];
    mov.u32 %r1, s; setp.ne.u32 %p0, t, 0; @%p0 bra WAIT;
    mbarrier.init.shared::cta.b64 [bar], 1; fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {expected};
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%d1], {size}, [bar];
    WAIT: bar.warp.sync 0xffffffff;
    TRY: mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], 0; @!%p1 bra TRY;
    mad.lo.u32 %r2, t, 4, %r1; ld.shared.u32 %r0, [%r2];"""
    text = kernel(body + STORE, 2)
    for seed in range(4):
        assert rules_of(text, data, source, seed=seed) == ([found] if found else [])
    if found is None:
        assert data.tolist() == list(range(32))


def test_cp_async_is_seen_by_its_own_thread_after_a_wait_and_by_others_after_a_barrier() -> None:
    body = """
    .shared .align 16 .b8 s[128]; mov.u32 %r1, s; mad.lo.u32 %r2, t, 4, %r1;
    mul.wide.u32 %d5, t, 4; add.u64 %d6, %d5, %d1;
    cp.async.ca.shared.global [%r2], [%d6], 4; cp.async.commit_group; cp.async.wait_group 0; {meet}
    xor.b32 %r3, t, 1; mad.lo.u32 %r2, %r3, 4, %r1; ld.shared.u32 %r0, [%r2];"""
    source, data = np.arange(32, dtype=np.uint32), out()
    text = kernel(body + STORE, 2)
    meet = "bar.warp.sync 0xffffffff;"
    assert rules_of(text.replace("{meet}", meet), data, source) == []
    assert data.tolist() == [n ^ 1 for n in range(32)]
    assert rules_of(text.replace("{meet}", ""), data, source) == ["RACE"]


def test_a_special_register_that_is_not_emulated_stops_with_its_name() -> None:
    with pytest.raises(NotModelled, match=r"`%pm0` is not emulated"):
        run(kernel("mov.u32 %r0, %pm0;" + STORE), out())


def test_clocks_go_on() -> None:
    body = "mov.u64 %d4, %clock64; mov.u64 %d5, %globaltimer; setp.gt.u64 %p0, %d5, %d4; selp.u32 %r0, 1, 0, %p0;"
    data = out()
    run(kernel(body + STORE), data)
    assert data.sum() == 32
