"""Rules of wgmma: a pair each, differing by one bug; the lines were read from the PTX by hand."""

from __future__ import annotations

import pytest

from audit_pairs import kernel_text, kernels, text_of
from tilewright.audit import Report, audit_module
from tilewright.ptx import parse_ptx


def audit(text: str) -> Report:
    return audit_module(parse_ptx(text))


def lines(text: str, rule: str) -> list[int]:
    return [f.span.line for f in audit(text).errors if f.rule == rule]


def broken(text: str) -> set[str]:
    return {f.rule for f in audit(text).errors if f.rule.startswith("WG")}


@pytest.mark.parametrize("name", kernels())
def test_clean_kernels_have_no_error(name: str) -> None:
    assert broken(kernel_text(name)) == set()


FENCE = "	wgmma.fence.sync.aligned;\n"
COMMIT = "	wgmma.commit_group.sync.aligned;\n"
WAIT = "	wgmma.wait_group.sync.aligned 0;\n"


def test_one_fence_missing_of_three() -> None:
    """The second batch follows the first, which is fenced, and nothing touches the registers between."""
    first, second, third = (text_of("gemm_wgmma_full").split(FENCE, 3)[i] for i in range(3))
    rest = text_of("gemm_wgmma_full").split(FENCE, 3)[3]
    assert broken(first + FENCE + second + third + FENCE + rest) == set()
    assert "WG-01" in broken(first + FENCE + second + FENCE + third + rest)


def test_registers_touched_after_the_fence() -> None:
    text = text_of("WG-03_ok").replace(FENCE, FENCE + "	add.f32 %f2, %f2, %f2;\n")
    assert lines(text, "WG-01") == [69]


def test_registers_touched_before_the_fence() -> None:
    text = text_of("WG-03_ok").replace(FENCE, "	add.f32 %f2, %f2, %f2;\n" + FENCE)
    assert "WG-01" not in broken(text)


def test_no_commit() -> None:
    assert lines(text_of("WG-03_ok").replace(COMMIT, ""), "WG-02") == [69]


def test_commit_after_the_wait() -> None:
    assert "WG-02" in broken(text_of("WG-03_ok").replace(COMMIT + WAIT, WAIT + COMMIT))


def test_release_before_the_wait_in_a_whole_gemm() -> None:
    text = text_of("gemm_wgmma_full").replace(WAIT, "")
    assert "WG-03" in broken(text)


@pytest.mark.parametrize("target", ["sm_90", "sm_100a"])
def test_other_targets(target: str) -> None:
    assert lines(text_of("WG-06_ok").replace(".target sm_90a", f".target {target}"), "WG-06") == [
        67
    ]


@pytest.mark.parametrize(("first", "found"), [(32, True), (96, True), (128, False)])
def test_part_of_a_warpgroup(first: int, found: bool) -> None:
    text = text_of("WG-06_ok").replace("%r0, 128;", f"%r0, {first};")
    assert ("WG-06" in broken(text)) is found
