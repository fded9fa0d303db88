"""PTX text to a `Module`: recursive descent by hand, PTX ISA 7.8 to 9.5 as compilers write it.

What an instruction means is not asked here: an opcode that nobody knows parses like any other, so a newer PTX ISA
needs no new parser. What is refused is text that no reading fits, with one `PtxSyntaxError` at its first place.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.errors import BadInput
from tilewright.ptx.cursor import Cursor
from tilewright.ptx.debug import parse_file as parse_file_directive, parse_loc, parse_section
from tilewright.ptx.declarations import (
    LINKAGES,
    SPACES,
    parse_attributes,
    parse_parameters,
    parse_variable,
)
from tilewright.ptx.errors import PtxSyntaxError
from tilewright.ptx.nodes import Function, Module
from tilewright.ptx.pieces import piece_parser
from tilewright.ptx.source import Source
from tilewright.ptx.statements import parse_block, parse_directive, parse_directives
from tilewright.ptx.tokens import END, tokenize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tilewright.ptx.nodes import Attribute, Statement


def parse_ptx(text: str, name: str = "<ptx>") -> Module:
    """The syntax tree of a PTX text.

    Args:
        name: what findings and errors call the text, usually its path.
    Raises:
        PtxSyntaxError: if the text is no PTX; it holds file, line, column, the source line and a caret.
    """
    source = Source(name, text)
    with _collector_paused():
        with suppress(PtxSyntaxError):
            cursor = Cursor(tokenize(source, whole_lines=True))
            cursor.shared = piece_parser()
            return _module(cursor)
        # Perhaps a line that looked like an instruction was none: the plain tokens decide.
        return _module(Cursor(tokenize(source)))


def parse_ptx_file(path: str | Path) -> Module:
    """The syntax tree of the PTX file at `path`.

    Raises:
        BadInput: if the file cannot be read, or is not text.
        PtxSyntaxError: if its text is no PTX.
    """
    try:
        text = Path(path).read_bytes().decode()
    except OSError as problem:
        raise BadInput(f"cannot read {path}: {problem.strerror}", given=path) from problem
    except UnicodeDecodeError as problem:
        raise BadInput(
            f"{path} is not text: byte {problem.start} is not UTF-8", given=path
        ) from problem
    return parse_ptx(text, str(path))


@contextmanager
def _collector_paused() -> Iterator[None]:
    """No garbage collection while a tree grows: it holds no cycles, and each pass would walk all of it again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():  # straight to the oldest generation, without a walk
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _module(cursor: Cursor) -> Module:
    items: list[Statement | Function] = []
    while cursor.text != END:
        if not cursor.take_if(";"):
            items.append(_item(cursor))
    return Module((cursor.source, 0, len(cursor.source.text)), tuple(items))


def _item(cursor: Cursor) -> Statement | Function:
    text = cursor.text
    if text[0] != ".":
        raise cursor.error("expected a directive such as `.entry` or `.global`")
    if text in {".entry", ".func"}:
        return _function(cursor)
    if text in LINKAGES:
        ahead = cursor.index
        while cursor.texts[ahead] in LINKAGES:
            ahead += 1
        is_function = cursor.texts[ahead] in {".entry", ".func"}
        return _function(cursor) if is_function else parse_variable(cursor)
    return _BY_DIRECTIVE.get(text, parse_directive)(cursor)


def _function(cursor: Cursor) -> Function:
    first = cursor.index
    linkage = cursor.take() if cursor.text in LINKAGES else ""
    kind = cursor.take()
    attributes: tuple[Attribute, ...] = ()
    while cursor.take_if(".attribute"):
        attributes += parse_attributes(cursor)
    results = parse_parameters(cursor) if cursor.text == "(" else ()
    name = cursor.take_name("the name of a function")
    parameters = parse_parameters(cursor) if cursor.text == "(" else None
    directives = parse_directives(cursor)
    body = parse_block(cursor) if cursor.text == "{" else None
    if body is None and cursor.texts[cursor.index - 1] != ";":
        cursor.expect(";", "after the declaration of a function, or `{`")
    return Function(
        cursor.place(first),
        linkage,
        kind,
        attributes,
        results,
        name,
        parameters,
        directives,
        body,
    )


_BY_DIRECTIVE: dict[str, Callable[[Cursor], Statement]] = {
    **dict.fromkeys(SPACES, parse_variable),
    ".file": parse_file_directive,
    ".loc": parse_loc,
    ".section": parse_section,
}
