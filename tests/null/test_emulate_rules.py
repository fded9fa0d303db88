"""The catalogue's kernels of launch control, barriers and clusters: the broken one fails, its clean twin passes.

What each broken kernel is found to do is the catalogue's "emulator verdict", in the words of the findings:
DEADLOCK and RESULT where the verdict is a hang or wrong data, otherwise the rule itself or the rule whose
break the catalogue describes (a phase that ends early shows as an answer that is read too early).
"""

from __future__ import annotations

import numpy as np
import pytest

from audit_pairs import pairs, text_of
from emulated_rules import explorer_of, sent_by_neighbours
from tilewright.emulate import NotModelled, prepare
from tilewright.errors import BadInput

VERDICTS = {
    "BAR-01": {"DEADLOCK"},
    "C5": {"DEADLOCK"},
    "C8": {"CLU-02"},
    "C13": {"CLC-09"},
    "C14": {"DEADLOCK"},
    "C24": {"CLC-07"},
    "CLC-01": {"CLC-01"},
    "CLC-02": {"CLC-02"},
    "CLC-03": {"DEADLOCK"},
    "CLC-04": {"DEADLOCK"},
    "CLC-04b": {"CLC-06"},
    "CLC-04c": {"DEADLOCK"},
    "CLC-05": {"DEADLOCK"},
    "CLC-06": {"CLC-06"},
    "CLC-06b": {"CLC-06"},
    "CLC-06c": {"CLC-06"},
    "CLC-07": {"CLC-07"},
    "CLC-08": {"CLC-08"},
    "CLC-08b": {"CLC-08"},
    "CLC-09": {"CLC-09"},
    "CLC-10": {"CLC-10"},
    "CLC-11": {"CLC-11"},
    "CLC-11b": {"MBAR-05"},
    "CLC-12": {"RESULT"},
    "CLC-13": {"CLC-13"},
    "CLC-14": {"CLC-14"},
    "CLC-15": {"CLC-15"},
    "CLC-15b": {"CLC-15"},
    "CLC-15c": {"CLC-15"},
    "CLC-16": {"CLC-16"},
    "CLC-17": {"RESULT"},
    "CLC-18": {"DEADLOCK"},
    "CLC-20": {"RESULT"},
    "CLU-01": {"CLU-01"},
    "CLU-02": {"CLU-02"},
    "CLU-03": {"CLU-03"},
    "CLU-04": {"CLU-04"},
    "CLU-05": {"CLU-05"},
    "CLU-06": {"CLU-06"},
    "CLU-07": {"RESULT"},
    "CLU-08": {"CLU-08"},
    "CLU-09": {"CLU-09"},
    "CLU-09b": {"CLU-09"},
    "CLU-10": {"CLU-10"},
    "CLU-11": {"CLU-11"},
    "CLU-12": {"CLU-12"},
    "CLU-13": {"CLU-06"},
    "CLU-16": {"TMA-05"},
    "EL-01": {"EL-01"},
    "MBAR-01": {"MBAR-01"},
    "MBAR-02": {"MBAR-02"},
    "MBAR-03": {"DEADLOCK"},
    "MBAR-04": {"MBAR-04"},
    "MBAR-05": {"MBAR-05"},
    "MBAR-06": {"EXIT"},
    "MBAR-07": {"CLC-06", "DEADLOCK"},
    "MBAR-07b": {"CLC-06", "DEADLOCK"},
    "MBAR-09": {"MBAR-09"},
    "MBAR-10": {"MBAR-10"},
    "MBAR-11": {"MBAR-11"},
    "MBAR-13": {"MBAR-13"},
    "MBAR-14": {"MBAR-14"},
    "PDL-01": {"PDL-01"},
}
WARNED = {"CLC-09b": "CLC-09", "MBAR-12": "MBAR-12"}
"""Pairs whose rule the catalogue calls a warning."""

NOT_SHOWN = {
    "CLC-19": "what a target has: static",
    "CLU-14": "a launch that is refused: a test of its own",
    "CLU-15": "speed, not results",
    "MBAR-08": "a scope that nothing rests on: nobody reads what the copy brings",
    "MBAR-15": "a wait that gave up, with nothing behind it that could go wrong",
}
RACES_ALREADY = {"CLU-13_ok", "CLU-15_ok", "MBAR-09_ok", "MBAR-10_ok", "PDL-01_ok"}
"""Twins whose threads write one word without order: their own business, not that of the rule."""

HANGS = ("CLC-08b_ok", "CLC-15_ok", "CLC-15b_ok", "CLC-16_ok")
"""One kernel under four names, whose consumer cannot take a grant behind a decline: see its test."""

MINE = sorted({*VERDICTS, *WARNED, *NOT_SHOWN})


def test_every_pair_of_these_families_is_here() -> None:
    families = ("BAR", "C", "EL", "MBAR", "PDL")
    tensor = {"C6", "C7"}  # test_emulate_tensor_pairs.py
    found = {case for case in pairs() if case.startswith(families)}
    assert found - tensor == set(MINE)


