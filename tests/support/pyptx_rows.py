"""Instructions of a PTX text as our parser and pyptx 0.1 read them, one row each, to be compared.

pyptx knows neither a `.ptr` without a state space nor `.attribute`; both are cut from the text before either parser
sees it. It also loses the indirect call that follows a `.callprototype`, so calls through a prototype are left out.
"""

from __future__ import annotations

import re
from typing import Any

from tilewright.ptx import parse_ptx

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


def both(text: str, parse: Any) -> tuple[list[Row], list[Row]]:
    """Our rows and theirs; `parse` is pyptx's."""
    cut = re.sub(r"\.ptr \.align \d+ |\.attribute\(\.managed\) ", "", text)
    return ours(cut), theirs(parse(cut).directives)
