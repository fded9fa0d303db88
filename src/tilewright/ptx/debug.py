"""What carries debug information: `.file`, `.loc` and the DWARF `.section`; they end with their last word, not with `;`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.ptx.nodes import FileDirective, Label, LocDirective, Section, SectionData, String
from tilewright.ptx.operands import parse_expression, parse_number

if TYPE_CHECKING:
    from tilewright.ptx.cursor import Cursor
    from tilewright.ptx.nodes import Operand


def parse_file(cursor: Cursor) -> FileDirective:
    """`.file 1 "kernel.cu"`, or with `, time stamp, size`."""
    first = cursor.index
    cursor.take()
    number = parse_number(cursor)
    path = parse_expression(cursor)
    if not isinstance(path, String):
        cursor.index -= 1
        raise cursor.error("expected the quoted name of a file")
    stamp: list[Operand] = []
    while cursor.take_if(","):
        stamp.append(parse_number(cursor))
    return FileDirective(cursor.place(first), number, path, tuple(stamp))


def parse_loc(cursor: Cursor) -> LocDirective:
    """`.loc 1 10 3`, or with `, function_name $L__info_string0, inlined_at 1 20 7`."""
    first = cursor.index
    cursor.take()
    position = _position(cursor)
    function: Operand | None = None
    inlined: tuple[Operand, Operand, Operand] | None = None
    while cursor.take_if(","):
        if cursor.take_if("function_name"):
            function = parse_expression(cursor)
        elif cursor.take_if("inlined_at"):
            inlined = _position(cursor)
        else:
            raise cursor.error(
                "expected `function_name` or `inlined_at`", allowed="function_name, inlined_at"
            )
    return LocDirective(cursor.place(first), position, function, inlined)


def _position(cursor: Cursor) -> tuple[Operand, Operand, Operand]:
    return parse_number(cursor), parse_number(cursor), parse_number(cursor)


def parse_section(cursor: Cursor) -> Section:
    """`.section .debug_info { .b8 1, 2 … }`."""
    first = cursor.index
    cursor.take()
    name = cursor.take()
    cursor.expect("{", "before the data of a section")
    items: list[SectionData | Label] = []
    while not cursor.take_if("}"):
        items.append(_section_data(cursor) if cursor.text[:1] == "." else _section_label(cursor))
    return Section(cursor.place(first), name, tuple(items))


def _section_label(cursor: Cursor) -> Label:
    first = cursor.index
    name = cursor.take_name("a label or a type such as `.b8` in a section")
    cursor.expect(":", "after a label")
    return Label(cursor.place(first), name)


def _section_data(cursor: Cursor) -> SectionData:
    first = cursor.index
    kind = cursor.take()
    values = [parse_expression(cursor)]
    while cursor.take_if(","):
        values.append(parse_expression(cursor))
    cursor.take_if(";")
    return SectionData(cursor.place(first), kind, tuple(values))
