"""The catalogue's CLC, mbarrier and cluster kernels with what they need to be launched."""

from __future__ import annotations

import re

import numpy as np

from audit_pairs import text_of
from tilewright.emulate import prepare
from tilewright.emulate.explore import Expected, Explorer

COUNTED = re.compile(r"CLC-|MBAR-0[12457]|C5|C8|C13")
"""Work loops that count each CTA of the grid once, so that lost and repeated tiles are seen."""

ALONE = re.compile(r"MBAR-(09|10)|CLU-(13|15)|PDL|C24")
"""Kernels whose clusters write one place of global memory without order: launched as one cluster."""


def explorer_of(name: str) -> Explorer:
    """A kernel of the folder, its launch and what it should leave behind."""
    text = text_of(name)
    size = cluster_size(text)
    clusters = 1 if ALONE.match(name) else 4
    ctas = size * clusters
    data = np.zeros(32 * max(ctas, 8), np.uint32)
    args: list[object] = [data]
    expected: list[Expected] = []
    if name.startswith("C14"):
        args = [10]  # rounds
    elif name.startswith("BAR-01"):
        args = [3]
    elif name.startswith("CLU-07"):
        sent = np.zeros(32 * ctas, np.float32)
        args, expected = [sent], [Expected(sent, sent_by_neighbours(size, clusters), "out")]
    elif COUNTED.match(name):
        expected = [Expected(data[:ctas], np.ones(ctas, np.uint32), "counts")]
    grid = (ctas // 2, 2) if name.startswith("CLC-20") else (ctas, 1)
    return Explorer(prepare(text, grid=grid, args=args), expected=expected)


def cluster_size(text: str) -> int:
    """CTAs of a cluster; kernels that forgot to say so are meant for two."""
    found = re.search(r"^\.reqnctapercluster (\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 1


def sent_by_neighbours(size: int, clusters: int) -> np.ndarray:
    """CLU-07: every thread sends 100 rank + thread to the next rank, which stores what it was sent."""
    rank, thread = np.meshgrid((np.arange(size) - 1) % size, np.arange(32), indexing="ij")
    return np.tile((100 * rank + thread).astype(np.float32).reshape(-1), clusters)
