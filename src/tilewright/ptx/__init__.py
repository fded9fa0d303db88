"""PTX as a syntax tree: `parse_ptx(text)`, `parse_ptx_file(path)`, `print_ptx(module)`.

`nodes` has the tree, `opcodes` the facts of the instructions that the audit and the emulator reason about. Nothing here
knows of either, and nothing needs CUDA.
"""

from __future__ import annotations

from tilewright.ptx.errors import PtxSyntaxError
from tilewright.ptx.parser import parse_ptx, parse_ptx_file
from tilewright.ptx.printer import print_operand, print_ptx, print_statement

__all__ = [
    "PtxSyntaxError",
    "parse_ptx",
    "parse_ptx_file",
    "print_operand",
    "print_ptx",
    "print_statement",
]