@pytest.mark.parametrize("pair", sorted(VERDICTS))
def test_the_broken_kernel_fails(pair: str) -> None:
    explorer = explorer_of(f"{pair}_bad")
    rules: set[str] = set()
    for seed in range(12):
        rules |= {found.rule for found in explorer.run(seed).errors}
        if VERDICTS[pair] <= rules or (pair.startswith("MBAR-07") and rules & VERDICTS[pair]):
            return
    raise AssertionError(f"{pair}: found {sorted(rules)}, not {sorted(VERDICTS[pair])}")


@pytest.mark.parametrize("pair", sorted(WARNED))
def test_the_broken_kernel_is_warned_of(pair: str) -> None:
    report = explorer_of(f"{pair}_bad").explore(6)
    assert report.verdict == "pass"
    assert WARNED[pair] in {found.rule for found in report.findings}


@pytest.mark.parametrize("pair", MINE)
def test_the_clean_twin_passes(pair: str) -> None:
    explorer = explorer_of(f"{pair}_ok")
    report = explorer.explore(1 if f"{pair}_ok" in HANGS else 5, stop_at_failure=False)
    broken = {
        (found.rule, found.span.line, found.message)
        for found in report.findings
        if found.severity == "error"
        and not (f"{pair}_ok" in RACES_ALREADY and found.rule in {"RACE", "CLU-03"})
    }
    assert broken == set()


@pytest.mark.parametrize("pair", ["C5", "C8", "C13", "C14", "C24", "CLU-01", "CLU-02"])
def test_the_clean_twin_passes_a_thousand_schedules(pair: str) -> None:
    """Of the public bug reports, and of shared memory that a peer touches before its CTA started or after it left."""
    report = explorer_of(f"{pair}_ok").explore(1000)
    assert (report.verdict, len(report.outcomes)) == ("pass", 1000)
    assert not [found for found in report.findings if found.severity == "error"]


def test_a_declined_answer_is_told_with_its_request() -> None:
    lines = text_of("C24_bad").splitlines()
    (found,) = (each for each in explorer_of("C24_bad").run(0).errors if each.rule == "CLC-07")
    assert "get_first_ctaid" in lines[found.span.line - 1]
    assert found.other is not None
    assert "try_cancel" in lines[found.other.line - 1]


@pytest.mark.parametrize("name", HANGS)
def test_a_grant_behind_a_decline_hangs_the_pipelined_loop(name: str) -> None:
    """Found by the emulator in a kernel that the catalogue calls clean. Two requests are in flight; the first
    is declined, the second granted (early declines, or the two decided the other way round). The consumer then
    has counted down to nothing left, but goes round once more because the last answer was a grant."""
    explorer = explorer_of(name)
    explorer.decline_at, explorer.resident = frozenset({1}), 3
    report = explorer.explore(16)
    assert {found.rule for found in report.findings if found.severity == "error"} == {"DEADLOCK"}


def test_what_is_sent_is_as_the_source_says() -> None:
    assert sent_by_neighbours(4, 1)[:3].tolist() == [300.0, 301.0, 302.0]
    assert sent_by_neighbours(4, 2)[32 * 5 : 32 * 5 + 2].tolist() == [0.0, 1.0]


def test_a_cluster_beyond_what_hardware_takes_is_refused() -> None:
    with pytest.raises(BadInput, match="32 CTAs"):
        prepare(text_of("CLU-14_bad"), grid=32, args=[np.zeros(4, np.uint32)])


def test_a_schedule_is_replayed_by_its_decisions() -> None:
    explorer = explorer_of("CLC-14_bad")
    report = explorer.explore(8)
    failing = report.failing
    assert failing is not None
    again = explorer.replay(failing)
    assert again.findings == failing.findings
    assert again.picks == failing.picks
    assert explorer.run(failing.seed).findings == failing.findings


def test_a_failure_shrinks_to_the_same_failure() -> None:
    explorer = explorer_of("CLC-15c_bad")
    failing = explorer.explore(8).failing
    assert failing is not None
    small = explorer.shrink(failing)
    assert small.errors[0].rule == failing.errors[0].rule
    assert sum(map(bool, small.picks)) <= sum(map(bool, failing.picks))
    assert explorer.replay(small).errors == small.errors


def test_an_instruction_that_nobody_knows_stops_with_its_line() -> None:
    text = text_of("MBAR-03_ok")
    with pytest.raises(NotModelled, match=r"`frobnicate\.b32`") as stopped:
        prepare(text.replace("bar.sync 0;", "frobnicate.b32 %r1, %r1;"), grid=1, args=[np.zeros(9)])
    assert stopped.value.span.line == text[: text.index("bar.sync 0;")].count("\n") + 1


def test_schedules_beside_one_another_find_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    explorer = explorer_of("CLC-03_ok")
    beside = explorer.explore(6, processes=2)
    alone = explorer.explore(6)
    assert [o.picks for o in beside.outcomes] == [o.picks for o in alone.outcomes]
    assert capfd.readouterr().err == ""
