"""Rules of barriers: every pair of the catalogue, the ring of case C14, and edits of clean kernels.

Lines are those of the PTX, read by hand.
"""

from __future__ import annotations

from functools import partial

import pytest

from audit_pairs import edited, errors_of, said, text_of, undecided
from tilewright.audit.kernel import Options

OURS = ("MBAR-",)
errors = partial(errors_of, OURS)
ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [%r1]"
INIT = "mbarrier.init.shared::cta.b64 [%r1], 1;"
FENCE = "fence.mbarrier_init.release.cluster;"
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 128;"
EDITS: list[tuple[str, list[tuple[str, str]], str, list[tuple[str, int]]]] = [
    # the object
    ("MBAR-03_ok", [("mov.u32 %r1, bar;", "mov.u32 %r1, bar+2;")], "MBAR-01", [("error", 20)]),
    ("MBAR-03_ok", [(".b64 bar;", ".b32 bar;")], "MBAR-01", [("error", 20)]),
    ("MBAR-03_ok", [(INIT, INIT.replace("1;", "1048576;"))], "MBAR-02", [("error", 20)]),
    ("MBAR-03_ok", [(INIT, INIT.replace("1;", "1048575;"))], "MBAR-02", []),
    # its initialisation
    ("MBAR-03_ok", [("bar.sync 0;", "")], "MBAR-04", [("error", 20)]),
    ("MBAR-03_ok", [("bar.sync 0;", "bar.sync 0;"), (FENCE, "")], "MBAR-04", []),
    ("MBAR-04_ok", [(FENCE, "")], "MBAR-04", []),  # arrive.release publishes by itself
    ("MBAR-04_ok", [("arrive.release.aligned", "arrive.relaxed.aligned")], "MBAR-04", []),
    ("CLU-08_ok", [("barrier.cluster.arrive.release.aligned", "bar.sync 0"), ("barrier.cluster.wait.acquire.aligned", "bar.sync 0")], "MBAR-04", [("error", 22)]),
    ("MBAR-03_ok", [(INIT, INIT + INIT)], "MBAR-09", [("error", 20)]),
    ("MBAR-03_ok", [(INIT, INIT + "mbarrier.inval.shared::cta.b64 [%r1];" + INIT)], "MBAR-09", []),
    ("MBAR-03_ok", [("ret;", "st.shared.u32 [%r1+4], %r0; ret;")], "MBAR-10", [("error", 29)]),
    ("MBAR-03_ok", [("ret;", "st.shared.u32 [%r1+8], %r0; ret;")], "MBAR-10", []),
    ("MBAR-03_ok", [(FENCE, "mbarrier.inval.shared::cta.b64 [%r1];")], "MBAR-10", [("error", 25)]),
    ("MBAR-03_ok", [("bra WAIT;\n\tmbarrier.arrive.shared::cta.b64 _, [%r1];", "bra WAIT;\n\tmbarrier.arrive.shared::cta.b64 _, [%r1+8];")], "MBAR-10", [("error", 25)]),
    # counts
    ("MBAR-03_ok", [(INIT, INIT.replace("1;", "3;"))], "MBAR-03", [("error", 20)]),
    ("MBAR-03_ok", [(ARRIVE, "add.u32 %r2, %r1, 0")], "MBAR-03", [("error", 20)]),
    ("MBAR-03_ok", [(INIT, INIT.replace("1;", "2;")), (ARRIVE, ARRIVE + ", 2")], "MBAR-03", []),
    ("MBAR-03_ok", [(ARRIVE, f"{ARRIVE}; {ARRIVE}")], "MBAR-05", [("error", 25)]),
    ("MBAR-03_ok", [("bar.sync 0;\n\t@%p0 bra WAIT;", "bar.sync 0;")], "MBAR-05", [("error", 24)]),
    ("MBAR-03_ok", [("bar.sync 0;\n\t@%p0 bra WAIT;", "bar.sync 0;"), (INIT, INIT.replace("1;", "128;"))], "MBAR-05", []),
    ("MBAR-06_ok", [(ARRIVE, ARRIVE + ", 2")], "MBAR-05", [("error", 29)]),
    # parity
    ("MBAR-12_ok", [("and.b32 %r4, %r3, 1;", "mov.u32 %r4, 0;")], "MBAR-07", [("error", 30)]),
    ("MBAR-08_ok", [("[%r1], 0;\n\t@!%p1", "[%r1], 1;\n\t@!%p1")], "MBAR-07", [("error", 31)]),
    ("C14_ok", [("xor.b32 %r16, %r5, 1;", "mov.u32 %r16, %r5;")], "MBAR-07", [("error", 63)]),
    ("C14_bad", [("setp.eq.u32 %p3, %r4, 3", "setp.eq.u32 %p3, %r4, 2"), ("mbarrier.init.shared::cta.b64 [%r1+16], 1;", "")], "MBAR-07", []),
    # scope
    ("MBAR-08_ok", [(".acquire.cluster", ".acquire.cta")], "MBAR-08", [("warning", 31)]),
    ("C14_ok", [("MET:", "MET:"), ("mbarrier.arrive.release.cluster.shared::cluster", "mbarrier.arrive.shared::cluster")], "MBAR-08", [("warning", 49), ("warning", 67)]),
    ("C14_ok", [("mbarrier.arrive.release.cluster.shared::cluster", "mbarrier.arrive.relaxed.cluster.shared::cluster")], "MBAR-08", []),
    # modifiers
    ("MBAR-03_ok", [(ARRIVE, ARRIVE.replace("arrive", "arrive.release"))], "MBAR-14", [("error", 25)]),
    ("MBAR-03_ok", [(ARRIVE, ARRIVE.replace("arrive", "arrive.release.cta"))], "MBAR-14", []),
    ("MBAR-03_ok", [(ARRIVE, ARRIVE + ", 0")], "MBAR-14", [("error", 25)]),
    ("MBAR-08_ok", [(EXPECT, EXPECT.replace("expect_tx.", "expect_tx.relaxed.cta.")), (".version 9.0", ".version 8.5")], "MBAR-14", [("error", 28)]),
    ("MBAR-03_ok", [("arrive.shared::cta.b64 _, [%r1]", "arrive.noComplete.shared::cta.b64 %rd1, [%r1], 1")], "MBAR-14", [("error", 25)]),
    ("MBAR-03_ok", [("try_wait.parity.shared::cta", "try_wait.parity.shared::cluster")], "MBAR-13", [("error", 27)]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "edits", "rule", "expected"), EDITS)
def test_edit_of_a_clean_kernel(
    name: str, edits: list[tuple[str, str]], rule: str, expected: list[tuple[str, int]]
) -> None:
    assert said(edited(name, *edits), rule) == expected


@pytest.mark.parametrize("name", ["gemm_clc2_full", "gemm_wgmma_full"])
def test_whole_kernels_have_no_error(name: str) -> None:
    assert errors(text_of(name)) == []


def test_strict_makes_scope_an_error() -> None:
    assert said(text_of("MBAR-08_bad"), "MBAR-08", Options(strict=True)) == [("error", 31)]


def test_count_in_a_loop_is_not_decided() -> None:
    text = edited("MBAR-12_bad", (INIT, INIT.replace("1;", "2;")))
    waiting = text.replace(
        "DONE:", "DONE:\n\tmbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1], 0; @!%p3 bra DONE;"
    )
    assert said(waiting, "MBAR-03") == []
    assert undecided(waiting, "MBAR-03") == [20, 27]
