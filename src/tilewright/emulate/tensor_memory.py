"""Tensor memory as the machine keeps it: cells, allocations, and which accesses are ordered.

Every access is one of an asynchronous instruction: it has the lanes and the columns that it touches (a set of each,
as bits) and is held against the earlier ones that touch a cell of them, one of the two writing. The earlier must be
over and its end known to the issuer *through the tcgen05 fences*, or the pair must be one of those that the hardware
runs in order (mma after mma on one accumulator, mma after cp) whose issue is known.

Source: PTX ISA, "Memory Consistency Model for 5th generation of TensorCore operations".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.emulate.clocks import BEFORE, SEEN, TENSOR, mark_number
from tilewright.emulate.tmem import Allocations, new_cells
from tilewright.emulate.warp import Condition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tilewright.emulate.cluster import Cta
    from tilewright.emulate.events import AsyncEvent
    from tilewright.emulate.machine import Machine
    from tilewright.emulate.operations import Operation
    from tilewright.emulate.tensor_pairs import Asking
    from tilewright.emulate.warp import Warp
    from tilewright.ptx.flow import Op


class Thread:
    """One thread's asynchronous tcgen05 instructions, in the order issued.

    Attributes:
        key: of its marks: (key, n) says that everything up to its n-th instruction is over.
        issued_key: likewise that it has been issued.
        issued: how many there are.
        pending: those that are not over and that commit tracks.
    """

    def __init__(self, warp: Warp, lane: int) -> None:
        cta = warp.cta
        name = (cta.cluster.index, cta.rank, warp.index, lane)
        self.key = ("tcgen05 over", *name)
        self.issued_key = ("tcgen05 issued", *name)
        self.issued = 0
        self.pending: list[Operation] = []


@dataclass(eq=False, slots=True)
class CellAccess:
    """One instruction's access to the cells of one CTA.

    Attributes:
        lanes, columns: as bits.
        pipeline: "mma" or "cp" and what must be the same for the hardware to run two in order; empty for none.
        operation: what is still to act; None when it acts at once.
        thread, number: of the issuer, for what has been issued in order.
    """

    event: AsyncEvent
    lanes: int
    columns: int
    writes: bool
    pipeline: tuple[object, ...] = ()
    operation: Operation | None = None
    thread: Thread | None = None
    number: int = 0

    def overlaps(self, other: CellAccess) -> bool:
        """Whether they touch a cell and one of them writes it."""
        return bool(
            self.lanes & other.lanes
            and self.columns & other.columns
            and (self.writes or other.writes)
        )

    def covers(self, other: CellAccess) -> bool:
        """Whether it touches all that the other does."""
        return not (other.lanes & ~self.lanes or other.columns & ~self.columns)


class TensorMemory(Condition):
    """Tensor memory of one CTA.

    Attributes:
        cells: 128 lanes by 512 columns.
        allocations: who has which columns; whoever waits for free ones waits on this condition.
        accesses: what a later access is held against.
        allocated_by: the alloc of each live range, by its first column.
        queues: warps at an alloc or dealloc that is not done (tensor_pairs).
        threads: by warp and lane, those that have issued something.
        open: loads or stores of a warp ("tcgen05.ld", its index) that it has not waited for.
    """

    def __init__(self, cta: Cta) -> None:
        super().__init__()
        self.cta = cta
        self.cells = new_cells()
        self.allocations = Allocations()
        self.accesses: list[CellAccess] = []
        self.allocated_by: dict[int, Op] = {}
        self.queues: dict[str, list[Asking]] = {}
        self.threads: dict[tuple[int, int], Thread] = {}
        self.open: dict[tuple[str, int], list[AsyncEvent]] = {}

    def enter(self, new: CellAccess) -> list[Operation]:
        """Hold an access against the earlier ones and keep it.

        Returns:
            operations that it acts after.
        """
        first: list[Operation] = []
        kept: list[CellAccess] = []
        for old in self.accesses:
            if not old.overlaps(new):
                kept.append(old)
                continue
            if _in_order(old, new):
                if old.operation is not None and not old.operation.done:
                    first.append(old.operation)
            elif not is_known(old.event, new.event):
                self._report(old, new)
            if not (new.writes and new.covers(old)):
                kept.append(old)
        kept.append(new)
        self.accesses = kept
        return first

    def forget(self, columns: int) -> None:
        """Columns are given back: what touched them no longer counts."""
        for old in self.accesses:
            old.columns &= ~columns
        self.accesses = [old for old in self.accesses if old.columns]

    def _report(self, old: CellAccess, new: CellAccess) -> None:
        rule, missing = order_rule(old.event, new.event)
        acts, acted = "writes" if new.writes else "reads", "written" if old.writes else "read"
        self.cta.machine.report(
            rule,
            f"{new.event.who()} {acts} tensor memory of {self.cta.who} that {old.event.who()} has {acted}, "
            f"{missing}",
            new.event.op,
            old.event.op,
            f"{acted} here",
        )


def _in_order(old: CellAccess, new: CellAccess) -> bool:
    """Whether the hardware runs `new` after `old`: a pair of PTX's pipelines, and `old` is issued before.

    mma after mma on the same accumulator and of the same shape; mma after cp.
    """
    if old.thread is None or not old.pipeline or not new.pipeline:
        return False
    follows_copy = old.pipeline[0] == "cp" and new.pipeline[0] == "mma"
    if not follows_copy and (old.pipeline != new.pipeline or old.pipeline[0] == "cp"):
        return False
    if old.thread is new.thread:
        return True
    marks = new.event.issued[TENSOR].marks
    return marks.get(mark_number(old.thread.issued_key), 0) >= old.number


def is_known(old: AsyncEvent, new: AsyncEvent) -> bool:
    """Whether the issuer of `new` may take `old` to be over."""
    if old.known_at(new.issued, TENSOR):
        return True
    same = old.warp is new.warp  # a warp that has waited for its own ld or st needs no fence
    return same and bool(old.marks) and old.what in {"tcgen05.ld", "tcgen05.st"}


def order_rule(old: AsyncEvent, new: AsyncEvent) -> tuple[str, str]:
    """The rule that two unordered accesses break, and what is missing between them."""
    if old.what in {"tcgen05.ld", "tcgen05.st"} and not old.marks:
        return "TC-14", f"which tcgen05.wait::{old.what[-2:]} has not ended"
    if old.known_at(new.issued, BEFORE):
        return "TC-12", "with no tcgen05.fence::after_thread_sync between"
    if old.known_at(new.issued, SEEN):
        return "TC-13", "with no tcgen05.fence::before_thread_sync between"
    if old.what == new.what == "tcgen05.mma":
        return "TC-09", "and nothing orders the two"
    return "TC-17", "and nothing orders the two"


def tensor_memory(cta: Cta) -> TensorMemory:
    """The CTA's, made when it is first used."""
    found = cta.extras.get("tensor memory")
    if not isinstance(found, TensorMemory):
        found = cta.extras["tensor memory"] = TensorMemory(cta)
        _check_at_exit(cta.machine)
    return found


