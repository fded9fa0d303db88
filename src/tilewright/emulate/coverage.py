"""What schedules came by and what not: blocks of instructions, and both sides of every wait for an mbarrier.

A wait that never had to wait in any schedule is not tested by them: without it they would have passed as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tilewright.ptx.flow import Flow

WAITS = ("test_wait", "try_wait")


@dataclass(frozen=True)
class Coverage:
    """Of one or many runs of a kernel.

    Attributes:
        blocks: lines of the first and last instruction of every block of the kernel and what it calls.
        ran: which of them ran.
        waits: lines that wait for an mbarrier.
        waited, over: those of them at which some thread had to wait, and at which one found its phase over at once.
    """

    blocks: tuple[tuple[int, int], ...] = ()
    ran: frozenset[int] = frozenset()
    waits: tuple[int, ...] = ()
    waited: frozenset[int] = frozenset()
    over: frozenset[int] = frozenset()

    def __or__(self, other: Coverage) -> Coverage:
        """What either came by; of one kernel."""
        known = self if self.blocks else other
        return replace(
            known,
            ran=self.ran | other.ran,
            waited=self.waited | other.waited,
            over=self.over | other.over,
        )

    @property
    def missed(self) -> tuple[tuple[int, int], ...]:
        """Blocks that never ran."""
        return tuple(block for i, block in enumerate(self.blocks) if i not in self.ran)

    @property
    def never_waited(self) -> tuple[int, ...]:
        """Waits that were reached and never had to wait."""
        return tuple(line for line in self.waits if line in self.over and line not in self.waited)

    @property
    def sentences(self) -> tuple[str, ...]:
        """For people, in lines of the PTX."""
        found = []
        if self.blocks:
            ran = f"{len(self.ran)} of {len(self.blocks)} blocks ran"
            missed = [f"{a}-{b}" if a != b else str(a) for a, b in self.missed]
            found.append(ran + (f"; never PTX lines {_some(missed)}" if missed else ""))
        if self.waits:
            both = len(self.waited & self.over)
            text = f"{both} of {len(self.waits)} mbarrier waits both had to wait and found their phase over"
            idle = [str(line) for line in self.never_waited]
            found.append(text + (f"; never had to wait: PTX lines {_some(idle)}" if idle else ""))
        return tuple(found)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "blocks": len(self.blocks),
            "blocks_run": len(self.ran),
            "lines_not_run": [list(block) for block in self.missed],
            "waits": len(self.waits),
            "waits_both_ways": len(self.waited & self.over),
            "lines_never_waited": list(self.never_waited),
        }


def _some(items: list[str], most: int = 8) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def blocks_of(flow: Flow) -> Iterator[tuple[int, int]]:
    """First and last instruction of every stretch that runs as a whole."""
    starts = [
        op.index
        for op in flow.ops
        if not op.index
        or flow.preceding(op.index) != [op.index - 1]
        or len(flow.following(op.index - 1)) != 1
    ]
    yield from zip(starts, [*(start - 1 for start in starts[1:]), len(flow.ops) - 1], strict=True)


def waits_of(flow: Flow) -> Iterator[int]:
    """Lines that wait for an mbarrier."""
    for op in flow.ops:
        opcode = op.node.opcode
        if opcode.root == "mbarrier" and opcode.modifiers[0] in WAITS:
            yield op.span.line


class Waits:
    """Who had to wait where, kept during a run."""

    def __init__(self) -> None:
        self.waited: set[int] = set()
        self.over: set[int] = set()
        self._waiting: set[tuple[str, int]] = set()

    def missing(self, warp: str, line: int) -> None:
        """A warp asks for a phase that is not over."""
        self.waited.add(line)
        self._waiting.add((warp, line))

    def found(self, warp: str, line: int) -> None:
        """A warp finds its phase to be over."""
        if (warp, line) in self._waiting:
            self._waiting.remove((warp, line))
        else:
            self.over.add(line)


def coverage_of(
    plain: Coverage, starts: Collection[int], covered: bytearray, waits: Waits
) -> Coverage:
    """Of one run.

    Args:
        plain: the kernel's blocks and waits; `starts` has the first step of each block.
        covered: of each step, whether it ran.
    """
    ran = frozenset(i for i, start in enumerate(starts) if covered[start])
    return replace(plain, ran=ran, waited=frozenset(waits.waited), over=frozenset(waits.over))
