"""Two warps, one of each CTA of a pair, that allocate or give back tensor memory together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.emulate.tensor_memory import pair_of, span, tensor_memory
from tilewright.emulate.tmem import column_of

if TYPE_CHECKING:
    from tilewright.emulate.tensor_memory import TensorMemory
    from tilewright.emulate.warp import Warp
    from tilewright.ptx.flow import Op


@dataclass(eq=False, slots=True)
class Asking:
    """A warp that has come to tcgen05.alloc or tcgen05.dealloc.

    Attributes:
        address: of what is given back; of what was allocated once it is done.
        done: its columns are allocated or given back.
        kind: "alloc" or "dealloc".
        ctas: how many warps do it together.
    """

    op: Op
    warp: Warp
    columns: int
    address: int = 0
    done: bool = False
    kind: str = ""
    ctas: int = 1

    def story(self) -> str:
        """For the report of a deadlock."""
        memory = tensor_memory(self.warp.cta)
        what = f"tcgen05.{self.kind} of {self.columns} columns"
        if len(_heads(memory, self)) < self.ctas:
            return f"{what}: the peer's warp has not come"
        return f"{what}: {memory.allocations.describe()}"


def ask(memory: TensorMemory, kind: str, asking: Asking, ctas: int) -> Asking:
    """A warp asks; what can be done is done at once."""
    asking.kind, asking.ctas = kind, ctas
    if len(pair_of(memory.cta)) < ctas:
        memory.cta.machine.stop(
            "TC-19",
            f"{asking.warp.who}: tcgen05.{kind}.cta_group::2 in a cluster without a peer",
            asking.op,
        )
    _check_launched(memory, asking)
    memory.queues.setdefault(kind, []).append(asking)
    settle(memory)
    return asking


def _check_launched(memory: TensorMemory, asking: Asking) -> None:
    """Whether the warp knows that the peer runs: "must make sure that peer CTA is launched" (PTX ISA, tcgen05.alloc).

    A warning, since CTAs of a cluster are launched together and shipped code relies on it: CUTLASS' tutorial of the
    pair MMA (04_mma_tma_2sm_sm100.cu) allocates before its CTAs have met.
    """
    if asking.ctas == 1:
        return
    machine, clocks = memory.cta.machine, asking.warp.clocks
    for peer in pair_of(memory.cta):
        started = ("started", peer.cluster.index, peer.rank)
        if peer is not memory.cta and not clocks.knows_mark(0, started, 1):
            machine.report(
                "TC-19",
                f"{asking.warp.who}: tcgen05.{asking.kind} of a pair before anything says that {peer.who} has been "
                "launched",
                asking.op,
                severity="warning",
            )


def settle(memory: TensorMemory) -> None:
    """Do what can be done now, gifts first."""
    everybody = [tensor_memory(cta) for cta in pair_of(memory.cta)]
    while any(_step(each, kind) for kind in ("dealloc", "alloc") for each in everybody):
        pass


def give_back(memory: TensorMemory, asking: Asking) -> None:
    """Free what a warp gives back, without waiting for anybody."""
    memory.allocations.free(asking.address, asking.columns)
    first = column_of(asking.address)
    memory.allocated_by.pop(first, None)
    memory.forget(span(first, asking.columns))
    asking.done = True


def _heads(memory: TensorMemory, asking: Asking) -> list[tuple[TensorMemory, Asking]]:
    """The first in the queue of each CTA that takes part."""
    ctas = [memory.cta] if asking.ctas == 1 else pair_of(memory.cta)
    memories = [tensor_memory(cta) for cta in ctas]
    return [
        (each, each.queues[asking.kind][0]) for each in memories if each.queues.get(asking.kind)
    ]


def _step(memory: TensorMemory, kind: str) -> bool:
    """The first in a queue, with the peer's if it needs one: whether it is done."""
    queue = memory.queues.get(kind)
    if not queue:
        return False
    asking = queue[0]
    heads = _heads(memory, asking)
    if len(heads) < asking.ctas:
        return False
    other = heads[-1][1]
    if other.columns != heads[0][1].columns:
        memory.cta.machine.stop(
            "TC-02",
            f"tcgen05.{kind} of a pair with {heads[0][1].columns} columns in one CTA and {other.columns} in the "
            "other",
            asking.op,
            other.op,
            "the peer's",
        )
    if kind == "alloc":
        allocations = [each.allocations for each, _ in heads]
        first = allocations[0].find(asking.columns, *allocations[1:])
        if first is None:
            return False
        for each, one in heads:
            each.allocations.take(first, one.columns)
            each.allocated_by[first] = one.op
            one.address, one.done = first, True
    else:
        for each, one in heads:
            give_back(each, one)
    for each, _ in heads:
        each.queues[kind].pop(0)
        each.cta.machine.wake(each)
    return True
