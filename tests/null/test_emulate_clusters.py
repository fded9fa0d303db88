"""Waiting for others, as quack's kernels do: addresses in peers, what peers send, flags in memory, parted warps at a barrier."""

from __future__ import annotations

import numpy as np
import pytest

from ptx_lines import kernel, run

RANKS = """
    .shared .align 4 .b32 s[32]; mov.u32 %r1, s; mad.lo.u32 %r2, t, 4, %r1; st.shared.u32 [%r2], t;
    mapa.shared::cluster.u32 %r3, %r2, t; {all}
    setp.lt.u32 %p0, t, {ranks}; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    @%p0 ld.shared::cluster.u32 %r4, [%r3]; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mov.u32 %r5, %cluster_ctarank; mad.lo.u32 %r5, %r5, 32, t;
    mul.wide.u32 %d4, %r5, 4; add.u64 %d4, %d4, %d0; @%p0 st.global.u32 [%d4], %r4;"""


def found(text: str, *args: np.ndarray, seed: int = 0) -> list[str]:
    (outcome,) = run(text, *args, grid=2, seed=seed, check=False).outcomes
    return [finding.rule for finding in outcome.findings]


@pytest.mark.parametrize(("ranks", "rules"), [(2, []), (3, ["CLU-06"])])
def test_an_address_in_a_cta_that_is_not_there_must_not_be_used(
    ranks: int, rules: list[str]
) -> None:
    """mapa computes an address for every lane, as quack's schedulers do; only those of CTAs may be read."""
    data = np.zeros((2, 32), np.uint32)
    text = kernel(RANKS.format(ranks=ranks, all=""), cluster=2)
    assert found(text, data) == rules
    if not rules:
        assert data[:, :2].tolist() == [[0, 1], [0, 1]]


def test_a_rank_past_those_of_an_address_is_not_taken_for_another() -> None:
    text = kernel(RANKS.format(ranks=1, all="mapa.shared::cluster.u32 %r3, %r2, 256;"), cluster=2)
    assert found(text, np.zeros((2, 32), np.uint32)) == ["CLU-06"]


SENT = """
    .shared .align 8 .b64 bar; .shared .align 16 .b32 s[4]; mov.u32 %r1, s; mov.u32 %r2, bar;
    mov.u32 %r3, %cluster_ctarank; setp.ne.u32 %p0, t, 0; @%p0 bra READY;
    mbarrier.init.shared::cta.b64 [bar], 1; mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {bytes};
    fence.mbarrier_init.release.cluster;
    READY: barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    setp.ne.u32 %p1, %r3, 0; or.pred %p2, %p0, %p1; @%p2 bra RECEIVE;
    mapa.shared::cluster.u32 %r4, %r1, 1; mapa.shared::cluster.u32 %r5, %r2, 1;
    {{ .reg .v4 .u32 v; mov.u32 v.x, 5; mov.u32 v.y, 6; mov.u32 v.z, 7; mov.u32 v.w, 8;
    st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%r4], v, [%r5]; }}
    RECEIVE: bar.sync 0; @!%p1 bra END;
    {wait}
    and.b32 %r6, t, 3; mad.lo.u32 %r6, %r6, 4, %r1; ld.shared.u32 %r7, [%r6];
    mul.wide.u32 %d4, t, 4; add.u64 %d4, %d4, %d0; st.global.u32 [%d4], %r7;
    END:"""
WAIT = "TRY: mbarrier.try_wait.parity.shared::cta.b64 %p3, [bar], 0; @!%p3 bra TRY;"


def test_a_cta_that_has_waited_for_what_peers_send_may_leave() -> None:
    """quack's reductions over a cluster end with this wait, and with no barrier of the cluster."""
    text = kernel(SENT.format(bytes=16, wait=WAIT), cluster=2)
    for seed in range(6):
        data = np.zeros(32, np.uint32)
        assert found(text, data, seed=seed) == ["MBAR-08"]  # a warning: the wait is of CTA scope
        assert data.tolist() == [5, 6, 7, 8] * 8


def test_a_cta_that_leaves_before_what_peers_send_is_found() -> None:
    text = kernel(SENT.format(bytes=16, wait=""), cluster=2)
    for seed in range(6):
        assert "CLU-02" in found(text, np.zeros(32, np.uint32), seed=seed)


HANDED_ON = """
    shr.u32 %r1, t, 5; and.b32 %r2, t, 31; setp.ne.u32 %p0, %r2, 0; @%p0 bra OVER;
    setp.eq.u32 %p1, %r1, 0; @%p1 bra GIVE;
    LOOK: ld.acquire.gpu.global.u32 %r3, [%d0]; setp.ne.u32 %p2, %r3, %r1; @%p2 bra LOOK;
    GIVE: add.u32 %r4, %r1, 1; st.release.gpu.global.u32 [%d0], %r4;
    OVER: """


def test_no_schedule_starves_whom_a_loop_waits_for() -> None:
    """Each warp looks at a word until the one before it has stored its number, as the turns of a split K do."""
    for seed in range(12):
        word = np.zeros(1, np.uint32)
        (outcome,) = run(kernel(HANDED_ON, threads=128), word, seed=seed, check=False).outcomes
        assert [finding.message for finding in outcome.findings] == []
        assert word[0] == 4


PARTED = """
    .shared .align 4 .b32 s[32]; mov.u32 %r0, t; mov.u32 %r1, s; and.b32 %r2, t, 31; mad.lo.u32 %r3, %r2, 4, %r1;
    setp.gt.u32 %p0, t, 31; @%p0 bra SECOND; setp.eq.u32 %p1, t, 0; @%p1 bra LANE_0;
    barrier.sync 1, 64; bra READ; LANE_0: barrier.sync 1, 64;
    READ: ld.shared.u32 %r0, [%r3]; bra END;
    SECOND: st.shared.u32 [%r3], t; barrier.sync 1, 64;
    END: mul.wide.u32 %d4, t, 4; add.u64 %d4, %d4, %d0; st.global.u32 [%d4], %r0;"""


def test_a_parted_warp_arrives_once_all_its_threads_have_come() -> None:
    # PTX ISA, bar: "... to wait for all non-exited threads from its warp and marks warps' arrival at barrier".
    for seed in range(6):
        data = np.zeros(64, np.uint32)
        assert found_alone(kernel(PARTED, threads=64), data, seed=seed) == []
        assert data.tolist() == [*range(32, 64), *range(32, 64)]


def test_a_thread_that_comes_again_before_its_warp_is_there() -> None:
    body = """.shared .align 4 .b32 s[1]; setp.eq.u32 %p0, t, 0; @%p0 bra LANE_0;
    barrier.arrive 1, 64; barrier.arrive 1, 64; st.volatile.shared.u32 [s], 1; bra END;
    LANE_0: ld.volatile.shared.u32 %r1, [s]; setp.ne.u32 %p1, %r1, 1; @%p1 bra LANE_0;
    barrier.sync 1, 64; END:"""
    assert found_alone(kernel(body, 0), seed=0) == ["BAR-01"]


def found_alone(text: str, *args: np.ndarray, seed: int) -> list[str]:
    (outcome,) = run(text, *args, seed=seed, check=False).outcomes
    return [finding.rule for finding in outcome.findings]
