"""Rules of tcgen05: every pair of the catalogue, case C6, and edits of clean kernels.

Lines are those of the PTX, read by hand. `PAIR` is the hand-written clean kernel that most edits start from.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from audit_pairs import WHOLE, kernel_text, pairs, text_of
from tilewright.audit import audit_module
from tilewright.audit.kernel import Options
from tilewright.ptx import parse_ptx

if TYPE_CHECKING:
    from tilewright.ptx.finding import Finding

PTX = Path(__file__).parents[1] / "data" / "ptx"
PAIR, FULL = "TC-01_ok", "gemm_clc2_full"

ALLOC = "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r14], %r17;"
RELINQUISH = "tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;"
DEALLOC = "tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r18, %r17;"
COMMIT = "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
TO_ONE = "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64"
LOAD = "tcgen05.ld.sync.aligned.32x32b.x4.b32 {%r43, %r44, %r45, %r46}, [%r42];"
MMA = "tcgen05.mma.cta_group::2.kind::f16 [%r18], %d2, %d3, %r35, %p12;"
AFTER = "\ttcgen05.fence::after_thread_sync;\n"
BEFORE = "\ttcgen05.fence::before_thread_sync;\n"
ARRIVE = "\tmbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r40];\n"
WAIT_LD = "\ttcgen05.wait::ld.sync.aligned;\n"
CLUSTER_BARRIER = (
    "\tbarrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;\n"
)


def audited(text: str, options: Options | None = None) -> list[Finding]:
    report = audit_module(parse_ptx(text), options)
    return [found for found in report.findings if found.rule.startswith("TC-")]


def said(text: str, options: Options | None = None) -> list[tuple[str, str]]:
    return sorted({(f.rule, f.severity) for f in audited(text, options)})


def edited(name: str, *edits: tuple[str, str]) -> str:
    """The text with the first of each; an edit that begins with `*` is made everywhere."""
    text = text_of(name)
    for old, new in edits:
        everywhere, old_text = old.startswith("*"), old.removeprefix("*")
        assert old_text in text, old_text
        text = text.replace(old_text, new) if everywhere else text.replace(old_text, new, 1)
    return text


# --- clean kernels --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [name for name, pair in pairs().items() if pair.case.rule.startswith("TC-")]
)
def test_the_clean_one_is_silent(name: str) -> None:
    assert audited(text_of(f"{name}_ok")) == []


@pytest.mark.parametrize(
    "text", [*map(kernel_text, WHOLE), (PTX / "grammar.ptx").read_text()], ids=[*WHOLE, "grammar"]
)
def test_whole_kernels_are_silent(text: str) -> None:
    assert audited(text) == []


def test_a_kernel_of_triton_gets_one_warning_for_its_missing_fences() -> None:
    assert said((PTX / "triton_matmul_sm100.ptx").read_text()) in ([], [("TC-12", "warning")])


# --- case C6 --------------------------------------------------------------------------------------


def test_one_mask_for_both_pairs_starves_the_second() -> None:
    """Case C6: mask 0x3 in a cluster of 4; right is 0x3 << (rank & ~1)."""
    found = audited(text_of("C6_bad"))
    assert {f.rule for f in found} == {"TC-11"}
    assert all("ranks 2, 3 wait on it" in f.message and "in 0, 1" in f.message for f in found)


@pytest.mark.parametrize("cluster", [(4, 1, 1), (8, 1, 1)])
def test_a_mask_of_each_pair_fits_any_even_cluster(cluster: tuple[int, int, int]) -> None:
    directive = f".reqnctapercluster {cluster[0]}, 1, 1"
    assert said(edited(PAIR, (".reqnctapercluster 2, 1, 1", directive))) == []


# --- edits ----------------------------------------------------------------------------------------

ELECT = "\telect.sync _|%p5, -1;\n\t@!%p5 bra DONE;\n"
ZERO = "\tmov.b32 %r20, 0;\n\tmov.b32 %r21, 0;\n\tmov.b32 %r22, 0;\n"
SECOND = "\t.shared .align 4 .b32 tptr;\n\t.shared .align 4 .b32 second;\n"
EDITS: dict[str, tuple[str, list[tuple[str, str]], list[tuple[str, str]]]] = {
    "16 columns": (PAIR, [("%r17, 128", "%r17, 16")], [("TC-01", "error")]),
    "1024 columns": (PAIR, [("%r17, 128", "%r17, 1024")], [("TC-01", "error")]),
    "512 columns": (PAIR, [("%r17, 128", "%r17, 512")], []),
    "a larger second allocation": (
        PAIR,
        [
            ("\t.shared .align 4 .b32 tptr;\n", SECOND),
            (ALLOC, ALLOC + "\n\t" + ALLOC.replace("[%r14], %r17", "[second], 256")),
            (DEALLOC, DEALLOC + "\n\tld.shared.u32 %r50, [second];\n\t"
             + DEALLOC.replace("%r18, %r17", "%r50, 256")),
        ],
        [("TC-01", "error")],
    ),
    "a smaller second allocation": (
        PAIR,
        [
            ("\t.shared .align 4 .b32 tptr;\n", SECOND),
            (ALLOC, ALLOC + "\n\t" + ALLOC.replace("[%r14], %r17", "[second], 64")),
            (DEALLOC, DEALLOC + "\n\tld.shared.u32 %r50, [second];\n\t"
             + DEALLOC.replace("%r18, %r17", "%r50, 64")),
        ],
        [],
    ),
    "alloc in one lane": (
        PAIR,
        [("\t" + ALLOC, "\telect.sync _|%p20, -1;\n\t@!%p20 bra SETUP_DONE;\n\t" + ALLOC)],
        [("TC-02", "error")],
    ),
    "alloc in the even CTA": (
        PAIR,
        [("\t" + ALLOC, "\tsetp.ne.u32 %p20, %r3, 0;\n\t@%p20 bra SETUP_DONE;\n\t" + ALLOC)],
        [("TC-02", "error")],
    ),
    "another warp allocates after the barrier": (
        PAIR,
        [
            ("\t" + ALLOC + "\n", ""),
            ("\tld.shared.u32 %r18, [%r14];\n",
             "\tsetp.ne.u32 %p20, %r1, 5;\n\t@%p20 bra HAVE;\n\t" + ALLOC + "\nHAVE:\n"
             "\tld.shared.u32 %r18, [%r14];\n"),
        ],
        [("TC-03", "error")],
    ),
    "the MMA of the other group": (
        PAIR, [("mma.cta_group::2", "mma.cta_group::1")],
        [("TC-04", "error"), ("TC-11", "error"), ("TC-16", "error")],
    ),
    "two allocations, one deallocated": (
        PAIR,
        [
            ("\t.shared .align 4 .b32 tptr;\n", SECOND),
            (ALLOC, ALLOC + "\n\t" + ALLOC.replace("[%r14], %r17", "[second], 64")),
        ],
        [("TC-05", "error")],
    ),
    "dealloc in the even CTA": (
        PAIR,
        [("\t@%p1 bra EXIT;\n", "\t@%p1 bra EXIT;\n\tsetp.ne.u32 %p20, %r3, 0;\n\t@%p20 bra EXIT;\n")],
        [("TC-06", "error")],
    ),
    "dealloc in one lane": (
        PAIR,
        [("\t@%p1 bra EXIT;\n", "\t@%p1 bra EXIT;\n\telect.sync _|%p20, -1;\n\t@!%p20 bra EXIT;\n")],
        [("TC-06", "error")],
    ),
    "64 columns deallocated": (
        PAIR, [(DEALLOC, DEALLOC.replace("%r17", "64"))], [("TC-08", "error")]
    ),
    "dealloc at an offset": (
        PAIR,
        [("\t" + DEALLOC, "\tadd.u32 %r50, %r18, 32;\n\t" + DEALLOC.replace("%r18", "%r50"))],
        [("TC-08", "error")],
    ),
    "the MMA by every lane": (
        PAIR, [(ELECT + ZERO + "\tmov.b32 %r34, 1;\n", ZERO + "\tmov.b32 %r34, 1;\n")],
        [("TC-09", "error")],
    ),
    "the MMA in both CTAs": (
        PAIR, [("\t@%p11 bra DONE;\n", "")], [("TC-09", "error")]
    ),
    "the MMA in three warps": (
        PAIR, [("setp.eq.u32 %p3, %r1, 1;", "setp.lt.u32 %p3, %r1, 4;")], [("TC-09", "error")]
    ),
    "an arrive instead of the commit": (
        PAIR,
        [(f"\t{COMMIT} [%r36], %h0;\n",
          "\tmbarrier.arrive.release.cluster.shared::cta.b64 _, [%r36];\n")],
        [("TC-10", "error")],
    ),
    "a commit to the own CTA only": (
        PAIR, [(f"{COMMIT} [%r36], %h0;", f"{TO_ONE} [%r36];")], [("TC-11", "error")]
    ),
    "no commit on the slots": (PAIR, [(f"\t{COMMIT} [%r36], %h0;\n", "")], [("TC-11", "error")]),
    "a mask of one CTA": (PAIR, [("mov.b32 %r16, 3;", "mov.b32 %r16, 1;")], [("TC-11", "error")]),
    "a mask outside the cluster": (
        PAIR, [("mov.b32 %r16, 3;", "mov.b32 %r16, 7;")], [("TC-11", "error")]
    ),
    "no fence after the wait for the accumulator": (
        PAIR, [("\t@!%p7 bra MMA_TILE;\n" + AFTER, "\t@!%p7 bra MMA_TILE;\n"),
               ("\t@!%p7 bra MMA_WAIT_FULL;\n" + AFTER, "\t@!%p7 bra MMA_WAIT_FULL;\n")],
        [("TC-12", "error")],
    ),
    "one fence behind two waits": (
        PAIR, [("\t@!%p7 bra MMA_TILE;\n" + AFTER, "\t@!%p7 bra MMA_TILE;\n")], []
    ),
    "no fence before the arrive": (
        PAIR, [("\tst.global.u32 [%d4], %r43;\n" + BEFORE, "\tst.global.u32 [%d4], %r43;\n")],
        [("TC-13", "error")],
    ),
    "no wait::ld": (PAIR, [(WAIT_LD, "")], [("TC-14", "error")]),
    "wait::ld behind the arrive": (
        PAIR, [(WAIT_LD, ""), (ARRIVE, ARRIVE + WAIT_LD)], [("TC-14", "error")]
    ),
    "the quadrant of the next warp": (
        PAIR, [("\tand.b32 %r41, %r1, 3;\n", "\tadd.u32 %r41, %r1, 1;\n\tand.b32 %r41, %r41, 3;\n")],
        [("TC-15", "error")],
    ),
    "no quadrant": (PAIR, [("add.u32 %r42, %r18, %r41;", "mov.u32 %r42, %r18;")], [("TC-15", "error")]),
    "an address for each lane": (
        PAIR, [("add.u32 %r42, %r18, %r41;", "add.u32 %r42, %r0, %r18;")], [("TC-15", "error")]
    ),
    "ld in one lane": (PAIR, [("\t" + LOAD, "\telect.sync _|%p20, -1;\n\t@%p20 " + LOAD)], [("TC-15", "error")]),
    "M of 64": (PAIR, [("0x10200490", "0x04200490")], [("TC-16", "error")]),
    "N of 264": (PAIR, [("0x10200490", "0x10420490")], [("TC-16", "error")]),
    "M of 128": (PAIR, [("0x10200490", "0x08200490")], []),
    "D of s32": (PAIR, [("0x10200490", "0x102004A0")], [("TC-16", "error")]),
    "A of tf32": (PAIR, [("0x10200490", "0x10200510")], [("TC-16", "error")]),
    "a reserved bit": (PAIR, [("0x10200490", "0x30200490")], [("TC-16", "error")]),
    "a sparse descriptor": (PAIR, [("0x10200490", "0x10200494")], [("TC-16", "error")]),
    "nobody releases the accumulator": (PAIR, [(ARRIVE, "")], [("TC-17", "error")]),
    "no drain": (PAIR, [("\t@%p10 bra LOAD_TILE;\n", "\t@%p10 bra LOAD_TILE;\n\tbra.uni DONE;\n")],
                 [("TC-18", "error")]),
    "a cluster of 3": (
        PAIR, [(".reqnctapercluster 2", ".reqnctapercluster 3"), ("mov.b32 %r16, 3;", "mov.b32 %r16, 1;")],
        [("TC-19", "error")],
    ),
    "a swizzle of 3": (PAIR, [("0x4000404000010000", "0x6000404000010000")], [("TC-20", "error")]),
    "a fixed bit": (PAIR, [("0x4000404000010000", "0x4100404000010000")], [("TC-20", "error")]),
    "no swizzle": (PAIR, [("0x4000404000010000", "0x0000404000010000")], []),
    "a target without tensor memory": (PAIR, [(".target sm_100a", ".target sm_120a")], [("TC-21", "error")]),
    "st and ld of one warp": (
        PAIR,
        [("\t" + LOAD, "\ttcgen05.st.sync.aligned.32x32b.x1.b32 [%r42], {%r3};\n\t" + LOAD)],
        [("TC-22", "error")],
    ),
    "st and ld side by side": (
        PAIR,
        [("\t" + LOAD, "\ttcgen05.st.sync.aligned.32x32b.x1.b32 [%r42+64], {%r3};\n"
          "\ttcgen05.wait::st.sync.aligned;\n\t" + LOAD)],
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_brings_exactly_its_rule(edit: str) -> None:
    name, edits, expected = EDITS[edit]
    rules = [rule for rule, _ in expected]
    found = said(edited(name, *edits))
    assert [each for each in found if each[0] in rules] == expected
    if not expected:
        assert found == []


# --- what the launch and the convention decide ----------------------------------------------------


def test_the_caller_may_say_which_cluster_is_launched() -> None:
    text = edited(PAIR, (".explicitcluster\n.reqnctapercluster 2, 1, 1\n", ""))
    assert said(text) == [("TC-19", "warning")]
    assert said(text, Options(cluster=(2, 1, 1))) == []
    assert ("TC-19", "error") in said(text, Options(cluster=(1, 1, 1)))


def test_without_any_fence_there_is_one_warning_a_rule_and_an_error_when_strict() -> None:
    text = edited(PAIR, ("*" + AFTER, ""), ("*" + BEFORE, ""))
    assert [f.rule for f in audited(text)] == ["TC-12", "TC-13"]
    assert said(text) == [("TC-12", "warning"), ("TC-13", "warning")]
    assert said(text, Options(strict=True)) == [("TC-12", "error"), ("TC-13", "error")]


def test_an_unknown_number_of_columns_is_not_decided() -> None:
    text = edited(PAIR, ("mov.b32 %r17, 128;", "ld.param.u32 %r17, [k_blocks];"))
    report = audit_module(parse_ptx(text))
    assert {"TC-01", "TC-08"} <= {each.rule for each in report.not_decided}
    assert not [f for f in report.findings if f.rule in {"TC-01", "TC-08"}]


def test_an_unknown_descriptor_is_not_decided() -> None:
    text = edited(PAIR, ("mov.b32 %r35, 0x10200490;", "ld.param.u32 %r35, [k_blocks];"))
    report = audit_module(parse_ptx(text))
    assert "TC-16" in {each.rule for each in report.not_decided}
    assert said(text) == []


def test_the_whole_gemm_loses_a_wait_and_is_found() -> None:
    text = edited(FULL, ("*tcgen05.wait::ld.sync.aligned;", "// waited"))
    assert said(text) == [("TC-14", "error")]


def test_findings_name_the_other_place() -> None:
    (found,) = (f for f in audited(text_of("TC-06b_bad")) if f.rule == "TC-06")
    assert found.other is not None
    assert found.other.line == 1038


def test_a_dealloc_by_every_warp() -> None:
    """The fourth warp allocates; without its branch all of them free the same columns."""
    guard = next(
        line
        for line in reversed(text_of(FULL).split("tcgen05.dealloc")[0].splitlines())
        if "@%p" in line
    )
    text = edited(FULL, (guard + "\n", "\n"))
    assert "TC-08" in {rule for rule, _ in said(text)}
