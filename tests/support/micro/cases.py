"""Every micro-kernel, by name."""

from __future__ import annotations

from micro import arithmetic, clusters, lanes, memory, tensor, tma

ALL = {
    case.name: case
    for group in (arithmetic, lanes, memory, clusters, tma, tensor)
    for case in group.CASES
}
COUNT = sum(len(group.CASES) for group in (arithmetic, lanes, memory, clusters, tma, tensor))
