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
    from collections.abc import Iterable, Iterator, Sequence

    from tilewright.audit import Report

SOURCES = Path(__file__).parents[1] / "toolkit" / "peers"
DOC = Path(__file__).parents[2] / "docs" / "audit_peers.md"
PACKAGES = ("triton", "quack")
Script = tuple[str, dict[str, str]]
"""A file of `SOURCES`, and its environment."""
SCRIPTS: tuple[Script, ...] = (
    ("quack_kernels.py", {"CUTE_DSL_ARCH": "sm_90a"}),
    ("quack_kernels.py", {"CUTE_DSL_ARCH": "sm_100a"}),
    ("triton_kernels.py", {}),
    ("gluon_kernels.py", {}),
)
SCALED = (("scaled_kernels.py", {"CUTE_DSL_ARCH": "sm_100a"}),)
"""Block-scaled products, which the emulator leaves out."""
SECONDS_MAX = 300

Warned = tuple[str, str, int]
"""Kernel, rule and line of a finding."""


def compile_peers(folder: Path, scripts: Sequence[Script] = SCRIPTS) -> dict[str, str]:
    """The PTX of every kernel by name, with its launch beside it in the folder; two compilers at a time."""

    def run(script: Script) -> None:
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
        list(pool.map(run, scripts))
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


def render_sections(found: Iterable[Warned], doc: str) -> str:
    """A section for each rule and language, with the reason that the document gave it before."""
    groups: dict[tuple[str, str], dict[str, set[int]]] = {}
    for name, rule, line in found:
        of_kernel = groups.setdefault((rule, name.partition("_")[0]), {})
        of_kernel.setdefault(name, set()).add(line)
    reasons = {(rule, language): reason for rule, language, reason, _ in SECTION.findall(doc)}
    parts = []
    for (rule, language), by_kernel in sorted(groups.items()):
        reason = reasons.get((rule, language), "NOT EXPLAINED YET")
        parts.append(f"\n## {rule} in {language}\n\n{reason}\n\n| kernel | lines |\n|---|---|\n")
        parts += [
            f"| {name} | {', '.join(map(str, sorted(lines)))} |\n"
            for name, lines in sorted(by_kernel.items())
        ]
    return "".join(parts)


def explained(doc: str) -> Iterator[tuple[Warned, str]]:
    """Every finding that the document lists, with the reason that its section gives."""
    for rule, language, reason, rows in SECTION.findall(doc):
        for row in rows.splitlines():
            kernel, lines = (cell.strip() for cell in row.strip("|").split("|"))
            assert kernel.startswith(f"{language}_"), row
            for line in lines.split(", "):
                yield (kernel, rule, int(line)), reason
