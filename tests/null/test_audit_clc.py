"""Rules of cluster launch control: every pair of the catalogue, the recorded cases, and edits of clean kernels.

Lines are those of the PTX, read by hand. `LOOP` is the hand-written clean kernel that most edits start from.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from audit_pairs import kernel_text, kernels, pairs, text_of
from tilewright.audit import audit_module
from tilewright.audit.kernel import Options
from tilewright.ptx import parse_ptx

if TYPE_CHECKING:
    from tilewright.ptx.finding import Finding


LOOP, OWN, PIPE = "CLC-03_ok", "C5_ok", "CLC-15_ok"


def clc(text: str, options: Options | None = None) -> list[Finding]:
    report = audit_module(parse_ptx(text), options)
    return [found for found in report.findings if found.rule.startswith("CLC-")]


def said(text: str, options: Options | None = None) -> list[tuple[str, str, int]]:
    return [(f.rule, f.severity, f.span.line) for f in clc(text, options)]


def edited(name: str, *edits: tuple[str, str]) -> str:
    text = text_of(name)
    for old, new in edits:
        assert text.count(old) >= 1, old
        text = text.replace(old, new)
    return text


CASES = [name for name, pair in pairs().items() if pair.case.rule.startswith("CLC-")]


@pytest.mark.parametrize("name", CASES)
def test_nothing_else_is_said_of_a_case(name: str) -> None:
    case = pairs()[name].case
    assert {rule for rule, _, _ in said(text_of(f"{name}_bad"))} <= {e.rule for e in case.expected}


@pytest.mark.parametrize("name", CASES)
def test_the_good_one_is_clean(name: str) -> None:
    report = audit_module(parse_ptx(text_of(f"{name}_ok")))
    assert said(text_of(f"{name}_ok")) == []
    assert [n for n in report.not_decided if n.rule.startswith("CLC-")] == []


@pytest.mark.parametrize("name", kernels())
def test_clean_kernels_of_all_families(name: str) -> None:
    assert clc(kernel_text(name)) == []


# --- strictness and the version of the text -------------------------------------------------------

STRICT = Options(strict=True)
OLDER = Options(ptx_isa=(9, 0))
RELEASE = "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;"
ACQUIRE = "\tfence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;\n"


@pytest.mark.parametrize("name", ["CLC-07", "CLC-09b"])
def test_what_shipping_code_does_is_an_error_when_strict(name: str) -> None:
    assert {severity for _, severity, _ in said(text_of(f"{name}_bad"), STRICT)} == {"error"}


def test_a_fence_of_the_readers_alone_is_what_the_older_text_shows() -> None:
    readers_only = edited(LOOP, (RELEASE, "fence.proxy.async.shared::cta;"), (ACQUIRE, ""))
    assert said(readers_only, OLDER) == []
    assert said(readers_only) == [("CLC-09", "warning", 49)]
    assert said(readers_only, STRICT) == [("CLC-09", "error", 49)]


def test_half_of_the_newer_pair_is_not_the_older_form() -> None:
    assert said(edited(LOOP, (ACQUIRE, "")), OLDER) == [("CLC-09", "warning", 49)]


def test_a_fence_for_global_memory_orders_nothing_here() -> None:
    assert ("CLC-09", "error") in {
        each[:2] for each in said(edited(LOOP, (RELEASE, "fence.proxy.async.global;")))
    }


# --- edits that break one rule ----------------------------------------------------------------------

REQUEST = "multicast::cluster::all.b128 [%r3], [%r4];"
REMOTE_ARM = "\tmbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%r9], 16;\n"
RECEIVE = "RECEIVE:\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p4, [%r4], %r11;\n\t@!%p4 bra \tRECEIVE;\n"
EMPTY = "EMPTY:\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p4, [%r5], %r7;\n\t@!%p4 bra \tEMPTY;\n"
SYNC = "\tbarrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;\n"
QUERY = (
    "@%p7 clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r14, %r15, %r16, _}, %h1;"
)
REMOTE_RELEASE = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12];"

BREAKS = [
    ("CLC-01", "error", LOOP, [(".align 16 .b8 response[16]", ".align 16 .b8 response[8]")]),
    ("CLC-01", "warning", LOOP, [(".align 16 .b8 response", ".align 8 .b8 response")]),
    ("CLC-01", "error", LOOP, [("%r3, response;", "%r3, response+4;")]),
    ("CLC-01", "error", LOOP, [("%r3, response;", "%r3, full;")]),
    ("CLC-02", "error", LOOP, [(REQUEST, REQUEST.replace("[%r4]", "[%r9]"))]),
    ("CLC-03", "error", OWN, [("@%p0 bra \tARM", "@%p0 bra \tANSWER")]),
    ("CLC-03", "error", LOOP, [("%r9, %r4, 1;", "%r9, %r4, 0;")]),
    ("CLC-04", "error", LOOP, [("_, [%r4], 16;", "_, [%r4], 48;")]),
    ("CLC-04", "error", OWN, [("_, [%r4], 16;", "_, [%r4], 4;")]),
    ("CLC-04", "error", OWN, [("arrive.expect_tx.relaxed", "arrive.relaxed"), ("[%r4], 16;", "[%r4];")]),
    ("CLC-05", "error", LOOP, [(".multicast::cluster::all", "")]),
    ("CLC-06", "error", LOOP, [(RECEIVE, "RECEIVE:\n")]),
    ("CLC-06", "error", LOOP, [("@!%p4 bra \tRECEIVE;", "")]),
    ("CLC-06", "error", LOOP, [(RECEIVE, "RECEIVE:\n\tbarrier.cta.sync 1, 32;\n")]),
    ("CLC-07", "warning", LOOP, [(QUERY, QUERY.removeprefix("@%p7 "))]),
    ("CLC-07", "error", LOOP, [("%r16, _}", "%r16, %r18}"), ("%r10, %r14, %r17", "%r10, %r18, %r17")]),
    ("CLC-08", "error", LOOP, [("@%p5 bra \tASK", "@!%p5 bra \tASK")]),
    ("CLC-08", "error", LOOP, [("@%p5 bra \tASK;\n\tbra.uni \tDONE;", "bra.uni \tASK;")]),
    ("CLC-09", "error", LOOP, [(RELEASE, ""), (ACQUIRE, "")]),
    ("CLC-09", "error", PIPE, [(RELEASE, "")]),
    ("CLC-10", "error", LOOP, [(f"SYNC:\n{SYNC}", "SYNC:\n\tbar.sync \t0;\n")]),
    ("CLC-11", "error", OWN, [("\t@%p0 bra \tANSWER;\n", "")]),
    ("CLC-12", "error", LOOP, [("add.s32 \t%r10, %r14, %r17", "mov.u32 \t%r10, %r14")]),
    ("CLC-14", "error", LOOP, [(EMPTY, "EMPTY:\n")]),
    ("CLC-14", "error", LOOP, [(REMOTE_RELEASE, REMOTE_RELEASE.replace("release", "relaxed")), (RELEASE, "")]),
    ("CLC-15", "error", PIPE, [("bar.warp.sync \t-1;", "")]),
    ("CLC-16", "error", LOOP, [(f"DONE:\n{SYNC}", "DONE:\n")]),
    ("CLC-17", "error", LOOP, [("add.s32 \t%r10, %r14, %r17", "add.s32 \t%r10, %r10, %r17")]),
    ("CLC-17", "error", LOOP, [(f"\t{QUERY}\n", "")]),
    ("CLC-18", "error", "CLC-18_ok", [("[%r4], %r8;", "[%r19], %r8;"), ("[%r4], %r11;", "[%r19], %r11;")]),
    ("CLC-18", "error", "CLC-18_ok", [("_, [%r4], 16;", "_, [%r19], 16;"), ("%r9, %r4, 1;", "%r9, %r19, 1;")]),
    ("CLC-19", "error", LOOP, [("sm_100a", "sm_100")]),
    ("CLC-19", "error", LOOP, [("sm_100a", "sm_90a")]),
    ("CLC-19", "error", LOOP, [(".version 9.0", ".version 8.5")]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "severity", "name", "edits"),
    BREAKS,
    ids=[f"{rule}-{i}" for i, (rule, *_) in enumerate(BREAKS)],
)
def test_an_edit_breaks_the_rule(
    rule: str, severity: str, name: str, edits: list[tuple[str, str]]
) -> None:
    assert (rule, severity) in {each[:2] for each in said(edited(name, *edits))}


# --- edits that break none --------------------------------------------------------------------------

PEEK = """	mbarrier.test_wait.parity.acquire.cluster.shared::cta.b64 %p4, [%r4], %r11;
	selp.u32 	%r20, 1, 0, %p4;
	setp.eq.u32 	%p4, %r20, 1;
	@%p4 bra 	SEEN;
