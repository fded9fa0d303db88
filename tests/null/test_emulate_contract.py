"""What the manual asks of setmaxnreg, of the scopes of mbarriers and of allocations of a pair; who comes last.

Counts of setmaxnreg are those of CUTLASS' warp-specialised kernels: 384 threads, one CTA an SM, hence 168 registers
a thread; the producers keep 40, the two groups of consumers get 232, which is all there is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from ptx_lines import kernel, run
from tilewright.emulate import prepare
from tilewright.emulate.explore import Explorer
from tilewright.emulate.schedule import OPERATIONS, DelayStrategy, late_comers, strategy_for

OUT = np.zeros(8, np.uint32)

GROUPS = """
shr.u32 %r1, t, 7; setp.ne.u32 %p0, %r1, 0; @%p0 bra CONSUMERS;
setmaxnreg.dec.sync.aligned.u32 {producer}; bra END;
CONSUMERS: setmaxnreg.inc.sync.aligned.u32 {consumer};
END: bar.sync 0;"""


def registers(body: str, *directives: str, threads: int = 384) -> list[tuple[str, str]]:
    required = f".reqntid {threads}, 1, 1\n"
    text = kernel(body, threads=threads).replace(required, required + "\n".join(directives) + "\n")
    explorer = Explorer(prepare(text, grid=1, args=[OUT]))
    report = explorer.explore(4, stop_at_failure=False)
    return sorted({(found.rule, found.message) for found in report.findings})


def rules(*args: str, threads: int = 384) -> set[str]:
    return {rule for rule, _ in registers(*args, threads=threads)}


# --- setmaxnreg -------------------------------------------------------------------------------------------------------


def test_what_the_producers_give_back_is_what_the_consumers_can_have() -> None:
    cutlass = GROUPS.format(producer=40, consumer=232)
    assert rules(cutlass, ".minnctapersm 1") == set()
    (deadlock,) = registers(GROUPS.format(producer=48, consumer=232), ".minnctapersm 1")[:1]
    assert deadlock[0] == "DEADLOCK"
    assert "setmaxnreg.inc to 232: wants 64 more a thread" in deadlock[1]
    assert rules(GROUPS.format(producer=40, consumer=240), ".minnctapersm 1") == {"DEADLOCK"}


def test_two_ctas_an_sm_have_half_the_registers() -> None:
    assert rules(GROUPS.format(producer=24, consumer=104), ".minnctapersm 2") == set()
    assert rules(GROUPS.format(producer=24, consumer=112), ".minnctapersm 2") == {"DEADLOCK"}


def test_maxnreg_says_what_there_is_at_launch() -> None:
    assert rules(GROUPS.format(producer=40, consumer=152), ".maxnreg 128") == set()
    assert rules(GROUPS.format(producer=40, consumer=176), ".maxnreg 128") == {"DEADLOCK"}
    assert rules(GROUPS.format(producer=136, consumer=128), ".maxnreg 128") == {"REG-02"}
    lower = "setmaxnreg.inc.sync.aligned.u32 72; bar.sync 0; setmaxnreg.inc.sync.aligned.u32 64;"
    assert rules(lower, ".maxnreg 128") == {"REG-02"}


def test_nobody_waits_where_the_count_at_launch_is_not_known() -> None:
    assert rules(GROUPS.format(producer=240, consumer=256)) == set()


ONE_WARP = """
shr.u32 %r1, t, 5; setp.ne.u32 %p0, %r1, 0; @%p0 bra OTHERS; setmaxnreg.dec.sync.aligned.u32 40; bra END;
OTHERS: {others} END:"""


@pytest.mark.parametrize("others", ["", "setmaxnreg.dec.sync.aligned.u32 48;"])
def test_a_warpgroup_executes_the_same_one(others: str) -> None:
    assert rules(ONE_WARP.format(others=others), ".maxnreg 128", threads=128) == {"REG-02"}


@pytest.mark.parametrize(("between", "found"), [("", {"REG-02"}), ("bar.sync 0;", set())])
def test_a_warpgroup_meets_before_its_next_one(between: str, found: set[str]) -> None:
    body = f"setmaxnreg.dec.sync.aligned.u32 40; {between} setmaxnreg.inc.sync.aligned.u32 64;"
    assert rules(body, ".maxnreg 128", threads=128) == found


# --- scopes -----------------------------------------------------------------------------------------------------------

MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"

SEND = f"""
.shared .align 8 .b64 bar[1]; .shared .align 4 .b32 data[1];
mov.u32 %r9, %cluster_ctarank; setp.ne.u32 %p1, %r9, 0; setp.ne.u32 %p0, t, 0;
@%p0 bra INITED; mbarrier.init.shared::cta.b64 [bar], 1; fence.mbarrier_init.release.cluster;
INITED: {MEET}
@%p0 bra END; @!%p1 bra READ;
mov.u32 %r1, data; mapa.shared::cluster.u32 %r1, %r1, 0; mov.u32 %r2, 7; st.shared::cluster.u32 [%r1], %r2;
mov.u32 %r3, bar; mapa.shared::cluster.u32 %r3, %r3, 0;
mbarrier.arrive{{arrive}}.shared::cluster.b64 _, [%r3]; bra END;
READ: mbarrier.try_wait.parity{{wait}}.shared::cta.b64 %p2, [bar], 0; @!%p2 bra READ;
ld.shared.u32 %r0, [data]; st.global.u32 [%d0], %r0;
END: {MEET}"""
"""Rank 1 writes a word into rank 0 and arrives there; rank 0 waits and reads it."""


@pytest.mark.parametrize(
    ("arrive", "wait", "found"),
    [
        (".release.cluster", ".acquire.cluster", set()),
        (".release.cluster", "", {("MBAR-08", "warning")}),
        (".release.cluster", ".acquire.cta", {("MBAR-08", "warning")}),
        ("", ".acquire.cluster", {("MBAR-08", "warning")}),
        (".relaxed.cluster", ".acquire.cluster", {("CLU-03", "error")}),
    ],
)
def test_what_a_peer_wrote_needs_cluster_scope_on_both_sides(
    arrive: str, wait: str, found: set[tuple[str, str]]
) -> None:
    text = kernel(SEND.format(arrive=arrive, wait=wait), cluster=2)
    report = run(text, OUT.copy(), grid=2, check=False)
    assert {(each.rule, each.severity) for each in report.findings} == found


OWN = """
.shared .align 8 .b64 bar[1]; .shared .align 4 .b32 data[1];
setp.ne.u32 %p0, t, 0; @%p0 bra INITED; mbarrier.init.shared::cta.b64 [bar], 1;
INITED: bar.sync 0; setp.eq.u32 %p1, t, 32; setp.ne.u32 %p3, t, 0; @%p1 bra WRITE; @%p3 bra END; bra READ;
WRITE: mov.u32 %r2, 7; st.shared.u32 [data], %r2; mbarrier.arrive.shared::cta.b64 _, [bar]; bra END;
READ: mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0; @!%p2 bra READ;
ld.shared.u32 %r0, [data]; st.global.u32 [%d0], %r0;
END: bar.sync 0;"""


def test_cta_scope_is_enough_within_a_cta() -> None:
    data = OUT.copy()
    report = run(kernel(OWN, threads=64), data, check=False)
    assert not report.findings
    assert data[0] == 7


# --- allocations of a pair --------------------------------------------------------------------------------------------

ALLOCATE = """
.shared .align 4 .b32 at[1];
{meet}
tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [at], 32;
tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
bar.sync 0; ld.shared.u32 %r1, [at];
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r1, 32;"""


@pytest.mark.parametrize(
    ("meet", "found"),
    [
        (MEET, set()),
        ("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;", set()),
        ("bar.sync 0;", {("TC-19", "warning")}),
    ],
)
def test_a_pair_knows_that_both_run_before_it_allocates(
    meet: str, found: set[tuple[str, str]]
) -> None:
    report = run(kernel(ALLOCATE.format(meet=meet), cluster=2), OUT, grid=2, check=False)
    assert {(each.rule, each.severity) for each in report.findings} == found


# --- schedules --------------------------------------------------------------------------------------------------------


class Named(NamedTuple):
    name: tuple[int, int, int, int]


def test_whoever_is_late_acts_when_nobody_else_can() -> None:
    first, second, copy = (Named((0, 0, 0, 0)), Named((0, 1, 0, 0)), Named((0, OPERATIONS, 7, 0)))
    for late, place, value in ((second, 1, 1), (copy, 1, OPERATIONS)):
        strategy = DelayStrategy(3, place, value)
        agents = [first, second, copy]
        picked = {agents[strategy.pick(agents)] for _ in range(50)}
        assert picked == {*agents} - {late}
        assert strategy.pick([late, late]) in {0, 1}


def test_seeds_let_everybody_be_late_once() -> None:
    """Seeds 3, 7, 11, …: each CTA of two, the copies, each warp of three."""
    strategies = [strategy_for(3 + 4 * turn, ranks=2, warps=3) for turn in range(6)]
    late = [(s.place, s.value) for s in strategies if isinstance(s, DelayStrategy)]
    assert late == [(1, 0), (1, 1), (1, OPERATIONS), (2, 0), (2, 1), (2, 2)]
    assert late_comers(1, 1) == [(1, OPERATIONS)]


# --- griddepcontrol ---------------------------------------------------------------------------------------------------

HANDED_ON = """
.shared .align 8 .b64 known; setp.ne.u32 %p0, t, 0; @%p0 bra READY;
mbarrier.init.shared::cta.b64 [known], 1;
READY: bar.sync 0; @%p0 bra WAIT;
griddepcontrol.wait; mbarrier.arrive.shared::cta.b64 _, [known];
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [known], 0; @!%p1 bra WAIT;
mad.wide.u32 %d8, t, 4, %d0; ld.global.u32 %r1, [%d8]; add.u32 %r1, %r1, 1; st.global.u32 [%d8], %r1;"""


def test_what_the_prerequisite_grid_wrote_is_there_for_the_whole_grid() -> None:
    """One thread waits for it and tells the others at CTA scope, those of its peer too: enough, as one wait is for all."""
    data = np.zeros(64, np.uint32)
    explorer = Explorer(prepare(kernel(HANDED_ON, threads=64), grid=1, args=[data]))
    assert explorer.explore(8).findings == []
    meets = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    two = (
        HANDED_ON.replace("bar.sync 0;", meets)
        .replace(
            "griddepcontrol.wait; mbarrier.arrive.shared::cta.b64 _, [known];",
            """mov.u32 %r9, %cluster_ctarank; setp.ne.u32 %p2, %r9, 0; @%p2 bra WAIT;
            griddepcontrol.wait; mov.u32 %r8, known; mapa.shared::cluster.u32 %r8, %r8, 1;
            mbarrier.arrive.shared::cluster.b64 _, [%r8]; mbarrier.arrive.shared::cta.b64 _, [known];""",
        )
        .replace(
            "mad.wide.u32 %d8, t",
            "mov.u32 %r9, %ctaid.x; mad.lo.u32 %r9, %r9, 64, t; mad.wide.u32 %d8, %r9",
        )
        + meets
    )
    text = kernel(two, threads=64, cluster=2)
    explorer = Explorer(prepare(text, grid=2, args=[np.zeros(128, np.uint32)]))
    assert explorer.explore(8).findings == []


def test_nobody_reads_what_it_writes_before_the_wait() -> None:
    early = HANDED_ON.replace("griddepcontrol.wait; mbarrier", "mbarrier") + "griddepcontrol.wait;"
    data = np.zeros(64, np.uint32)
    explorer = Explorer(prepare(kernel(early, threads=64), grid=1, args=[data]))
    assert {found.rule for found in explorer.explore(2).findings} == {"PDL-01"}
