"""Commands of documents, run in this process, and the output that a document shows held against the real one.

In a `console` block a line that starts with "$ " is a command and what follows is its output; a line "…" stands for
any number of lines left out. In an `sh` block every line is a command; `#` begins a comment.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

from tilewright.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COLUMNS = "110"
"""What a report that goes into a pipe gets."""


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Shown(NamedTuple):
    """A command of a document and the lines that it shows of the output."""

    command: str
    lines: tuple[str, ...]


def run(command: str, folder: Path) -> Done:
    """Run a tilewright command as if it were typed in a folder."""
    program, *args = shlex.split(command)
    assert program == "tilewright", command
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.dict(os.environ, {"COLUMNS": COLUMNS, "NO_COLOR": "1"}),
        mock.patch.object(sys, "argv", [program, *args]),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else int(bool(exit_.code))
    return Done(code, out.getvalue(), err.getvalue())


def shell_commands(text: str) -> list[str]:
    """The commands of the `sh` blocks that are this program's."""
    return [
        line.split(" #")[0].strip()
        for block in _blocks(text, "sh")
        for line in block
        if line.startswith("tilewright ")
    ]


def console_blocks(text: str) -> list[list[Shown]]:
    """Each `console` block as its commands, in order."""
    blocks = []
    for block in _blocks(text, "console"):
        shown: list[Shown] = []
        for line in block:
            if line.startswith("$ "):
                shown.append(Shown(line[2:], ()))
            else:
                shown[-1] = Shown(shown[-1].command, (*shown[-1].lines, line.rstrip()))
        blocks.append(shown)
    return blocks


def _blocks(text: str, language: str) -> Iterator[list[str]]:
    for block in re.findall(rf"^ *```{language}\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
        lines = block.splitlines()
        indent = min((len(x) - len(x.lstrip()) for x in lines if x.strip()), default=0)
        yield [line[indent:] for line in lines]


def missing(shown: Shown, done: Done) -> list[str]:
    """The first run of shown lines that the output does not have where it should; empty when it has all."""
    real = [line.rstrip() for line in (done.out + done.err).strip().splitlines()]
    at = 0
    for part in _between_gaps(shown.lines):
        places = [
            i for i in range(at, len(real) - len(part) + 1) if real[i : i + len(part)] == part
        ]
        if not places:
            return part
        at = places[0] + len(part)
    return []


def _between_gaps(lines: tuple[str, ...]) -> Iterator[list[str]]:
    part: list[str] = []
    for line in (*lines, "…"):
        if line != "…":
            part.append(line)
        elif part:
            yield part
            part = []
