"""Slots that are used before the wait for them, and answers that one lane gives back for all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.audit.copies import loads
from tilewright.audit.signals import ARRIVES, CTA_BARRIERS, WAITS
from tilewright.ptx.nodes import Memory, Name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel
    from tilewright.audit.rules import Outcome
    from tilewright.ptx.flow import Op

READS = ("wgmma.mma_async", "tcgen05.mma")
WARP = 32


def _slots_of(kernel: Kernel) -> dict[str, list[Op]]:
    """Waits by the unknown index of their slot."""
    found: dict[str, list[Op]] = {}
    for op in kernel.ops(*WAITS):
        value = kernel.value(op, "mbar")
        if value is not None and len(value.unknown) == 1 and kernel.ring(op) is not None:
            found.setdefault(value.unknown[0][0], []).append(op)
    return found


def _defined_at(term: str) -> frozenset[int]:
    """The definitions that an unknown term is named by."""
    digits = "".join(c if c.isdigit() else " " for c in term.partition(" ")[2])
    return frozenset(map(int, digits.split()))


def early_uses(kernel: Kernel) -> Iterator[Outcome]:
    """TMA-07: a thread copies into a slot, or multiplies what is in it, before its wait for that slot."""
    yield from _early_reads(kernel)
    slots = _slots_of(kernel)
    copies = [copy.op for copy in loads(kernel)]
    for term, waits in slots.items():
        made = _defined_at(term)
        using = [op for op in (*copies, *kernel.ops(*READS)) if _uses(kernel, op, term, made)]
        if not using:
            continue
        done = kernel.paths.when(frozenset(op.index for op in waits), answer=True)
        for op in using:
            for crowd in kernel.paths.crowds_of(op, waits[0]):
                starts = [i for i in made if crowd.may(kernel.threads(kernel.flow.ops[i])[0])]
                around = frozenset().union(*(m for _, m in kernel.flow.loops(waits[0].index)[-1:]))
                if not around or not kernel.paths.find(
                    crowd, starts, (op.index,), avoid=made, closed=done, certain=True,
                    open_=kernel.paths.must(op, ()),
                ):  # fmt: skip
                    continue
                if op.is_a(*READS):
                    yield kernel.undecided(
                        "TMA-07", "whether this thread has waited for the slot by another wait", op
                    )
                    return
                yield kernel.finding(
                    "TMA-07",
                    f"{op.entry} uses a slot before this thread waits for it: the wait that names the same slot comes"
                    " behind",
                    op, waits[0], "waits for the slot",
                )  # fmt: skip
                return


def _early_reads(kernel: Kernel) -> Iterator[Outcome]:
    """What st.async brings, read by a thread that has not yet seen a phase of its barrier end."""
    for store in kernel.ops("st.async"):
        ring, place = kernel.ring(store), kernel.value(store, "dst")
        waits = kernel.of_ring(ring, *WAITS) if ring is not None else []
        done = kernel.paths.when(frozenset(op.index for op in waits), answer=True)
        for read in kernel.ops("ld") if waits and place is not None and not place.unknown else ():
            value = kernel.value(read, "src")
            if value is None or place is None or not value.base or not value.same_place(place):
                continue
            for crowd in kernel.paths.crowds_of(read):
                mine = [op for op in waits if crowd.may(kernel.threads(op)[0])]
                goal = (read.index,)
                if not kernel.paths.find(crowd, (-1,), goal, closed=done):
                    continue
                if mine and kernel.paths.find(
                    crowd, (-1,), goal, closed=done, certain=True, open_=kernel.paths.must(read, ())
                ):
                    yield kernel.finding(
                        "TMA-07",
                        f"what st.async brings is read before this thread waits for {ring.name if ring else ''}",
                        read, mine[0], "waits here",
                    )  # fmt: skip
                else:
                    yield kernel.undecided(
                        "TMA-07",
                        "whether data lead past the wait for what st.async brings"
                        if mine
                        else "whether others have waited for what st.async brings, for threads that never do",
                        read,
                    )
                return


def _uses(kernel: Kernel, op: Op, term: str, made: frozenset[int]) -> bool:
    """Whether an instruction's slot, or an address in its descriptors, is computed from an index."""
    value = kernel.value(op, "mbar") if "mbar" in op.roles else None
    if value is not None:
        return len(value.unknown) == 1 and value.unknown[0][0] == term
    names = [each.name for each in op.operands if isinstance(each, Name)]
    names += [
        p.name
        for each in op.operands
        if isinstance(each, Memory)
        for p in each.parts
        if isinstance(p, Name)
    ]
    register = term.split(" ", maxsplit=1)[0]
    return any(
        register in _read(kernel, index)
        and made == frozenset(kernel.values.reaching(register, index))
        for name in names
        for index in kernel.paths.logic.slice(name, op.index)
    )  # fmt: skip


def _read(kernel: Kernel, index: int) -> set[str]:
    return {each.name for each in kernel.flow.ops[index].operands[1:] if isinstance(each, Name)}


def released_by_one(kernel: Kernel) -> Iterator[Outcome]:
    """TMA-07, not decided: all lanes read what st.async wrote, one releases it, and no barrier of the warp between."""
    stores = kernel.ops("st.async")
    places = [value for op in stores if (value := kernel.value(op, "dst")) is not None]
    syncs = kernel.indices(kernel.ops("bar.warp.sync", *CTA_BARRIERS))
    filled = {kernel.ring(op) for op in stores}
    for read in kernel.ops("ld") if places else ():
        value = kernel.value(read, "src")
        if value is None or not any(value.same_place(each) for each in places):
            continue
        lanes = kernel.threads(read)[0]
        for arrive in kernel.ops(*ARRIVES):
            ring = kernel.ring(arrive)
            fewer = kernel.threads(arrive)[0] & lanes
            if ring in filled or not fewer.any() or fewer.sum() * WARP > lanes.sum():
                continue
            ways = syncs | kernel.indices(kernel.ops(*WAITS)) | kernel.elsewhere(arrive)
            if kernel.flow.path((read.index,), (arrive.index,), ways):
                yield kernel.undecided(
                    "TMA-07",
                    "all lanes read what st.async wrote and one of them releases it, with no bar.warp.sync between:"
                    " whether the others have read is not known",
                    read,
                )
                break
