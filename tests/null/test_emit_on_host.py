"""The emitted tests themselves, on a "GPU" in host memory (tests/support/host_gpu.py): what they expect is right."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tilewright import Gemm, GroupedGemm, TileList, load
from tilewright.emit import emit, emit_tiles

HOST_GPU = Path(__file__).parents[1] / "support" / "host_gpu.py"


def run(folder: Path, test: str, capability: str) -> int:
    """Run an emitted test; how many passed."""
    shutil.copy(HOST_GPU, folder / "conftest.py")
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "CAPABILITY": capability},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    [passed] = re.findall(r"(\d+) passed", done.stdout) or [done.stdout.count(".")]
    return int(passed)


@pytest.mark.parametrize(
    ("problem", "device", "extras", "capability", "passed"),
    [
        (Gemm(m=4096, n=4096, k=4096), "b200", {}, "10.0", 20),
        (Gemm(m=500, n=1001, k=512), "h200", {"has_c": True, "has_bias": True}, "9.0", 20),
        (Gemm(m=32, n=8192, k=4096, dtype="fp8"), "h200", {"has_bias": True}, "9.0", 10),
        (GroupedGemm(counts=(1528, 3516, 0, 508), n=4096, k=4096), "h200", {}, "9.0", 22),
        (GroupedGemm(counts=(1536, 0, 512), n=4096, m=512, grouped="k"), "h200", {}, "9.0", 20),
        (Gemm(m=4096, n=4096, k=4096), "b200", {}, "8.0", 10),
    ],
)
def test_the_gemm_s_test(
    problem: Any, device: str, extras: dict[str, Any], capability: str, passed: int, tmp_path: Path
) -> None:
    emit(problem, load(device), tmp_path / "out", **extras)
    assert run(tmp_path / "out", "test_kernel.py", capability) >= passed


def test_the_tiles_test(tmp_path: Path) -> None:
    pairs = TileList(costs_us=(20.0,) * 500, cluster_shape=(2, 1, 1), threads=128)
    emit_tiles(pairs, load("h200"), tmp_path / "out")
    assert run(tmp_path / "out", "test_tiles.py", "9.0") == 44


def test_a_wrong_kernel_is_seen(tmp_path: Path) -> None:
    """One element off, or one row that nobody wrote."""
    emit(Gemm(m=512, n=512, k=512), load("h200"), tmp_path / "out")
    shutil.copy(HOST_GPU, tmp_path / "out" / "conftest.py")
    host = tmp_path / "out" / "conftest.py"
    wrong = host.read_text().replace(
        "for i, values in enumerate(product):", "for i, values in enumerate(product[:-1]):"
    )
    assert wrong != host.read_text()
    host.write_text(wrong)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_kernel.py", "-k", "edges"],
        cwd=tmp_path / "out", capture_output=True, text=True, check=False,
        env={**os.environ, "CAPABILITY": "9.0"},
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
