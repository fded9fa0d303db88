"""Rules of bulk copies: a pair each, differing by one bug; the lines were read from the PTX by hand."""

from __future__ import annotations

import re

import pytest

from audit_pairs import kernel_text, kernels, text_of
from tilewright.audit import Report, audit_module
from tilewright.audit.kernel import Options
from tilewright.ptx import parse_ptx


def audit(text: str, options: Options | None = None) -> Report:
    return audit_module(parse_ptx(text), options)


def lines(report: Report, rule: str) -> list[int]:
    return [f.span.line for f in report.errors if f.rule == rule]


def broken(text: str) -> set[str]:
    return {f.rule for f in audit(text).errors if f.rule.startswith("TMA")}


def changed(name: str, old: str, new: str) -> str:
    text = text_of(name)
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize("name", kernels())
def test_clean_kernels_have_no_error(name: str) -> None:
    assert broken(kernel_text(name)) == set()


# --- a copy at a time -------------------------------------------------------------------------------


@pytest.mark.parametrize(("offset", "found"), [(16, True), (64, True), (128, False), (1024, False)])
def test_tile_alignment(offset: int, found: bool) -> None:
    text = text_of("TMA-01_bad").replace(
        "add.s32 	%r3, %r3, 64;", f"add.s32 	%r3, %r3, {offset};"
    )
    assert ("TMA-01" in broken(text)) is found


def test_alignment_that_the_declaration_leaves_open() -> None:
    report = audit(changed("TMA-03_ok", ".shared .align 1024 .b8 dsm", ".shared .align 16 .b8 dsm"))
    assert "TMA-01" not in {f.rule for f in report.findings}
    assert "TMA-01" in {n.rule for n in report.not_decided}


@pytest.mark.parametrize(("mask", "found"), [(0, True), (1, False), (3, False), (4, True)])
def test_masks(mask: int, found: bool) -> None:
    text = re.sub(r"(mov\.b16 	%rs\d, )3;", rf"\g<1>{mask};", text_of("TMA-05_ok"))
    assert ("TMA-05" in broken(text)) is found


def test_mask_without_a_known_cluster_is_not_decided() -> None:
    text = re.sub(r"\.reqnctapercluster.*|\.explicitcluster", "", text_of("TMA-05_bad"))
    report = audit(text)
    assert lines(report, "TMA-05") == []
    assert "TMA-05" in {n.rule for n in report.not_decided}
    assert len(lines(audit(text, Options(cluster=(2, 1, 1))), "TMA-05")) == 4
    assert lines(audit(text, Options(cluster=(4, 1, 1))), "TMA-05") == []


def test_map_between_two_maps() -> None:
    text = changed("TMA-03_ok", "mov.u64 	%rd1, %rd4;", "add.s64 	%rd1, %rd4, 8;")
    assert "TMA-11" in broken(text)


def test_one_copy_of_the_plain_form() -> None:
    text = text_of("gemm_clc2_full").replace("2d.cta_group::2.shared", "2d.shared", 1)
    assert len(lines(audit(text), "TMA-12")) == 1


# --- bytes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cluster", [2, 4, 8])
def test_bytes_scaled_by_the_cluster(cluster: int) -> None:
    """Two CTAs bring 2 x 128 x 64 x 2 bytes of A to their leader, whatever the cluster."""
    text = text_of("C7_ok").replace("reqnctapercluster 4", f"reqnctapercluster {cluster}")
    assert broken(text) == set()
    scaled = text.replace("[%r11], 32768;", f"[%r11], {128 * 64 * 2 * cluster};")
    assert broken(scaled) == ({"TMA-03"} if cluster > 2 else set())


BULK = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry bulk(.param .u64 from)
.reqntid 32, 1, 1
{{
	.reg .pred %p<2>;
	.reg .b32 %r<4>;
	.reg .b64 %rd<2>;
	.shared .align 128 .b8 tile[4096];
	.shared .align 8 .b64 full;
	mov.u32 %r0, %tid.x;
	mov.u32 %r1, full;
	mov.u32 %r2, tile;
	ld.param.u64 %rd0, [from];
	setp.ne.u32 %p0, %r0, 0;
	@%p0 bra wait;
	mbarrier.init.shared::cta.b64 [%r1], 1;
	fence.mbarrier_init.release.cluster;
	mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {expected};
	cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd0], 1024, [%r1];
	cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2+1024], [%rd0+1024], 1024, [%r1];
