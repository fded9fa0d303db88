"""Named barriers: how many threads are named, and how many come; the lines were read from the PTX by hand."""

from __future__ import annotations

import pytest

from audit_pairs import kernel_text, kernels, text_of
from tilewright.audit import audit_module
from tilewright.audit.kernel import Options
from tilewright.ptx import parse_ptx

FIRST, SECOND = "bar.sync %r3, %r4;", "bar.sync %r3, 128;"


def changed(old: str, new: str, text: str = "") -> str:
    text = text or text_of("BAR-01_ok")
    assert old in text
    return text.replace(old, new)


def said(text: str, options: Options | None = None) -> list[tuple[int, str]]:
    report = audit_module(parse_ptx(text), options)
    return [(f.span.line, f.message) for f in report.errors if f.rule == "BAR-01"]


def test_the_pair() -> None:
    ((line, message),) = said(text_of("BAR-01_bad"))
    assert line == 22
    assert message.startswith("deadlock: barrier 1 waits for 160 threads, and 128 threads")
    assert said(text_of("BAR-01_ok")) == []


@pytest.mark.parametrize("name", kernels())
def test_clean_twins_have_no_error(name: str) -> None:
    assert said(kernel_text(name)) == []


@pytest.mark.parametrize(
    ("count", "found"),
    [(32, False), (64, False), (96, True), (128, False), (160, True), (256, True)],
)
def test_counts(count: int, found: bool) -> None:
    """A divisor may be meant: groups that come in turn."""
    assert [line for line, _ in said(changed(SECOND, f"bar.sync %r3, {count};"))] == [22] * found
    assert [line for line, _ in said(changed("%r4, 128;", f"%r4, {count};"))] == [21] * found


def test_a_number_that_is_no_multiple_of_a_warp() -> None:
    ((line, message),) = said(changed(SECOND, "bar.sync %r3, 100;"))
    assert line == 22
    assert "multiple of 32" in message


def test_a_block_of_unknown_size_bounds_nothing() -> None:
    text = changed(".reqntid 288, 1, 1\n", "", changed(SECOND, "bar.sync %r3, 160;"))
    assert said(text) == []
    assert [line for line, _ in said(text, Options(block=(288, 1, 1)))] == [21]


def test_too_few_in_a_block_that_may_be_smaller_needs_a_twin() -> None:
    """Under .maxntid only the other site, which needs all 128, says that they come."""
    smaller = changed(".reqntid", ".maxntid")
    assert [line for line, _ in said(changed(SECOND, "bar.sync %r3, 96;", smaller))] == [22]
    both = changed(SECOND, "", changed("%r4, 128;", "%r4, 96;", smaller))
    assert said(both) == []


def test_warps_that_arrive_without_waiting_are_counted() -> None:
    """The warp apart arrives at both barriers: 160 is then right, 192 is not."""
    arrive = "done:\n	@!%p0 bra met;\n	bar.arrive 1, {0};\n	bar.arrive 2, {0};\nmet:"
    for count, expected in ((160, []), (192, [21])):
        text = changed("done:", arrive.format(count), changed(SECOND, ""))
        found = said(changed("%r4, 128;", f"%r4, {count};", text))
        assert [line for line, _ in found][:1] == expected


def test_a_barrier_number_that_is_not_known_may_be_any() -> None:
    text = changed(
        "done:\n", "done:\n	bar.sync %r1, 160;\n", changed(SECOND, "bar.sync %r3, 160;")
    )
    assert 22 not in [line for line, _ in said(text)]


def test_twin_behind_another_condition_says_nothing() -> None:
    """Whether the second meeting takes place depends on data: it does not say who comes to the first."""
    text = changed(".reqntid", ".maxntid", changed("%r4, 128;", "%r4, 96;"))
    text = changed(
        SECOND,
        "and.b32 %r5, %r1, 1;\n	setp.eq.u32 %p2, %r5, 0;\n	@%p2 bra odd;\n	"
        + SECOND
        + "\nodd:",
        text,
    )
    assert said(text) == []


def test_a_call_may_come_to_any_barrier() -> None:
    text = changed("done:\n", "done:\n	call helper;\n", text_of("BAR-01_bad"))
    text = text.replace(".visible .entry", ".extern .func helper();\n.visible .entry")
    assert said(text) == []
