"""Where each thread can come: the flow graph walked with a set of threads.

At a branch whose predicate is known for every thread each goes its own way; at any other both ways are
open to all. Sets of threads are integers, bit rank * threads + thread.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from tilewright.audit.kernel import Kernel
    from tilewright.ptx.flow import Condition, Op

ENTRY = -1


class Reach:
    """Thread-aware reachability in one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        """Everything is computed on demand and kept."""
        self._kernel = kernel
        self._flow = kernel.flow
        self._masks: dict[int, int] = {}
        self._predicates: dict[int, int | None] = {}
        self._from: dict[tuple[frozenset[int], frozenset[int]], dict[int, int]] = {}
        self.first: dict[tuple[str, int], int | None] = {}  # kept by `first.first_number`
        self._open: dict[int, tuple[Condition, ...]] = {}

    @cached_property
    def everyone(self) -> int:
        """All threads of the cluster."""
        shape = self._kernel.shape
        return (1 << shape.ranks * max(shape.threads, 1)) - 1

    def _bits(self, array: np.ndarray) -> int:
        shape = self._kernel.shape
        full = np.broadcast_to(array, (shape.ranks, max(shape.threads, 1)))
        return int.from_bytes(np.packbits(full.ravel(), bitorder="little").tobytes(), "little")

    def mask(self, op: Op) -> int:
        """Threads that may execute an instruction."""
        if op.index not in self._masks:
            self._masks[op.index] = self._bits(self._kernel.threads(op)[0])
        return self._masks[op.index]

    def _holds(self, op: Op) -> int | None:
        """Threads in which an instruction's guard lets it happen; None where that is not known."""
        if op.index not in self._predicates:
            value = self._kernel.values.register(op.guard, op.index)
            taken = self._bits((value.constant != 0) == op.guard_holds) if value.known else None
            self._predicates[op.index] = taken
        return self._predicates[op.index]

    def threads_from(self, starts: Iterable[int], avoid: Collection[int] = ()) -> dict[int, int]:
        """Threads that can come to each instruction from behind `starts` without passing `avoid`.

        An instruction to be avoided is itself reached. One under a guard that is not known counts as passed.
        """
        key = frozenset(starts), frozenset(avoid)
        if key not in self._from:
            self._from[key] = self._walk(*key)
        return self._from[key]

    def _walk(self, starts: frozenset[int], avoid: frozenset[int]) -> dict[int, int]:
        seen: dict[int, int] = {}
        work: list[tuple[int, int]] = []
        for start in starts:
            if start < 0:
                work.append((0, self.everyone))
            else:
                work.extend(self._onwards(start, self.mask(self._flow.ops[start])))
        while work:
            here, threads = work.pop()
            new = threads & ~seen.get(here, 0)
            if not new:
                continue
            end = self._flow.straight[here]
            for index in range(here, end + 1):
                seen[index] = seen.get(index, 0) | new
                if index in avoid:
                    op = self._flow.ops[index]
                    held = self._holds(op) if op.guard else None
                    new = 0 if held is None else new & ~held
                    if not new:
                        break
            if new:
                work.extend(self._onwards(end, new))
        return seen

    def _onwards(self, index: int, threads: int) -> list[tuple[int, int]]:
        op = self._flow.ops[index]
        after = self._flow.following(index)
        root = op.node.opcode.root
        if not op.guard or root not in {"bra", "ret", "exit", "trap"}:
            return [(each, threads) for each in after]
        held = self._holds(op)
        if held is None:
            return [(each, threads) for each in after]
        stays = threads & ~held
        if root != "bra":
            return [(each, stays) for each in after]
        target = after[0] if after else None
        found = [(index + 1, stays)] if index + 1 < len(self._flow.ops) else []
        if target is not None:
            found.append((target, threads & held))
        return [(each, some) for each, some in found if some]

    def threads_to(self, starts: Iterable[int], goal: Op, avoid: Collection[int] = ()) -> int:
        """Threads that can execute `goal`, coming from behind `starts` without passing `avoid`."""
        return self.threads_from(starts, avoid).get(goal.index, 0) & self.mask(goal)

    def between(self, start: Op, goal: Op) -> set[int]:
        """Instructions on some way from behind `start` to `goal` that passes neither again."""
        ends = {start.index, goal.index}
        ahead = self._flow.reachable((start.index,), ends)
        found: set[int] = set()
        stack = list(self._flow.preceding(goal.index))
        while stack:
            here = stack.pop()
            if here in found or here in ends or here not in ahead:
                continue
            found.add(here)
            stack.extend(self._flow.preceding(here))
        return found

    def open_conditions(self, op: Op) -> tuple[Condition, ...]:
        """Conditions on something unknown that decide whether the instruction is executed at all.

        Leaving a loop by its only exit is none: a loop that ends is left.
        """
        if op.index not in self._open:
            self._open[op.index] = tuple(
                condition
                for condition in self._flow.conditions(op)
                if not self._kernel.values.register(condition.register, condition.at).known
                and not self._leaves(condition.at, op.index)
            )
        return self._open[op.index]

    def _leaves(self, branch: int, index: int) -> bool:
        for _, members in self._flow.loops(branch):
            if index in members:
                return False
            ways_out = {
                each
                for each in members
                if any(after not in members for after in self._flow.following(each))
            }
            if ways_out == {branch}:
                return True
        return False

    def thread_names(self, threads: int) -> str:
        """The first of some threads as a reader names it: `thread 3 of CTA 1`."""
        count = max(self._kernel.shape.threads, 1)
        first = (threads & -threads).bit_length() - 1
        rank, thread = divmod(first, count)
        return (
            f"thread {thread} of CTA {rank}" if self._kernel.shape.ranks > 1 else f"thread {thread}"
        )
