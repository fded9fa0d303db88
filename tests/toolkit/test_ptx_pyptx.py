"""Our parser against pyptx 0.1, which shares no code with it, on every file of the tests that pyptx reads.

Compared: each instruction's guard, opcode, modifiers and number of operands, in order. Kernels of other people's
compilers are compared in test_audit_peers.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pyptx_rows import both

peer = pytest.importorskip("pyptx.parser")

DATA = Path(__file__).parents[1] / "data"
FILES = [
    path for path in sorted([*DATA.glob("ptx/*.ptx"), *DATA.glob("rules/*.ptx")])
    if path.stem != "grammar"
]  # fmt: skip


@pytest.mark.toolkit
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_same_instructions_as_pyptx(path: Path) -> None:
    mine, theirs = both(path.read_text(encoding="utf-8"), peer.parse)
    assert len(mine) > 0
    assert mine == theirs
