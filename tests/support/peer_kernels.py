"""Kernels of other people's compilers, compiled without a GPU, and what the audit says of each.

The sources are `tests/toolkit/peers`; each script runs in a process of its own, since compilers read their target from
the environment once.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.audit import audit_module
from tilewright.audit.kernel import Options
from tilewright.ptx import parse_ptx

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit import Report

SOURCES = Path(__file__).parents[1] / "toolkit" / "peers"
DOC = Path(__file__).parents[2] / "docs" / "audit_peers.md"
PACKAGES = ("triton", "quack")
SCRIPTS: tuple[tuple[str, dict[str, str]], ...] = (
    ("quack_kernels.py", {"CUTE_DSL_ARCH": "sm_90a"}),
    ("quack_kernels.py", {"CUTE_DSL_ARCH": "sm_100a"}),
    ("triton_kernels.py", {}),
    ("gluon_kernels.py", {}),
)
SECONDS_MAX = 300

Warned = tuple[str, str, int]
"""Kernel, rule and line of a finding."""


def compile_peers(folder: Path) -> dict[str, str]:
    """The PTX of every kernel by name; two compilers at a time."""

    def run(script: tuple[str, dict[str, str]]) -> None:
        name, more = script
        environment = os.environ | {
            "PYTHONDONTWRITEBYTECODE": "1",
            "TRITON_CACHE_DIR": str(folder / "cache"),
            "TRITON_DEFAULT_FP_FUSION": "1",
        }
        done = subprocess.run(  # noqa: S603 (our own scripts)
            [sys.executable, str(SOURCES / name), str(folder)],
            env=environment | more, capture_output=True, text=True, check=False, timeout=SECONDS_MAX,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, SCRIPTS))
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.ptx"))}


def cluster_of(name: str) -> tuple[int, int, int]:
    """The cluster that a kernel is launched with, the end of its name: c2 or c1x4."""
    found = re.search(r"_c(\d+)(?:x(\d+))?$", name)
    assert found is not None, name
    return int(found[1]), int(found[2] or 1), 1


def audit_peer(name: str, ptx: str) -> Report:
    return audit_module(parse_ptx(ptx), Options(cluster=cluster_of(name)))


def warnings_of(reports: dict[str, Report]) -> list[Warned]:
    return [
        (name, f.rule, f.span.line) for name, report in reports.items() for f in report.findings
    ]


SECTION = re.compile(r"^## (\S+) in (\S+)\n\n(.+?)\n\n\| kernel \| lines \|\n\|---\|---\|\n((?:\|[^\n]*\n)*)", re.DOTALL | re.MULTILINE)  # fmt: skip


def explained(doc: str) -> Iterator[tuple[Warned, str]]:
    """Every finding that the document lists, with the reason that its section gives."""
    for rule, language, reason, rows in SECTION.findall(doc):
        for row in rows.splitlines():
            kernel, lines = (cell.strip() for cell in row.strip("|").split("|"))
            assert kernel.startswith(f"{language}_"), row
            for line in lines.split(", "):
                yield (kernel, rule, int(line)), reason