def thread_of(warp: Warp, lane: int) -> Thread:
    """One thread's own."""
    threads = tensor_memory(warp.cta).threads
    name = warp.index, lane
    if name not in threads:
        threads[name] = Thread(warp, lane)
    return threads[name]


def pair_of(cta: Cta) -> list[Cta]:
    """The CTA's pair, the even rank first; itself alone where the cluster has no peer."""
    ctas = cta.cluster.ctas
    even = cta.rank & ~1
    return ctas[even : even + 2]


def _check_at_exit(machine: Machine) -> None:
    if machine.extras.setdefault("tensor memory checked at exit", False):
        return
    machine.extras["tensor memory checked at exit"] = True
    machine.exit_checks.append(_leaks)


def _leaks(cta: Cta) -> None:
    found = cta.extras.get("tensor memory")
    if not isinstance(found, TensorMemory):
        return
    for first, op in found.allocated_by.items():
        count = found.allocations.live.get(first, 0)
        cta.machine.report(
            "TC-05",
            f"{cta.who} leaves with columns {first} to {first + count - 1} of tensor memory allocated",
            op,
        )


def bits_of(numbers: Iterable[int]) -> int:
    """A set of small numbers as bits."""
    found = 0
    for number in numbers:
        found |= 1 << number
    return found


def span(first: int, count: int) -> int:
    """The numbers from `first` on as bits."""
    return ((1 << count) - 1) << first