wait:
	bar.warp.sync 0xffffffff;
again:
	mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;
	@!%p1 bra again;
	ret;
}}
"""


@pytest.mark.parametrize(
    ("expected", "says"),
    [(1024, "completes before"), (2048, ""), (2064, "never completes"), (4096, "never completes")],
)
def test_bytes_of_copies_with_a_size(expected: int, says: str) -> None:
    found = [f for f in audit(BULK.format(expected=expected)).errors if f.rule == "TMA-03"]
    assert [f.span.line for f in found] == ([21] if says else [])
    assert all(says in f.message for f in found)


@pytest.mark.parametrize(("mask", "rank"), [(1, 1), (2, 0)])
def test_cta_that_no_mask_names(mask: int, rank: int) -> None:
    text = re.sub(r"(mov\.b16 	%rs\d, )3;", rf"\g<1>{mask};", text_of("TMA-04_ok"))
    found = [f for f in audit(text).errors if f.rule == "TMA-04"]
    assert found
    assert found[0].message.startswith(f"CTA {rank} expects 8192 bytes on full")


def test_masked_cta_that_expects_nothing() -> None:
    guarded = "setp.eq.u32 	%p5, %r6, 0;\n	@%p5 mbarrier.arrive.expect_tx"
    assert "TMA-04" in broken(changed("TMA-04_ok", "mbarrier.arrive.expect_tx", guarded))


# --- slots and peers --------------------------------------------------------------------------------


def test_refill_after_a_cluster_barrier() -> None:
    text = text_of("TMA-07_bad")
    first = "mov.b32 	%r41, 8192;"
    assert first in text
    synced = text.replace(
        first, f"barrier.cluster.arrive;\n	barrier.cluster.wait;\n	{first}", 1
    )
    assert len(lines(audit(synced), "TMA-07")) == len(lines(audit(text), "TMA-07")) - 1


def test_own_slot_needs_no_peer() -> None:
    """The local arrivals of TMA-08 are right where each CTA copies to itself."""
    text = re.sub(r"(mov\.b16 	%rs\d, )3;", r"\g<1>1;", text_of("TMA-08_bad"))
    assert "TMA-08" not in broken(text.replace("reqnctapercluster 2", "reqnctapercluster 1"))


def test_only_the_barrier_after_the_initialisation_counts() -> None:
    text = text_of("TMA-09_bad")
    early = "barrier.cluster.arrive.release.aligned;\n	barrier.cluster.wait.acquire.aligned;\n"
    before = text.replace(
        "	mov.u32 	%r2, %tid.x;\n", f"	mov.u32 	%r2, %tid.x;\n	{early}", 1
    )
    assert before != text
    assert "TMA-09" in broken(before)


def test_nobody_to_outlive_in_a_cluster_of_one() -> None:
    text = text_of("TMA-10_bad").replace("reqnctapercluster 2", "reqnctapercluster 1")
    assert "TMA-10" not in broken(text)


# --- out of shared memory ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "says"),
    [
        ("	fence.proxy.async.shared::cta;\n", "no fence.proxy.async between"),
        ("	fence.proxy.async.shared::cta;\n	bar.sync 0;\n", "no barrier between"),
        ("	cp.async.bulk.commit_group;\n", "never committed"),
        ("	cp.async.bulk.wait_group.read 0;\n", "wait_group after the bulk store"),
    ],
)
def test_each_step_of_a_store(old: str, says: str) -> None:
    found = [f for f in audit(changed("TMA-15_ok", old, "")).errors if f.rule == "TMA-15"]
    assert any(says in f.message for f in found)


def test_store_that_nobody_waits_for() -> None:
    text = re.sub(r"	cp\.async\.bulk\.wait_group.*\n", "", text_of("TMA-15_ok"))
    found = [f.message for f in audit(text).errors if f.rule == "TMA-15"]
    assert any("never waited for" in message for message in found)


# --- bulk groups ------------------------------------------------------------------------------------

TWO_TILES = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry two(.param .align 128 .b8 map[128], .param .u32 rounds)
.reqntid 128, 1, 1
{
	.reg .pred %p<4>;
	.reg .b32 %r<12>;
	.reg .b64 %rd<4>;
	.shared .align 1024 .b8 tiles[4096];
	mov.u32 %r0, %tid.x;
	ld.param.u32 %r1, [rounds];
	mov.u32 %r2, tiles;
	shl.b32 %r3, %r0, 4;
	setp.ne.u32 %p0, %r0, 0;
	mov.b64 %rd0, map;
	cvta.param.u64 %rd1, %rd0;
	mov.u32 %r5, 0;
again:
	@%p0 bra free;
	cp.async.bulk.wait_group.read 1;
free:
	bar.sync 0;
	shl.b32 %r6, %r5, 11;
	add.u32 %r7, %r2, %r6;
	add.u32 %r4, %r7, %r3;
	st.shared.v4.b32 [%r4], {%r1, %r1, %r1, %r1};
	fence.proxy.async.shared::cta;
	bar.sync 1;
	@%p0 bra sent;
	cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd1, {0, %r1}], [%r7];
	cp.async.bulk.commit_group;
sent:
	xor.b32 %r5, %r5, 1;
	sub.u32 %r1, %r1, 1;
	setp.ne.u32 %p1, %r1, 0;
	@%p1 bra again;
	@%p0 bra done;
	cp.async.bulk.wait_group.read 0;
done:
	ret;
}
"""
"""Two tiles in turn: a store may be under way while the other tile is written."""


