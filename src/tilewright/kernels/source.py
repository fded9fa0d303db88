"""Kernel sources with their includes inlined: one text that any CUDA compiler takes, with no header."""

from __future__ import annotations

import re
from importlib import resources

_INCLUDE = re.compile(r'#include "(\w+\.cuh)"')


def read_source(name: str) -> str:
    """A file of this folder."""
    return (resources.files("tilewright.kernels") / name).read_text(encoding="utf-8")


def assemble(name: str, config: str | None = None, tile: str | None = None) -> str:
    """A kernel's source with every include in its place, each once.

    Args:
        name: a .cu file of this folder.
        config: text that stands for config.cuh; None keeps the file's.
        tile: text that stands for example_tile.cuh, the tile function in the harness; likewise.
    """
    given = {"config.cuh": config, "example_tile.cuh": tile}
    seen: set[str] = set()

    def inline(file: str) -> list[str]:
        replaced = given.get(file)
        text = read_source(file) if replaced is None else replaced
        lines: list[str] = []
        for line in text.splitlines():
            included = _INCLUDE.match(line)
            if included is None:
                if line != "#pragma once":
                    lines.append(line)
            elif included[1] not in seen:
                seen.add(included[1])
                lines += [f"// ---- {included[1]}", *inline(included[1])]
        return lines

    return "\n".join(inline(name)) + "\n"
