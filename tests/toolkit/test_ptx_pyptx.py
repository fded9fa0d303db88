"""Our parser against pyptx 0.1, which shares no code with it, on every file that pyptx reads.

Compared: each instruction's guard, opcode, modifiers and number of operands, in order. pyptx knows neither a
`.ptr` without a state space nor `.attribute`; both are cut from the text before either parser sees it. It also loses
the indirect call that follows a `.callprototype`, so calls through a prototype are left out of the comparison.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tilewright.ptx import parse_ptx

peer = pytest.importorskip("pyptx.parser")

DATA = Path(__file__).parents[1] / "data" / "ptx"
FILES = [path for path in sorted(DATA.glob("*.ptx")) if path.stem != "grammar"]

Row = tuple[str, bool, str, int]


def ours(text: str) -> list[Row]:
    rows = []
    for function in parse_ptx(text).functions:
        for item in function.instructions():
            if str(item.opcode) == "call" and len(item.operands) == 4:
                continue
            guard, negated = "", False
            if item.guard is not None:
                guard, negated = getattr(item.guard.predicate, "name", ""), item.guard.negated
            rows.append((guard, negated, str(item.opcode), len(item.operands)))
    return rows


def theirs(statements: Any) -> list[Row]:
    rows = []
    for item in statements:
        body = getattr(item, "body", None)
        if body is not None:
            rows += theirs(body)
        elif (
            hasattr(item, "opcode") and item.opcode[0].isalpha()
        ):  # neither `.loc` nor the braces of a section
            guard = item.predicate
            name, negated = ("", False) if guard is None else (guard.register, guard.negated)
            opcode = item.opcode + "".join(item.modifiers)
            rows.append((name, negated, opcode, len(item.operands)))
    return rows


@pytest.mark.toolkit
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_same_instructions_as_pyptx(path: Path) -> None:
    text = re.sub(r"\.ptr \.align \d+ |\.attribute\(\.managed\) ", "", path.read_text())
    mine = ours(text)
    assert len(mine) > 0
    assert mine == theirs(peer.parse(text).directives)
