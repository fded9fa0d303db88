"""Every micro-kernel assembles with the ptxas that is installed: its PTX is what a GPU's driver reads."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from micro.cases import ALL

if TYPE_CHECKING:
    from pathlib import Path

PTXAS = shutil.which("ptxas")


@pytest.mark.toolkit
@pytest.mark.skipif(PTXAS is None, reason="no ptxas on this machine")
@pytest.mark.parametrize("name", list(ALL))
def test_a_micro_kernel_assembles(name: str, tmp_path: Path) -> None:
    assert PTXAS is not None
    source = tmp_path / "micro.ptx"
    source.write_text(ALL[name].ptx, encoding="utf-8")
    command = [PTXAS, "-arch=sm_90a", str(source), "-o", str(tmp_path / "micro.cubin")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert ran.returncode == 0, ran.stderr
