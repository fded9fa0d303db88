"""Kernels of other people's packages on the CPU: compiled as they ship, launched as their own launchers do, held against float64.

Every finding is one that docs/emulate_peers.md explains, line by line; `python bench/write_emulated_peers.py` writes its
tables anew. TILEWRIGHT_SCHEDULES sets the schedules of each kernel; 2 by default.
"""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

import pytest

from emulated_peers import DOC, listed, read_peer
from peer_cases import LANE_0_RELEASES, make
from peer_kernels import PACKAGES, SCALED, compile_peers, explained
from tilewright.emulate import NotModelled, prepare

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.toolkit,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in PACKAGES),
        reason="install the dependency group `peers`",
    ),
]

SCHEDULES = int(os.environ.get("TILEWRIGHT_SCHEDULES", "2"))
TEXT = DOC.read_text(encoding="utf-8")
KERNELS = listed(TEXT)
EXPLAINED = set(dict(explained(TEXT)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("peers")
    compile_peers(made)
    return made


def need_launch(folder: Path, name: str) -> None:
    if read_peer(folder, name)[1] is None:
        pytest.skip("no C compiler (CC, or cc) to record the launches of quack's host code")


def test_every_kernel_is_listed(folder: Path) -> None:
    assert sorted(path.stem for path in folder.glob("*.ptx")) == sorted(KERNELS)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_gives_the_right_result(folder: Path, name: str) -> None:
    need_launch(folder, name)
    for seed in range(SCHEDULES):
        peer = make(folder, name)
        outcome = peer.run(seed, elects_first=name in LANE_0_RELEASES)
        assert outcome.ended, outcome.findings[-1].message
        peer.check()
        found = {(name, each.rule, each.span.line) for each in outcome.findings}
        assert found <= EXPLAINED


@pytest.mark.parametrize("name", sorted(LANE_0_RELEASES))
def test_a_release_by_lane_0_hangs_where_another_is_elected(folder: Path, name: str) -> None:
    need_launch(folder, name)
    outcome = make(folder, name).run(1)
    assert not outcome.ended
    assert outcome.findings[-1].rule == "DEADLOCK"
    assert (name, "DEADLOCK", outcome.findings[-1].span.line) in EXPLAINED


def test_what_is_left_out_stops_with_its_name_and_line(tmp_path: Path) -> None:
    kernels = compile_peers(tmp_path, SCALED)
    assert len(kernels) == 2
    for name, ptx in kernels.items():
        with pytest.raises(NotModelled) as stopped:
            prepare(ptx, grid=1, args=[])
        line = stopped.value.span.line
        opcode = ptx.splitlines()[line - 1].split()
        (instruction,) = (word for word in opcode if word.startswith("tcgen05.mma"))
        assert str(stopped.value) == f"<ptx>:{line}:2: `{instruction}` is not emulated"
        assert f"| {name} | `{instruction}` |" in TEXT
