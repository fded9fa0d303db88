"""How a peer's script hands its kernels over: a PTX file a kernel, named for what compiled it, and what it is launched with.

    python triton_kernels.py FOLDER [WORD]     # only the kernels with WORD in their names

Files are `LANGUAGE_KERNEL_sm_ARCH_cN.ptx`, N the CTAs of a cluster that it is launched with, and `.json` beside it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def write(name: str, compiled: Callable[[], tuple[str, Any]]) -> None:
    """Compile a kernel, unless it was not asked for, and write its PTX and its launch."""
    folder, wanted = Path(sys.argv[1]), sys.argv[2:] or [""]
    if any(word in name for word in wanted):
        ptx, launch = compiled()
        (folder / f"{name}.ptx").write_text(ptx, encoding="utf-8")
        (folder / f"{name}.json").write_text(json.dumps(launch), encoding="utf-8")


def of_triton(compiled: Any) -> tuple[str, Any]:
    """PTX of a kernel that Triton compiled, and what its launcher reads of it."""
    facts = ("shared", "num_ctas", "global_scratch_size", "tensordesc_meta")
    return compiled.asm["ptx"], {fact: getattr(compiled.metadata, fact, None) for fact in facts}
