"""Rules of clusters and of copies between their CTAs: every pair of the catalogue, and edits of clean kernels.

Lines are those of the PTX, read by hand.
"""

from __future__ import annotations

from functools import partial

import pytest

from audit_pairs import edited, errors_of, said, text_of, undecided
from tilewright.audit.kernel import Options

OURS = ("CLU-",)
errors = partial(errors_of, OURS)
SYNC = "barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;\n"
WAITS_ON = "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r1], 0;"
EDITS: list[tuple[str, list[tuple[str, str]], str, list[tuple[str, int]]]] = [
    # peers run, peers stay
    ("CLU-15_ok", [(SYNC + "\tmapa", "mapa")], "CLU-01", [("error", 26)]),
    ("CLU-08_ok", [("INITED:\n\t" + SYNC, "INITED:\n")], "CLU-01", [("error", 32)]),
    ("CLU-15_ok", [(SYNC + "\tret;", "ret;")], "CLU-02", [("error", 28)]),
    ("CLU-03_ok", [(SYNC + "\tret;", "ret;")], "CLU-02", [("error", 30)]),
    # the barrier
    ("CLU-03_bad", [("barrier.cluster.arrive.relaxed", "fence.acq_rel.cluster;\n\tbarrier.cluster.arrive.relaxed")], "CLU-03", []),
    ("CLU-03_bad", [("barrier.cluster.arrive.relaxed", "fence.acq_rel.cta;\n\tbarrier.cluster.arrive.relaxed")], "CLU-03", [("error", 26)]),
    ("CLU-03_bad", [("ld.shared::cluster.u32 %r7, [%r6]", "ld.shared::cluster.u32 %r7, [%r6+64]")], "CLU-03", []),
    ("CLU-08_ok", [("INITED:\n\tbarrier.cluster.arrive.release.aligned", "INITED:\n\t@%p0 barrier.cluster.arrive.release.aligned")], "CLU-04", [("error", 25)]),
    ("CLU-08_ok", [("INITED:\n\tbarrier.cluster.arrive.release.aligned", "INITED:\n\t@%p0 barrier.cluster.arrive.release")], "CLU-04", []),
    ("CLU-15_ok", [(SYNC + "\tmapa", SYNC + "\tbarrier.cluster.wait.acquire.aligned;\n\tmapa")], "CLU-05", [("error", 24)]),
    ("CLU-15_ok", [(SYNC + "\tmapa", "barrier.cluster.wait.acquire.aligned;\n\tmapa")], "CLU-05", [("error", 22)]),
    ("CLU-15_ok", [(SYNC + "\tret", "barrier.cluster.arrive.release.aligned;\n\t" + SYNC + "\tret")], "CLU-05", [("error", 30)]),
    # addresses
    ("CLU-15_ok", [("xor.b32 %r5, %r5, 1;", "add.u32 %r5, %r5, 2;")], "CLU-06", [("error", 24)]),
    ("CLU-15_ok", [("mapa.shared::cluster.u32 %r6, %r2, %r5;", "mov.u32 %r6, %r2;")], "CLU-07", [("warning", 28)]),
    ("CLU-15_ok", [("mapa.shared::cluster.u32 %r6, %r2, %r5;", "mov.u32 %r6, %r2;"), ("shared::cluster", "shared::cta")], "CLU-07", []),
    ("CLU-08_ok", [(WAITS_ON, WAITS_ON.replace("%r1", "%r8"))], "CLU-12", [("error", 36)]),
    ("CLU-08_ok", [("xor.b32 %r5, %r5, 1;", ""), (WAITS_ON, WAITS_ON.replace("%r1", "%r8"))], "CLU-12", []),
    # copies
    ("CLU-08_ok", [("mapa.shared::cluster.u32 %r8, %r1, %r5;", "xor.b32 %r9, %r5, 1; mapa.shared::cluster.u32 %r8, %r1, %r9;")], "CLU-08", [("error", 34)]),
    ("CLU-08_ok", [(".reqnctapercluster 2", ".reqnctapercluster 1")], "CLU-08", [("error", 34)]),
    ("CLU-10_ok", [("[%r2], 128, [%r8]", "[%r2], 120, [%r8]")], "CLU-09", [("error", 35)]),
    ("CLU-10_ok", [("[%r2], 128, [%r8]", "[%r2], 256, [%r8]")], "CLU-09", [("error", 35)]),
    ("CLU-10_ok", [("[%r2], 128, [%r8]", "[%r2+4], 128, [%r8]")], "CLU-09", [("error", 35)]),
    ("CLU-10_ok", [("%r8, %r1, %r9", "%r8, %r1, %r5")], "CLU-10", [("error", 35)]),
    ("CLU-10_ok", [("mov.u32 %r2, data;", "mov.u32 %r2, data; st.shared.u32 [%r2], %r0;")], "CLU-11", [("error", 35)]),
    ("CLU-10_ok", [("mov.u32 %r2, data;", "mov.u32 %r2, data; st.shared.u32 [%r2], %r0; fence.proxy.async;")], "CLU-11", []),
    ("CLU-10_ok", [("mov.u32 %r2, data;", "mov.u32 %r2, data; st.shared.u32 [%r2+128], %r0;")], "CLU-11", []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "edits", "rule", "expected"), EDITS)
def test_edit_of_a_clean_kernel(
    name: str, edits: list[tuple[str, str]], rule: str, expected: list[tuple[str, int]]
) -> None:
    assert said(edited(name, *edits), rule) == expected


@pytest.mark.parametrize("name", ["gemm_clc2_full", "gemm_wgmma_full"])
def test_whole_kernels_have_no_error(name: str) -> None:
    assert errors(text_of(name)) == []


def test_one_cta_has_no_peers() -> None:
    dims = (".explicitcluster\n.reqnctapercluster 4, 1, 1", "")
    for name in ("CLU-01_bad", "CLU-02_bad", "CLU-07_bad"):
        assert errors(edited(name, dims), Options(cluster=(1, 1, 1))) == []
    assert said(edited("CLU-07_bad", dims), "CLU-07", Options(cluster=(4, 1, 1))) != []


def test_half_that_may_be_skipped_is_not_decided() -> None:
    skipped = (
        "ld.param.u32 %r9, [out]; setp.ne.u32 %p2, %r9, 0; @%p2 bra PAST;\n"
        "barrier.cluster.arrive.release.aligned;\nPAST:\nbarrier.cluster.wait.acquire.aligned;\n\tmapa"
    )
    text = edited("CLU-15_ok", (SYNC + "\tmapa", skipped))
    assert said(text, "CLU-05") == []
    assert undecided(text, "CLU-05") != []


def test_a_peer_that_only_some_ranks_have() -> None:
    """Rank 1 touches itself, the others their peer: for them nothing keeps it alive."""
    touch = "mapa.shared::cluster.u32 %r1, %r2, 1; ld.shared::cluster.u32 %r3, [%r1]; "
    text = PEER.format(behind=touch)
    assert said(text, "CLU-02") == [("error", 15)]
    assert said(PEER.format(behind=""), "CLU-02") == []


PEER = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry peer()
.reqntid 32, 1, 1
.reqnctapercluster 2, 1, 1
{{
	.reg .b32 %r<4>;
	.shared .align 8 .b8 box[16];
	mov.u32 %r2, box;
	barrier.cluster.arrive.aligned;
	barrier.cluster.wait.aligned;

	{behind}
	ret;
}}
"""