@pytest.mark.parametrize(
    ("old", "new", "line", "severity", "says"),
    [
        ("read 1;", "read 2;", 28, "error", "no cp.async.bulk.wait_group after"),
        ("	bar.sync 0;", "", 28, "error", "no barrier behind the wait"),
        ("wait_group.read 0;", "wait_group.read 1;", 32, "warning", "on no way to the exit"),
        ("	@%p0 bra sent;\n", "	@!%p0 bra sent;\n", 28, "error", "no cp.async.bulk.wait_group"),
    ],
)  # fmt: skip
def test_groups_left_open(old: str, new: str, line: int, severity: str, says: str) -> None:
    assert old in TWO_TILES
    assert [f for f in audit(TWO_TILES).findings if f.rule == "TMA-15"] == []
    text = TWO_TILES.replace(old, new, 1)
    found = [f for f in audit(text).findings if f.rule == "TMA-15" and says in f.message]
    assert [(f.span.line, f.severity) for f in found][:1] == [(line, severity)]


def test_three_tiles_take_one_more_group() -> None:
    """What is not known to come back to the same tile is not judged."""
    text = TWO_TILES.replace("xor.b32 %r5, %r5, 1;", "add.u32 %r5, %r5, 1;").replace(
        "read 1;", "read 2;"
    )
    assert [f for f in audit(text).errors if f.rule == "TMA-15"] == []


def test_fence_behind_the_barrier() -> None:
    fence, meet = "	fence.proxy.async.shared::cta;\n", "	bar.sync 1;\n"
    text = TWO_TILES.replace(fence + meet, meet + fence)
    found = [f for f in audit(text).findings if f.rule == "TMA-15"]
    assert [(f.span.line, f.severity) for f in found] == [(32, "warning")]
    assert "behind the barrier" in found[0].message


def test_reduction_by_every_lane_is_added_as_often() -> None:
    reduce = "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"
    text = TWO_TILES.replace("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group", reduce)
    assert lines(audit(text), "TMA-15") == []
    everyone = text.replace("	@%p0 bra sent;\n", "").replace("	@%p0 bra free;\n", "")
    assert lines(audit(everyone), "TMA-15") == [31 - 1]


def warned(text: str) -> list[int]:
    return [f.span.line for f in audit(text).findings if f.rule == "TMA-15"]


def test_two_warps_that_read_their_tile_from_shared_memory_store_two_tiles() -> None:
    """Pingpong: the warps take tiles in turn, each from the response that it reads itself."""
    pair = "	and.b32 %r8, %r0, 32;\n	setp.ne.u32 %p0, %r8, 0;\n"
    both = TWO_TILES.replace("	setp.ne.u32 %p0, %r0, 0;\n", pair)
    store = next(i for i, line in enumerate(both.splitlines(), 1) if "bulk_group [" in line)
    assert warned(both) == [store]
    read = "	ld.shared.u32 %r9, [tiles];\n"
    own = both.replace("	@%p0 bra sent;\n", f"{read}	@%p0 bra sent;\n").replace(
        "{0, %r1}", "{0, %r9}"
    )
    assert warned(own) == []