RECEIVE2:
	mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p4, [%r4], %r11;
	@!%p4 bra 	RECEIVE2;
SEEN:
"""
FLAG = """	selp.u32 	%r21, 1, 0, %p5;
	and.b32 	%r22, %r21, 255;
	setp.eq.s32 	%p3, %r22, 0;
	@%p3 bra 	DONE;
	bra.uni 	ASK;
"""

KEEPS = [
    (LOOP, [(RELEASE, "fence.proxy.async;")]),
    (LOOP, [(ACQUIRE, "\tfence.proxy.async;\n")]),
    (LOOP, [(REMOTE_RELEASE, REMOTE_RELEASE.replace("release", "relaxed"))]),
    (LOOP, [("RECEIVE:\n\tmbarrier.try_wait.parity.acquire.cluster", "RECEIVE:\n\tmbarrier.try_wait.parity")]),
    (LOOP, [(RECEIVE, f"RECEIVE:\n{PEEK}")]),
    (LOOP, [("\t@%p5 bra \tASK;\n\tbra.uni \tDONE;\n", FLAG)]),
    (LOOP, [("ld.shared.b128 \t%h1, [%r3];", "ld.shared.v2.b64 \t{%rd5, %rd6}, [%r3];\n\tmov.b128 \t%h1, {%rd5, %rd6};")]),
    (LOOP, [("sm_100a", "sm_120a")]),
    (LOOP, [("mapa.shared::cluster.u32 \t%r12, %r5, 0;", "and.b32 \t%r12, %r5, 0xFEFFFFFF;")]),
    (LOOP, [(".reqnctapercluster 2, 1, 1", ".reqnctapercluster 1, 1, 1"), (REMOTE_ARM, "")]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "edits"), KEEPS, ids=range(len(KEEPS)))
def test_an_edit_that_keeps_the_contract(name: str, edits: list[tuple[str, str]]) -> None:
    assert said(edited(name, *edits)) == []


def test_peers_may_arm_after_the_leader_has_asked() -> None:
    """The transaction count may be negative for a while; it is no error."""
    assert "@%p0 bra \tARM" in text_of(OWN)
    assert said(text_of(OWN)) == []


def test_without_cluster_facts_nothing_is_said_of_other_ctas() -> None:
    unknown = re.sub(r"\.reqnctapercluster.*\n", "", text_of("CLC-03_bad"))
    assert said(unknown) == []
    assert said(unknown, Options(cluster=(2, 1, 1))) == [("CLC-03", "error", 48)]


def test_one_thread_of_an_unknown_number_of_warps_is_not_judged() -> None:
    elected = (
        "\tor.b32 \t%r6, %r1, %r2;\n\tsetp.ne.u32 \t%p3, %r6, 0;",
        "\telect.sync \t_|%p0, 0xffffffff;\n\tsetp.ne.u32 \t%p3, %r2, 0;\n\t@!%p0 bra \tDONE;",
    )
    everyone = ("\t@%p2 bra \tWORKER;\n", "")
    text = edited(LOOP, elected, everyone)
    assert "CLC-11" not in {rule for rule, *_ in said(text)}
    assert "CLC-11" in {rule for rule, *_ in said(text, Options(block=(64, 1, 1)))}


def test_a_relaxed_wait_with_an_acquiring_fence_is_a_wait() -> None:
    relaxed = edited(
        "CLC-06b_bad",
        ("\tld.shared.b128 \t%h1", "\tfence.acq_rel.cluster;\n\tld.shared.b128 \t%h1"),
    )
    assert said(relaxed) == []


def test_a_finding_names_the_other_place_and_why() -> None:
    found = clc(text_of("C5_bad"))[0]
    assert "rank 1" in found.message
    assert "hang" in found.message
    assert found.other is not None
    assert found.other.line == 48


def test_a_response_read_where_no_request_writes() -> None:
    text = edited("CLC-06_ok", ("ld.shared.b128 h,[%r24];", "ld.shared.b128 h,[%r24+64];"))
    found = [f for f in clc(text) if f.rule == "CLC-06"]
    assert [f.span.line for f in found] == [83]
    assert "no request writes" in found[0].message
