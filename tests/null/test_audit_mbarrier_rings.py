"""Rings that an index walks: depths, slots, parities and counts, on a small pipeline and edits of it.

Warp 0 fills three slots, one elected thread a slot; the two warps behind take them and one lane of each releases.
Lines are counted by hand in KERNEL, whose first line is 1.
"""

from __future__ import annotations

import pytest

from tilewright.audit import audit_module
from tilewright.ptx import parse_ptx

KERNEL = """\
.version 8.6
.target sm_90a
.address_size 64
.visible .entry pipeline(.param .u64 tensor, .param .u32 rounds)
.maxntid 96
{
 .reg .pred %p<12>;
 .reg .b32 %r<40>;
 .reg .b64 %rd<4>;
 .shared .align 8 .b8 bars[48];
 .shared .align 128 .b8 tiles[3072];
 ld.param.u64 %rd1, [tensor];
 ld.param.u32 %r1, [rounds];
 mov.u32 %r2, %tid.x;
 shr.u32 %r3, %r2, 5;
 mov.u32 %r4, bars;
 mov.u32 %r5, tiles;
 mov.b32 %r6, 1;
 mov.b32 %r7, 2;
 setp.ne.u32 %p1, %r2, 0;
 @%p1 bra START;
 mbarrier.init.shared::cta.b64 [%r4], %r6;
 mbarrier.init.shared::cta.b64 [%r4+8], %r6;
 mbarrier.init.shared::cta.b64 [%r4+16], %r6;
 mbarrier.init.shared::cta.b64 [%r4+24], %r7;
 mbarrier.init.shared::cta.b64 [%r4+32], %r7;
 mbarrier.init.shared::cta.b64 [%r4+40], %r7;
 fence.mbarrier_init.release.cluster;
START:
 bar.sync 0;
 setp.ne.u32 %p2, %r3, 0;
 @%p2 bra TAKE;
 { .reg .pred e; elect.sync _|e, 0xffffffff; selp.u32 %r10, 1, 0, e; }
 mov.b32 %r11, 0;
 mov.b32 %r12, 0;
 mov.b32 %r13, 0;
FILL:
 shl.b32 %r14, %r11, 3;
 add.s32 %r15, %r14, %r4;
 xor.b32 %r16, %r12, 1;
 { .reg .pred d; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 d, [%r15+24], %r16; @!d bra again; }
 setp.eq.u32 %p3, %r10, 0;
 @%p3 bra FILLED;
 mad.lo.u32 %r17, %r11, 1024, %r5;
 mbarrier.arrive.expect_tx.relaxed.cluster.shared::cta.b64 _, [%r15], 1024;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r17], [%rd1], 1024, [%r15];
FILLED:
 add.s32 %r18, %r11, 1;
 setp.eq.s32 %p4, %r18, 3;
 selp.b32 %r11, 0, %r18, %p4;
 selp.u32 %r19, 1, 0, %p4;
 xor.b32 %r12, %r12, %r19;
 add.s32 %r13, %r13, 1;
 setp.lt.s32 %p5, %r13, %r1;
 @%p5 bra FILL;
 bra END;
TAKE:
 { .reg .pred e; elect.sync _|e, 0xffffffff; selp.u32 %r20, 1, 0, e; }
 mov.b32 %r21, 0;
 mov.b32 %r22, 0;
 mov.b32 %r23, 0;
ROUND:
 shl.b32 %r24, %r21, 3;
 add.s32 %r25, %r24, %r4;
 { .reg .pred d; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 d, [%r25], %r22; @!d bra again; }
 mad.lo.u32 %r26, %r21, 1024, %r5;
 ld.shared.u32 %r27, [%r26];
 bar.warp.sync 0xffffffff;
 setp.eq.u32 %p6, %r20, 0;
 @%p6 bra TAKEN;
 mbarrier.arrive.release.cta.shared::cta.b64 _, [%r25+24];
TAKEN:
 add.s32 %r28, %r21, 1;
 setp.eq.s32 %p7, %r28, 3;
 selp.b32 %r21, 0, %r28, %p7;
 selp.u32 %r29, 1, 0, %p7;
 xor.b32 %r22, %r22, %r29;
 add.s32 %r23, %r23, 1;
 setp.lt.s32 %p8, %r23, %r1;
 @%p8 bra ROUND;
END:
 bar.sync 0;
 ret;
}
"""


def errors(*edits: tuple[str, str]) -> list[tuple[str, int]]:
    """Rule and line of the errors of the barrier family."""
    text = KERNEL
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    report = audit_module(parse_ptx(text))
    return [(f.rule, f.span.line) for f in report.errors if f.rule.startswith("MBAR-")]


def test_clean() -> None:
    assert errors() == []


LAST_FULL = " mbarrier.init.shared::cta.b64 [%r4+16], %r6;"
MIDDLE_EMPTY = " mbarrier.init.shared::cta.b64 [%r4+32], %r7;"


@pytest.mark.parametrize(
    ("edit", "finding"),
    [
        ((MIDDLE_EMPTY, MIDDLE_EMPTY.replace("%r7", "%r6")), ("MBAR-03", 26)),
        ((MIDDLE_EMPTY, MIDDLE_EMPTY.replace("%r7", "3")), ("MBAR-03", 26)),
        ((LAST_FULL, ""), ("MBAR-04", 45)),
        ((MIDDLE_EMPTY, ""), ("MBAR-04", 41)),
        ((" setp.eq.s32 %p4, %r18, 3;", " setp.eq.s32 %p4, %r18, 2;"), ("MBAR-07", 74)),
        ((" setp.eq.s32 %p7, %r28, 3;", " setp.eq.s32 %p7, %r28, 4;"), ("MBAR-07", 74)),
    ],
)
def test_slots_of_one_ring(edit: tuple[str, str], finding: tuple[str, int]) -> None:
    assert finding in errors(edit)


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (("[%r15+24], %r16;", "[%r15+24], 1;"), 41),  # a number
        (("[%r25], %r22;", "[%r25], 0;"), 65),
        ((" xor.b32 %r12, %r12, %r19;", ""), 41),  # a register that nothing flips
        ((" xor.b32 %r22, %r22, %r29;", ""), 65),
    ],
)
def test_parity_that_never_changes(edit: tuple[str, str], line: int) -> None:
    assert ("MBAR-07", line) in errors(edit)


