"""Rings of mbarriers that an index walks: how far it goes, and what the slots that it comes to were given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.audit.kernel import MBARRIER_BYTES
from tilewright.audit.signals import CTA_BARRIERS, WAITS, signalled_by
from tilewright.ptx.flow import constant
from tilewright.ptx.nodes import Name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel, Ring
    from tilewright.audit.rules import Outcome
    from tilewright.ptx.flow import Op
    from tilewright.ptx.values import Value

Place = tuple[str, int]
"""A shared symbol and an offset in it."""


@dataclass(frozen=True, eq=False)
class Walk:
    """An instruction on a slot whose index goes 0, 1, ... and back to 0 at `depth`.

    Attributes:
        start: the slot of index 0.
        wrap: the comparison that sends it back.
    """

    op: Op
    start: Place
    depth: int
    wrap: Op


def walks(kernel: Kernel) -> list[Walk]:
    """Every instruction on a barrier whose slot is a counted index."""
    depths: dict[str, tuple[int, Op]] = {}
    for op in kernel.flow.ops:
        if op.node.opcode.root == "selp":
            depths.update(_wrapped(kernel, op))
    found = []
    for op in kernel.flow.ops:
        value = kernel.value(op, "mbar") if "mbar" in op.roles else None
        if value is None or not value.base or value.single is None or len(value.unknown) != 1:
            continue
        term, factor = value.unknown[0]
        if factor == MBARRIER_BYTES and term in depths:
            depth, wrap = depths[term]
            found.append(Walk(op, (value.base, value.single), depth, wrap))
    return found


def _wrapped(kernel: Kernel, op: Op) -> Iterator[tuple[str, tuple[int, Op]]]:
    """Unknown terms that an index has which this `selp` sends back to 0, and where."""
    target = op.operands[0]
    found = _wrap_of(kernel, op)
    if found is None or not isinstance(target, Name) or op.guard:
        return
    yield f"{target.name} = {op.index}", found
    yield from ((term, found) for term in _carried(kernel, target.name, op.index))


def _carried(kernel: Kernel, name: str, index: int) -> Iterator[str]:
    """Terms of the register, and of copies of it, where the wrapped value meets numbers."""
    for reader in kernel.flow.ops:
        for operand in reader.operands:
            if not isinstance(operand, Name) or operand.name != name:
                continue
            value = kernel.values.of(operand, reader)
            defs = kernel.values.reaching(name, reader.index)
            alone = len(value.unknown) == 1 and value.unknown[0][1] == 1 and not value.base
            if index in defs and len(defs) > 1 and alone and value.single == 0:
                others = (kernel.flow.ops[i] for i in defs if i != index)
                if all(_is_start(kernel, other) for other in others):
                    yield value.unknown[0][0]


def _is_start(kernel: Kernel, op: Op) -> bool:
    """Whether a definition gives the first slot."""
    value = kernel.values.of(op.operands[1], op) if op.node.opcode.root == "mov" else None
    return value is not None and value.number() == 0


def _wrap_of(kernel: Kernel, op: Op) -> tuple[int, Op] | None:
    """Where `selp` of 0 and an index + 1 goes back: at the number that the incremented index never is."""
    yes, no, chooser = op.operands[1:4]
    if not isinstance(chooser, Name):
        return None
    back_if = constant(yes) == 0
    step = kernel.values.of(no if back_if else yes, op)
    defs = kernel.values.reaching(chooser.name, op.index)
    if (not back_if and constant(no) != 0) or len(defs) != 1 or not _is_step(step):
        return None
    test = kernel.flow.ops[defs[0]]
    wanted = {"eq", "ge", "hs"} if back_if else {"ne", "lt", "lo"}
    if test.node.opcode.root != "setp" or test.guard or len(test.operands) != 3:
        return None
    if not wanted & set(test.node.opcode.modifiers):
        return None
    left, right = (kernel.values.of(each, test) for each in test.operands[1:3])
    number = right.number()
    if number is None or left.base or left.unknown != step.unknown or left.single is None:
        return None
    depth = number + (step.single or 0) - left.single
    return (depth, test) if depth >= 1 else None


def _is_step(value: Value) -> bool:
    return (
        not value.base
        and value.single == 1
        and len(value.unknown) == 1
        and value.unknown[0][1] == 1
    )


# --- what the slots were given --------------------------------------------------------------------


@dataclass(frozen=True)
class Inits:
    """Every initialisation of the kernel by its place; `complete` where no address is left unknown."""

    at: dict[Place, list[Op]]
    complete: bool


def inits_of(kernel: Kernel) -> Inits:
    """The initialisations that the text shows."""
    at: dict[Place, list[Op]] = {}
    complete = not any(op.node.opcode.root == "call" for op in kernel.flow.ops)
    for op in kernel.ops("mbarrier.init"):
        value = kernel.value(op, "mbar")
        if value is None or not value.base or value.single is None or value.unknown:
            complete = False
        else:
            at.setdefault((value.base, value.single), []).append(op)
    return Inits(at, complete)


def _slots(walk: Walk) -> list[Place]:
    base, start = walk.start
    return [(base, start + MBARRIER_BYTES * i) for i in range(walk.depth)]


def _named(place: Place) -> str:
    return f"{place[0].partition(':')[2]}+{place[1]}"


def slots_alike(kernel: Kernel) -> Iterator[Outcome]:
    """MBAR-03: one index walks slots that were given different counts."""
    inits = kernel.view(inits_of)
    said: set[Place] = set()
    for walk in kernel.view(walks):
        counts = [
            (place, op, value.number() if (value := kernel.value(op, "count")) else None)
            for place in _slots(walk)
            for op in inits.at.get(place, ())
        ]
        known = [count for _, _, count in counts]
        if walk.start in said or not inits.complete or None in known or len(set(known)) < 2:
            continue
        if _two_depths(kernel, walk.start):
            continue
        said.add(walk.start)
        usual = max(set(known), key=known.count)
        place, odd, count = next(each for each in counts if each[2] != usual)
        yield kernel.finding(
            "MBAR-03",
            f"slots of one ring of {walk.depth} expect different arrivals: {_named(place)} {count}, another {usual}; every slot gets the same a phase, so one never completes or completes early",
            odd, walk.op, "one index walks them here",
        )  # fmt: skip


def _two_depths(kernel: Kernel, start: Place) -> bool:
    return len({walk.depth for walk in kernel.view(walks) if walk.start == start}) > 1


def slots_initialised(kernel: Kernel) -> Iterator[Outcome]:
    """MBAR-04: an index walks over a slot that no initialisation made a barrier."""
    inits = kernel.view(inits_of)
    said: set[Place] = set()
    for walk in kernel.view(walks):
        missing = [place for place in _slots(walk) if place not in inits.at]
        if not missing or walk.start in said or not inits.complete or not inits.at:
            continue
        if len(missing) == walk.depth or not walk.start[0].startswith("shared"):
            continue
        said.add(walk.start)
        yield kernel.finding(
            "MBAR-04",
            f"slot {(missing[0][1] - walk.start[1]) // MBARRIER_BYTES} of a ring of {walk.depth} is never initialised: no mbarrier.init of {_named(missing[0])}",
            walk.op, walk.wrap, "the index goes back to 0 here",
        )  # fmt: skip


def ended_slots(kernel: Kernel) -> Iterator[Outcome]:
    """MBAR-10: an index walks over a slot that was invalidated before all threads met, and not made anew."""
    flow, inits = kernel.flow, kernel.view(inits_of)
    meetings = kernel.indices(kernel.ops("barrier.cluster.arrive", *CTA_BARRIERS))
    ends = kernel.ops("mbarrier.inval")
    named = list(_places(kernel)) if ends else []
    for end in ends:
        value = kernel.value(end, "mbar")
        if value is None or value.unknown or value.single is None:
            continue
        place = value.base, value.single
        again = kernel.indices(inits.at.get(place, ()))
        ahead = flow.reachable((end.index,), again)
        late = {i for i in meetings & ahead if not flow.path((i,), (end.index,))}
        if not late or kernel.reach.open_conditions(end) or again & ahead:
            continue
        for op, places in named:
            met = op.index in ahead and not kernel.reach.threads_to((-1,), op, late)
            if place in places and op is not end and met:
                yield kernel.finding(
                    "MBAR-10",
                    f"{op.name} comes to {_named(places[0])} after the mbarrier.inval of {'it' if len(places) == 1 else 'one of its slots'}",
                    op, end, "no barrier from here on",
                )  # fmt: skip
                break


def _places(kernel: Kernel) -> Iterator[tuple[Op, list[Place]]]:
    """Instructions on barriers with every slot that they come to."""
    walked = {walk.op: walk for walk in kernel.view(walks)}
    for op in kernel.flow.ops:
        value = kernel.value(op, "mbar") if "mbar" in op.roles else None
        if op in walked:
            yield op, _slots(walked[op])
        elif value is not None and value.base and not value.unknown and value.single is not None:
            yield op, [(value.base, value.single)]


def one_depth(kernel: Kernel) -> Iterator[Outcome]:
    """MBAR-07: the sides of a ring go back to slot 0 at different depths, or one walks into another ring."""
    first: dict[Place, Walk] = {}
    everything = kernel.view(walks)
    said: set[Place] = set()
    for walk in everything:
        other = first.setdefault(walk.start, walk)
        if other.depth != walk.depth and walk.start not in said:
            said.add(walk.start)
            yield kernel.finding(
                "MBAR-07",
                f"slots of {_named(walk.start)} are walked to {walk.depth} here and to {other.depth} elsewhere: after one round the sides wait for each other in different slots",
                walk.wrap, other.wrap, f"goes back to slot 0 at {other.depth}",
            )  # fmt: skip
    for walk in everything:
        inside = next((each for each in everything if each.start in _slots(walk)[1:]), None)
        if inside is not None and walk.start not in said:
            said.add(walk.start)
            yield kernel.finding(
                "MBAR-07",
                f"ring at {_named(walk.start)} is walked to {walk.depth} slots: slot {(inside.start[1] - walk.start[1]) // MBARRIER_BYTES} is the first of another ring",
                walk.wrap, inside.op, "walks that ring",
            )  # fmt: skip


# --- a parity that never changes ------------------------------------------------------------------


def constant_in_loop(kernel: Kernel, ring: Ring) -> Iterator[Outcome]:
    """MBAR-07: a wait in a loop for a parity that is the same in every round, where rounds come again."""
    waits = kernel.of_ring(ring, *WAITS)
    walked = {walk.op: walk for walk in kernel.view(walks)}
    for wait in waits:
        parity = _number(kernel, wait)
        if parity is None:
            continue
        loop = _outer_loop(kernel, wait)
        if loop is None or any(init.index in loop for init in ring.inits):
            continue
        value = kernel.value(wait, "mbar")
        wraps = wait in walked and walked[wait].wrap.index in loop
        fixed = value is not None and not value.unknown and value.single is not None
        if not (wraps or fixed) or not _only_wait(kernel, wait, waits, loop):
            continue
        signals = signalled_by(kernel, ring)
        back = [op for op in signals if kernel.flow.path((op.index,), (op.index,))]
        if not signals or len(back) != len(signals) or not _hands_back(kernel, wait, loop, ring):
            continue
        yield kernel.finding(
            "MBAR-07",
            f"{ring.name} is waited for with parity {parity & 1} in every round of a loop: the phases of a slot alternate, so every other wait is for one that is long over or blocks for ever",
            wait, back[0], "arrives in every round",
        )  # fmt: skip
        return


def _number(kernel: Kernel, wait: Op) -> int | None:
    value = kernel.value(wait, "parity")
    return None if value is None else value.number()


def _outer_loop(kernel: Kernel, wait: Op) -> frozenset[int] | None:
    """The innermost loop around a wait that does more than ask again."""
    for _, members in kernel.flow.loops(wait.index):
        if any(kernel.flow.ops[i].is_a(*WORK) for i in members):
            return members
    return None


WORK = (
    "mbarrier.arrive", "tcgen05.commit", "tcgen05.mma", "cp.async.bulk", "st.async",
    "clusterlaunchcontrol.try_cancel", "wgmma.mma_async", "tcgen05.ld",
)  # fmt: skip


def _only_wait(kernel: Kernel, wait: Op, waits: list[Op], loop: frozenset[int]) -> bool:
    """Whether these threads wait for the ring once a round, and in no other loop."""
    for other in waits:
        if other is wait:
            continue
        if _number(kernel, other) not in {None, _number(kernel, wait)}:
            return False  # two that take turns
        if not kernel.together(other, wait):
            continue
        if other.index in loop:
            return False
        around = _outer_loop(kernel, other)
        if around is not None and not around >= loop:
            return False
    return True


def _hands_back(kernel: Kernel, wait: Op, loop: frozenset[int], ring: Ring) -> bool:
    """Whether the round signals another barrier: then the other side goes round with it."""
    return any(
        op.is_a("mbarrier.arrive", "tcgen05.commit", "cp.async.bulk", "st.async")
        and "mbar" in op.roles
        and kernel.together(op, wait)
        and (other := kernel.ring(op)) is not None
        and other is not ring
        for op in (kernel.flow.ops[i] for i in loop)
    )
