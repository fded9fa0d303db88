"""Peers' shared memory before they start and after they leave: CLU-01 and CLU-02 of the catalogue, one cluster each.

The violating ones fail in every schedule, with both places and the way there; test_emulate_rules.py runs the clean twins.
"""

from __future__ import annotations

import numpy as np
import pytest

from audit_pairs import text_of
from emulated_rules import cluster_size
from tilewright.emulate import prepare
from tilewright.emulate.explore import Explorer


def explorer(name: str) -> Explorer:
    text = text_of(name)
    ctas = cluster_size(text)
    return Explorer(prepare(text, grid=ctas, args=[np.zeros(32 * ctas, np.uint32)]))


def line_of(text: str, words: str, place: int = 0) -> int:
    lines = [number for number, line in enumerate(text.splitlines(), 1) if words in line]
    return lines[place]


@pytest.mark.parametrize(
    ("pair", "there", "says"),
    [("CLU-01", "ld.param", "where it starts"), ("CLU-02", "ret;", "it leaves here")],
)
def test_the_violating_kernel_fails_in_every_schedule_with_both_lines(
    pair: str, there: str, says: str
) -> None:
    text = text_of(f"{pair}_bad")
    access = line_of(text, "st.shared::cluster")
    places = {line_of(text, there)}
    checked = explorer(f"{pair}_bad")
    for seed in range(20):
        outcome = checked.run(seed)
        found = [each for each in outcome.errors if each.rule == pair]
        assert found, f"{pair} is not found under seed {seed}"
        assert {(each.span.line, each.other_says) for each in found} == {(access, says)}
        assert {each.other.line for each in found if each.other is not None} == places
        assert outcome.trace, "the steps that led there"