def test_parities_that_take_turns_are_left_alone() -> None:
    again = " { .reg .pred d; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 d, [%r25], 1; @!d bra again; }\n"
    edits = (("[%r25], %r22;", "[%r25], 0;"), (" mad.lo.u32 %r26", again + " mad.lo.u32 %r26"))
    assert not [each for each in errors(*edits) if each[0] == "MBAR-07"]


def test_readers_that_start_with_the_phase_before() -> None:
    flipped = ("[%r25], %r22;", "[%r25], %r30;")
    flip = (" add.s32 %r25, %r24, %r4;", " add.s32 %r25, %r24, %r4; xor.b32 %r30, %r22, 1;")
    assert ("MBAR-07", 65) in errors(flipped, flip)


@pytest.mark.parametrize(
    ("edit", "finding"),
    [
        ((" mov.b32 %r7, 2;", " mov.b32 %r7, 3;"), ("MBAR-03", 25)),
        ((" mov.b32 %r7, 2;", " mov.b32 %r7, 1;"), ("MBAR-05", 71)),
        ((" mov.b32 %r6, 1;", " mov.b32 %r6, 2;"), ("MBAR-03", 22)),
        ((" @%p3 bra FILLED;", ""), ("MBAR-05", 45)),  # all lanes announce the bytes
        ((" @%p3 bra FILLED;", " @!%p3 bra FILLED;"), ("MBAR-05", 45)),  # all but one
        ((" @%p6 bra TAKEN;", ""), ("MBAR-05", 71)),
        ((" @%p6 bra TAKEN;", " @!%p6 bra TAKEN;"), ("MBAR-05", 71)),
    ],
)
def test_arrivals_of_a_round(edit: tuple[str, str], finding: tuple[str, int]) -> None:
    assert finding in errors(edit)


def test_a_release_that_may_be_left_out_is_not_counted() -> None:
    skipped = (" @%p6 bra TAKEN;", " setp.eq.u32 %p9, %r27, 0;\n @%p9 bra TAKEN;")
    assert not [each for each in errors(skipped) if each[0] == "MBAR-05"]


# --- found beside the errors of the family --------------------------------------------------------


def found(*edits: tuple[str, str]) -> dict[str, set[int]]:
    """Lines of every finding, and of what is not decided under `? RULE`."""
    text = KERNEL
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    report = audit_module(parse_ptx(text))
    lines: dict[str, set[int]] = {}
    for finding in report.findings:
        lines.setdefault(finding.rule, set()).add(finding.span.line)
    for open_ in report.not_decided:
        lines.setdefault(f"? {open_.rule}", set()).add(open_.span.line)
    return lines


WAIT = " { .reg .pred d; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 d, [%r15+24], %r16; @!d bra again; }\n"
ARM = "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cta.b64 _, [%r15], 1024;"
COPY = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r17], [%rd1], 1024, [%r15];"
RELEASE = "mbarrier.arrive.release.cta.shared::cta.b64 _, [%r25+24];"


def test_counts_and_parities_of_the_pipeline_are_shown() -> None:
    assert not {"? MBAR-03", "? MBAR-07"} & set(found())


@pytest.mark.parametrize(
    ("edit", "rule", "line"),
    [
        ((WAIT, ""), "MBAR-12", 44),  # the slots come round with no wait
        ((WAIT, WAIT.replace("@!d bra again; ", "")), "MBAR-15", 41),
        ((ARM, ARM.replace("arrive.expect_tx", "arrive").replace(", 1024", "")), "TMA-03", 45),
        ((COPY, ""), "TMA-03", 45),
        ((COPY, f"{COPY} {COPY}"), "TMA-07", 46),
        ((RELEASE, f"{RELEASE} {RELEASE}"), "MBAR-05", 71),
        ((" @%p1 bra START;\n", "\n"), "MBAR-09", 22),  # by every thread
        (("[%r4+40], %r7;", "[%r4+40], %r7; mbarrier.inval.shared::cta.b64 [%r4+40];"), "MBAR-10", 41),
    ],
)  # fmt: skip
def test_breaks_that_other_families_report(edit: tuple[str, str], rule: str, line: int) -> None:
    assert line in found(edit).get(rule, set())


@pytest.mark.parametrize(("parity", "wrong"), [("%r12", True), ("%r33", False)])
def test_waits_of_one_walk_agree(parity: str, *, wrong: bool) -> None:
    tail = (
        " shl.b32 %r31, %r11, 3;\n add.s32 %r32, %r31, %r4;\n xor.b32 %r33, %r12, 1;\n"
        f"{WAIT.replace('[%r15+24], %r16', f'[%r32+24], {parity}')} bra END;\n"
    )
    lines = found((" bra END;\n", tail))
    assert (lines.get("MBAR-07", set()) != set()) is wrong
    assert "? MBAR-07" not in lines


def test_a_release_that_data_decide_leaves_the_count_open() -> None:
    skipped = (" @%p6 bra TAKEN;", " setp.eq.u32 %p9, %r27, 0;\n @%p9 bra TAKEN;")
    assert found(skipped)["? MBAR-03"]
