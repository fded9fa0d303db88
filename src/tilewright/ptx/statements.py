"""Statements of a body: instructions, labels, scopes, declarations and directives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.ptx.debug import parse_file, parse_loc, parse_section
from tilewright.ptx.declarations import LINKAGES, SPACES, parse_parameters, parse_variable
from tilewright.ptx.nodes import (
    Block,
    Directive,
    Guard,
    Instruction,
    Label,
    Name,
    Opcode,
    Prototype,
)
from tilewright.ptx.operands import parse_operand
from tilewright.ptx.pieces import split_operands
from tilewright.ptx.tokens import END

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilewright.ptx.cursor import Cursor
    from tilewright.ptx.nodes import Operand, Statement

_NEXT_ITEM = SPACES | LINKAGES | {".entry", ".func", ".file", ".loc", ".section", ".alias"}
_ARGUMENT_START = frozenset('"({[+-!~_$%')


def parse_block(cursor: Cursor) -> Block:
    """`{ … }` with its statements."""
    first = cursor.index
    cursor.expect("{", "before a body")
    cursor.descend()
    statements: list[Statement] = []
    while (text := cursor.texts[cursor.index]) != "}":
        if text[-1:] == ";":
            if text == ";":  # an empty statement
                cursor.index += 1
            else:
                statements.append(_line(cursor))
        elif text == END:
            cursor.index = first
            raise cursor.error("this `{` is never closed", found=False)
        else:
            statements.append(_BY_FIRST.get(text[0], _instruction_or_label)(cursor))
    cursor.index += 1
    cursor.depth -= 1
    return Block(cursor.place(first), tuple(statements))


def parse_directive(cursor: Cursor) -> Directive:
    """A directive with its arguments; a semicolon belongs to it where one is written."""
    node = _directive(cursor)
    cursor.take_if(";")
    return node


def parse_directives(cursor: Cursor) -> tuple[Directive, ...]:
    """The performance directives between a function's parameters and its body."""
    found: list[Directive] = []
    while cursor.text[:1] == "." and cursor.text not in _NEXT_ITEM:
        found.append(_directive(cursor))
        if found[-1].name == ".pragma":
            cursor.take_if(";")
    return tuple(found)


def _directive(cursor: Cursor) -> Directive:
    first = cursor.index
    name = cursor.take()
    arguments = _arguments(cursor)
    return Directive(cursor.place(first), name, arguments)


def _arguments(cursor: Cursor) -> tuple[Operand, ...]:
    """Values between commas; none when the next token cannot begin a value."""
    text = cursor.text
    if text[:1] not in _ARGUMENT_START and not text[:1].isalnum():
        return ()
    if text == "{":  # a body
        return ()
    values = [parse_operand(cursor)]
    while cursor.take_if(","):
        values.append(parse_operand(cursor))
    return tuple(values)


def _statement_directive(cursor: Cursor) -> Statement:
    text = cursor.text
    if text in SPACES or text in LINKAGES:
        return parse_variable(cursor)
    parse = _BY_DIRECTIVE.get(text)
    if parse is not None:
        return parse(cursor)
    node = parse_directive(cursor)
    if cursor.texts[cursor.index - 1] != ";":
        raise cursor.error(f"expected `;` after `{node.name}`", allowed=";")
    return node


def _prototype(cursor: Cursor) -> Prototype:
    """`.callprototype (.param .b32 _) _ (.param .b64 _);`."""
    first = cursor.index
    cursor.take()
    results = parse_parameters(cursor) if cursor.text == "(" else ()
    name = cursor.take_name("the name of a prototype, usually `_`")
    parameters = parse_parameters(cursor) if cursor.text == "(" else ()
    directives = parse_directives(cursor)
    cursor.expect(";", "after a prototype")
    return Prototype(cursor.place(first), results, name, parameters, directives)


def _guarded(cursor: Cursor) -> Instruction:
    """`@%p` or `@!%p` and the instruction that it guards."""
    first = cursor.index
    cursor.index += 1
    negated = cursor.take_if("!")
    written = f"@{'!' if negated else ''}{cursor.text}"
    guard = cursor.guards.get(written)
    if guard is None:
        name = cursor.take_name("a predicate")
        guard = cursor.guards[written] = Guard(Name(name), negated)
    else:
        cursor.index += 1
    return _instruction(cursor, first, guard)


def _instruction_or_label(cursor: Cursor) -> Statement:
    first = cursor.index
    if cursor.texts[first + 1] == ":":
        name = cursor.take_name("a label")
        cursor.index += 1
        return Label(cursor.place(first), name)
    return _instruction(cursor, first, None)


def _line(cursor: Cursor) -> Instruction:
    """A whole instruction in one token, taken apart at its commas; operands seen before are shared."""
    index = cursor.index
    text = cursor.texts[index]
    start = cursor.starts[index]
    at = (cursor.source, start, start + len(text))
    cursor.index = index + 1
    try:
        head, rest = text[:-1].split(None, 1)
        guard = None
        if head[0] == "@":
            guard = cursor.guards[head]
            head, rest = rest.split(None, 1)
        parts = split_operands(rest) if "{" in rest else rest.replace(", ", ",").split(",")
        return Instruction(at, cursor.opcodes[head], tuple(map(cursor.shared, parts)), guard)
    except (KeyError, ValueError):
        return _line_by_tokens(cursor, start, start + len(text))


def _line_by_tokens(cursor: Cursor, start: int, end: int) -> Instruction:
    """The same by the full grammar: a guard or an opcode not seen before, or an error that needs its place."""
    part = cursor.part(start, end)
    node = _guarded(part) if part.text == "@" else _instruction(part, 0, None)
    if part.text != END:
        raise part.error("expected one instruction")
    return node


def _instruction(cursor: Cursor, first: int, guard: Guard | None) -> Instruction:
    """An opcode and operands between commas, up to and over the semicolon."""
    opcode = _opcode(cursor)
    operands: list[Operand] = []
    if not cursor.take_if(";"):
        operands.append(parse_operand(cursor))
        while cursor.take_if(","):
            operands.append(parse_operand(cursor))
        if not cursor.take_if(";"):
            raise cursor.error(f"expected `,` or `;` in `{opcode}`", allowed=", ;")
    return Instruction(cursor.place(first), opcode, tuple(operands), guard)


def _opcode(cursor: Cursor) -> Opcode:
    """An opcode whose modifiers may stand apart from it: `add .s32`."""
    text = cursor.text
    node = cursor.opcodes.get(text)
    if node is None:
        if not text[:1].islower() or not text.isascii():
            raise cursor.error("expected an instruction, a label or a directive")
        root, *modifiers = text.split(".")
        node = cursor.opcodes[text] = Opcode(root, tuple(modifiers))
    cursor.index += 1
    while cursor.text[:1] == "." and len(cursor.text) > 1:
        node = Opcode(node.root, (*node.modifiers, cursor.take()[1:]))
    return node


_BY_FIRST: dict[str, Callable[[Cursor], Statement]] = {
    "@": _guarded,
    ".": _statement_directive,
    "{": parse_block,
}

_BY_DIRECTIVE: dict[str, Callable[[Cursor], Statement]] = {
    ".file": parse_file,
    ".loc": parse_loc,
    ".section": parse_section,
    ".callprototype": _prototype,
}
