"""How a peer's script hands its kernels over: one PTX file a kernel, named for what compiled it.

    python triton_kernels.py FOLDER [WORD]     # only the kernels with WORD in their names

A file is `LANGUAGE_KERNEL_sm_ARCH_cN.ptx`, N the CTAs of a cluster that it is launched with.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def write(name: str, compile_ptx: Callable[[], str]) -> None:
    """Compile a kernel, unless it was not asked for, and write its PTX."""
    folder, wanted = Path(sys.argv[1]), sys.argv[2:] or [""]
    if any(word in name for word in wanted):
        (folder / f"{name}.ptx").write_text(compile_ptx(), encoding="utf-8")
