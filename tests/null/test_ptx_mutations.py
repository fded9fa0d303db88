"""No text hangs or crashes the parser: it parses, or it raises the one error.

300 examples a test by default. The long run, 10,000 each:
    TILEWRIGHT_PTX_EXAMPLES=10000 python -m pytest tests/null/test_ptx_mutations.py
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from hypothesis import HealthCheck, given, settings, strategies as st

from tilewright.ptx import PtxSyntaxError, parse_ptx, print_operand, print_ptx
from tilewright.ptx.cursor import Cursor
from tilewright.ptx.nodes import (
    Binary,
    Conditional,
    Float,
    Instruction,
    Integer,
    Memory,
    Module,
    Name,
    Operand,
    Sink,
    Unary,
    Vector,
)
from tilewright.ptx.parser import _module
from tilewright.ptx.source import Source
from tilewright.ptx.tokens import tokenize

DATA = Path(__file__).parents[1] / "data" / "ptx"
NAMES = ("grammar.ptx", "corners_sm100a.ptx", "CLC-01_ok.ptx", "TMA-02_ok.ptx")
TEXTS = [(DATA / name).read_text() for name in NAMES]
BITS = [text[start : start + 600] for text in TEXTS for start in range(0, len(text), 600)]
SPLICES = (
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ";",
    ",",
    "@",
    "!",
    '"',
    "/*",
    "//",
    "|",
    "<",
    "=",
    ":",
    "\n\t",
    "\x00",
    "é",
)

long_run = settings(
    max_examples=int(os.environ.get("TILEWRIGHT_PTX_EXAMPLES", "300")),
    deadline=2000,  # milliseconds: a hang is a failure
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def plain_tree(text: str) -> Module | str:
    try:
        return _module(Cursor(tokenize(Source("<ptx>", text))))
    except PtxSyntaxError as error:
        return str(error)


def check(text: str) -> None:
    """Parses to something that prints and parses again, or raises an error that points into the text."""
    plain = plain_tree(text)
    fast: Module | PtxSyntaxError
    try:
        fast = parse_ptx(text)
    except PtxSyntaxError as error:
        fast = error
    if isinstance(fast, PtxSyntaxError):
        assert 0 <= fast.span.offset <= len(text)
        assert fast.span.line >= 1
        assert str(fast) == plain
    else:
        assert fast == plain
        assert parse_ptx(print_ptx(fast)) == fast


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A file with up to six of its pieces cut, doubled, moved, or overwritten."""
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 40)))
        new = draw(
            st.one_of(
                st.just(""),
                st.just(text[start:end] * 2),
                st.sampled_from(SPLICES),
                st.sampled_from(BITS),
                st.text(max_size=5),
            )
        )
        text = text[:start] + new + text[end:]
    return text


@long_run
@given(mutated())
def test_mutated_files_parse_or_raise_the_one_error(text: str) -> None:
    check(text)


@long_run
@given(st.data())
def test_shuffled_tokens_parse_or_raise_the_one_error(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(BITS))
    words = re.findall(r"\s+|\w+|\S", text)
    check(".entry k {\n\t" + "".join(data.draw(st.permutations(words))) + "\n}")


names = st.sampled_from(["a", "%r1", "%tid.x", "$L__BB0_1", "_x"]).map(
    lambda text: Name(*text.split("."))
)
atoms = st.one_of(
    names,
    st.integers(0, 2**64 - 1).map(lambda value: Integer(value, str(value) if value else "0")),
    st.integers(0, 2**32 - 1).map(lambda value: Integer(value, hex(value))),
    st.integers(0, 2**32 - 1).map(lambda value: Float(f"0f{value:08X}")),
)
expressions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds(Unary, st.sampled_from("-+!~"), inner),
        st.builds(
            Binary, st.sampled_from(["+", "-", "*", "/", "<<", "&&", "==", "^"]), inner, inner
        ),
        st.builds(Conditional, inner, inner, inner),
    ),
    max_leaves=8,
)
operands = st.recursive(
    st.one_of(expressions, st.just(Sink())),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda parts: Vector(tuple(parts))),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: Memory(tuple(parts))),
    ),
    max_leaves=8,
)


@long_run
@given(operands)
def test_a_printed_operand_parses_to_itself(operand: Operand) -> None:
    body = parse_ptx(f".entry k\n{{\n\top.b32 {print_operand(operand)};\n}}").functions[0].body
    assert body is not None
    (statement,) = body.statements
    assert isinstance(statement, Instruction)
    assert statement.operands == (operand,)
