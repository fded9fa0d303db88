"""Mutants of mbarriers: waits, arrivals, bytes, counts, parities, initialisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mutants import Break, Subject, operator

from tilewright.audit.contract import SIGNALS
from tilewright.audit.kernel import MBARRIER_BYTES
from tilewright.audit.phases import parity_of
from tilewright.ptx import print_operand, print_statement
from tilewright.ptx.nodes import Integer, Name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Ring
    from tilewright.ptx.flow import Op

# --- waits ------------------------------------------------------------------------------------------------------------


@operator(
    "MBAR-12", "MBAR-03", "MBAR-05", "CLC-06", "CLC-15", "TMA-07", "TC-17", "TC-18",
    breaks="race: what the wait held back now runs before the phase has completed",
)  # fmt: skip
def drop_wait(subject: Subject) -> Iterator[Break]:
    """No wait at all."""
    for op in subject.waits:
        yield Break(f"no wait{subject.on(op)}", op, subject.drop(op, *subject.retries(op)))


@operator(
    "TC-18", "TMA-10",
    breaks="undefined: commits may still signal the CTA when it has left; the last accumulator does not prove them done",
)  # fmt: skip
def drop_tail(subject: Subject) -> Iterator[Break]:
    """All waits of a producer behind its loop, for the releases by tcgen05.commit."""
    tail = [op for op in subject.waits if not subject.reaches_work(op)]
    if tail:
        edits = [e for op in tail for e in subject.drop(op, *subject.retries(op))]
        yield Break(f"none of {len(tail)} waits for the last commits", tail[0], edits)


@operator(
    "CLC-06", "MBAR-15",
    breaks="race: try_wait may return false at any time, and nobody asks again",
)  # fmt: skip
def wait_once(subject: Subject) -> Iterator[Break]:
    """The wait is not repeated until it succeeds."""
    for op in subject.waits:
        retries = subject.retries(op)
        if retries:
            yield Break(f"one try of the wait{subject.on(op)}", op, subject.drop(*retries))


@operator(
    "CLC-06", "MBAR-12", "MBAR-03", "TMA-07", "TC-12", "TC-17",
    breaks="race: the work comes first, the wait that should hold it back behind it",
)  # fmt: skip
def move_wait(subject: Subject) -> Iterator[Break]:
    """The wait stands behind the first thing that rests on it."""
    rests = (
        "cp.async.bulk.tensor",
        "wgmma.mma_async",
        "tcgen05.mma",
        "tcgen05.ld",
        "ld",
        "st.async",
    )
    for op in subject.waits:
        behind = subject.flow.ops[op.index + 1 : op.index + 90]
        work = next((o for o in behind if o.is_a(*rests) and not o.has("param")), None)
        if work is None or not subject.flow.path((op.index,), (work.index,)):
            continue
        held = [o for o in behind if o.entry == work.entry and o.index < work.index + 12]
        after = subject.next_op(held[-1])
        between = subject.flow.ops[op.index + 1 : held[-1].index]
        if after is None or any(o.is_a("mbarrier.try_wait") for o in between):
            continue
        edits = subject.drop_scope(op) + subject.before(after, subject.scope(op))
        yield Break(
            f"the wait{subject.on(op)} behind {work.entry} of line {work.span.line}",
            op,
            edits,
            held,
        )


@operator(
    "MBAR-07", "MBAR-03", "CLC-15",
    breaks="deadlock or race: the other parity is that of the phase before, or of the one that never comes",
)  # fmt: skip
def flip_parity(subject: Subject) -> Iterator[Break]:
    """A wait for the other parity."""
    for op in subject.kernel.ops("mbarrier.try_wait", "mbarrier.test_wait"):
        if "parity" in op.roles:
            yield Break(
                f"the other parity of the wait{subject.on(op)}", op,
                subject.put(op, subject.changed(op, "parity", "b32", "xor", 1)),
            )  # fmt: skip


@operator(
    "MBAR-07",
    breaks="deadlock or race: from the second phase on the parity is that of a phase long complete, or not yet begun",
)
def constant_parity(subject: Subject) -> Iterator[Break]:
    """A wait whose parity never flips."""
    for op in subject.waits:
        value = subject.kernel.value(op, "parity")
        retry = {each.index for each in subject.retries(op)} | {op.index}
        if value is None or value.known or not _outer_loops(subject, op, retry):
            continue
        for parity in (0, 1):
            yield Break(
                f"parity {parity} for ever in the wait{subject.on(op)}", op,
                subject.put(op, subject.set_to(op, "parity", "b32", parity)),
            )  # fmt: skip


def _outer_loops(subject: Subject, op: Op, retry: set[int]) -> bool:
    return any(not members <= retry for _, members in subject.flow.loops(op.index))


@operator(
    "MBAR-07",
    breaks="deadlock or race: the parity is not flipped where the ring comes round",
)
def drop_phase_flip(subject: Subject) -> Iterator[Break]:
    """The parity register keeps its value in the loop."""
    flips: dict[Op, list[Op]] = {}
    for wait in subject.waits:
        for flip in _flips(subject, wait):
            if subject.flow.loops(flip.index):
                flips.setdefault(flip, []).append(wait)
    for op, waits in sorted(flips.items(), key=lambda item: item[0].index):
        yield Break(f"`{op.node.text.strip()}` dropped", op, subject.drop(op), waits)


def _flips(subject: Subject, wait: Op) -> Iterator[Op]:
    """`xor r, r, …` that the wait's parity comes from."""
    parity = wait.role("parity")
    if not isinstance(parity, Name):
        return
    seen: set[int] = set()
    stack = [(parity.name, wait.index)]
    while stack:
        name, at = stack.pop()
        for index in subject.values.reaching(name, at):
            op = subject.flow.ops[index]
            if index in seen or op.node.opcode.root not in {"xor", "mov", "selp"}:
                continue
            seen.add(index)
            names = [operand.name for operand in op.operands[1:] if isinstance(operand, Name)]
            if op.node.opcode.root == "xor" and op.operands[0] in op.operands[1:]:
                yield op
            else:
                stack += [(each, index) for each in names]


@operator(
    "MBAR-07", "MBAR-03", "CLC-06",
    breaks="deadlock or race: the first wait passes before anything is there, or waits for what comes after it",
)  # fmt: skip
def wrong_first_parity(subject: Subject) -> Iterator[Break]:
    """The parity register begins with the other value."""
    waits: dict[Op, list[Op]] = {}
    for wait in subject.waits:
        parity = parity_of(subject.kernel, wait)
        for op in subject.values.definitions(parity.register) if parity is not None else ():
            if op.node.opcode.root == "mov":
                waits.setdefault(op, []).append(wait)
    for op, begun in waits.items():
        number = subject.values.of(op.operands[1], op).number()
        if number is not None:
            to, words = print_operand(op.node.operands[0]), ".".join(op.node.opcode.modifiers)
            text = f"mov.{words} {to}, {number ^ 1};"
            what = f"the phases{subject.on(begun[0])} begin with {number ^ 1}"
            yield Break(what, op, subject.put(op, text), begun)


@operator(
    "MBAR-07", "MBAR-03", "CLC-15",
    breaks="deadlock or race: one side leaves out every other slot, and the other side does not",
)  # fmt: skip
def skip_slot(subject: Subject) -> Iterator[Break]:
    """The slot index advances by two."""
    for ring in subject.kernel.rings:
        walkers = [op for ops in (subject.waits, subject.signals()) for op in ops]
        here = [op for op in walkers if subject.kernel.ring(op) is ring]
        for wrap in _wraps(subject, ring) if ring.slots is not None and ring.slots > 1 else ():
            for index in subject.values.reaching(_left(wrap), wrap.index):
                op = subject.flow.ops[index]
                last = op.operands[-1] if op.operands else None
                if op.node.opcode.root == "add" and isinstance(last, Integer) and last.value == 1:
                    operands = (*op.node.operands[:2], Integer(2, "2"))
                    words = ".".join(op.node.opcode.modifiers)
                    text = f"add.{words} {', '.join(map(print_operand, operands))};"
                    what = f"the index of a ring of {ring.slots} advances by two"
                    yield Break(what, op, subject.put(op, text), here)


def _left(compare: Op) -> str:
    operand = compare.operands[1]
    return operand.name if isinstance(operand, Name) else ""


@operator(
    "MBAR-03", "MBAR-07", "CLC-18", "CLC-06",
    breaks="deadlock or race: another barrier's phases say nothing about what is waited for",
)  # fmt: skip
def wait_elsewhere(subject: Subject) -> Iterator[Break]:
    """A wait on another barrier object."""
    for op in subject.waits:
        ring = subject.kernel.ring(op)
        offset = subject.neighbour(ring) if ring is not None else None
        if offset is not None:
            yield Break(
                f"the wait{subject.on(op)} is on the barrier {offset:+} bytes away", op,
                subject.put(op, subject.shifted(op, "mbar", offset)),
            )  # fmt: skip


@operator(
    "MBAR-03", "MBAR-07", "CLC-15",
    breaks="deadlock or race: the slot's own phase is not the one that is waited for",
)  # fmt: skip
def wait_next_slot(subject: Subject) -> Iterator[Break]:
    """A wait on the next slot of the same ring."""
    for op in subject.waits:
        ring = subject.kernel.ring(op)
        if ring is not None and ring.slots is not None and ring.slots > 1:
            yield Break(
                f"the wait{subject.on(op)} is one slot on", op,
                subject.put(op, subject.shifted(op, "mbar", MBARRIER_BYTES)),
            )  # fmt: skip


def _feeds_generic_read(subject: Subject, wait: Op) -> bool:
    """Whether a generic load of shared memory comes behind a wait, before another wait."""
    others = {o.index for o in subject.kernel.ops("mbarrier.try_wait", "mbarrier.test_wait")}
    near = subject.flow.reachable((wait.index,), others)
    ring = subject.kernel.ring(wait)
    written = ring is not None and subject.kernel.of_ring(
        ring, "clusterlaunchcontrol.try_cancel", "st.async", "cp.async.bulk"
    )
    return bool(written) and any(
        subject.flow.ops[i].is_a("ld") and "shared" in subject.flow.ops[i].name for i in near
    )


@operator(
    "CLC-06", "MBAR-08",
    breaks="race: a relaxed wait makes nothing visible, and generic loads of what was written follow it",
)  # fmt: skip
def relax_wait(subject: Subject) -> Iterator[Break]:
    """Acquire made relaxed."""
    for op in subject.waits:
        if op.has("acquire") and _feeds_generic_read(subject, op):
            yield Break(
                f"a relaxed wait{subject.on(op)}", op,
                subject.put(op, subject.swapped(op, "acquire", "relaxed")),
            )  # fmt: skip


@operator(
    "MBAR-08", "CLC-06",
    breaks="race by the letter: what another CTA or a copy of cluster scope wrote is not acquired at the CTA's scope",
)  # fmt: skip
def narrow_wait(subject: Subject) -> Iterator[Break]:
    """acquire.cluster made the default, acquire.cta."""
    for op in subject.waits:
        if op.has("acquire", "cluster") and _feeds_generic_read(subject, op):
            yield Break(
                f"CTA scope for the wait{subject.on(op)}", op,
                subject.put(op, subject.without(op, "acquire", "cluster")),
            )  # fmt: skip


# --- arrivals ---------------------------------------------------------------------------------------------------------


def _arrivals(subject: Subject) -> list[Op]:
    return [op for op in subject.kernel.ops(*SIGNALS) if not op.is_a("tcgen05")]


@operator(
    "MBAR-03", "TMA-08", "TC-17", "WG-04", "CLC-04", "CLC-03",
    breaks="deadlock: the phase lacks an arrival",
)  # fmt: skip
def drop_arrive(subject: Subject) -> Iterator[Break]:
    """No arrival, nor the bytes that it announces."""
    for op in _arrivals(subject):
        yield Break(f"no {op.entry}{subject.on(op)}", op, subject.drop(op))


@operator(
    "MBAR-05", "MBAR-03",
    breaks="race or underflow: the phase completes one arrival early, or the count falls below zero",
)  # fmt: skip
def double_arrive(subject: Subject) -> Iterator[Break]:
    """The arrival happens twice."""
    for op in _arrivals(subject):
        yield Break(
            f"{op.entry}{subject.on(op)} twice", op,
            subject.behind(op, print_statement(op.node)),
        )  # fmt: skip


@operator(
    "CLC-04", "TMA-03", "MBAR-06",
    breaks="race: a plain arrival lets the phase complete before the bytes have come, which then underflow",
)  # fmt: skip
def plain_arrive(subject: Subject) -> Iterator[Break]:
    """arrive.expect_tx made arrive."""
    for op in _arrivals(subject):
        if op.is_a("mbarrier.arrive") and op.has("expect_tx"):
            yield Break(f"no bytes expected{subject.on(op)}", op, subject.put(op, _plain(op)))


def _plain(op: Op) -> str:
    words = ".".join(word for word in op.node.opcode.modifiers if word != "expect_tx")
    return f"mbarrier.{words} {', '.join(map(print_operand, op.node.operands[:2]))};"


@operator(
    "MBAR-03", "CLC-04",
    breaks="deadlock: the bytes are expected, but nobody arrives",
)  # fmt: skip
def only_expect(subject: Subject) -> Iterator[Break]:
    """arrive.expect_tx made expect_tx."""
    for op in _arrivals(subject):
        if op.is_a("mbarrier.arrive") and op.has("expect_tx"):
            yield Break(
                f"no arrival beside the bytes{subject.on(op)}", op, subject.put(op, _expect(op))
            )


def _expect(op: Op) -> str:
    kept = [
        word for word in op.node.opcode.modifiers if word not in {"arrive", "expect_tx", "release"}
    ]
    if "relaxed" not in kept:
        kept = [word for word in kept if word not in {"cta", "cluster"}]
    rest = ", ".join(map(print_operand, op.node.operands[1:]))
    return f"mbarrier.expect_tx.{'.'.join(kept)} {rest};"


@operator(
    "MBAR-06", "CLC-04", "TMA-03",
    breaks="race: the arrival completes the phase before the bytes are expected",
)  # fmt: skip
def expect_late(subject: Subject) -> Iterator[Break]:
    """The arrival first, the bytes expected behind it."""
    for op in _arrivals(subject):
        ring = subject.kernel.ring(op)
        if (
            op.is_a("mbarrier.arrive")
            and op.has("expect_tx")
            and ring is not None
            and ring.count == 1
        ):
            yield Break(
                f"bytes expected behind the arrival{subject.on(op)}", op,
                subject.put(op, f"{_plain(op)} {_expect(op)}"),
            )  # fmt: skip


@operator(
    "TMA-03", "TMA-13", "CLC-04", "MBAR-11",
    breaks="too many bytes deadlock; with too few the phase completes early and the rest underflows",
)  # fmt: skip
def wrong_bytes(subject: Subject) -> Iterator[Break]:
    """Half, double, 16 more, or 2^20."""
    for op in _arrivals(subject):
        if "tx_bytes" not in op.roles:
            continue
        value = subject.kernel.value(op, "tx_bytes")
        number = value.number() if value is not None else None
        if not number:
            continue
        for wrong in (number // 2, number * 2, max(number - 16, 0), number + 16, 1 << 20):
            yield Break(
                f"{wrong} bytes for {number} expected{subject.on(op)}", op,
                subject.put(op, subject.set_to(op, "tx_bytes", "b32", wrong)),
            )  # fmt: skip


# --- initialisation ---------------------------------------------------------------------------------------------------


def _with_count(subject: Subject, op: Op, count: int) -> str:
    return print_statement(subject.with_operand(op, "count", Integer(count, str(count))))


@operator(
    "MBAR-03", "MBAR-02", "MBAR-05",
    breaks="too high a count deadlocks; with too low a one the phase completes early; 0 is undefined",
)  # fmt: skip
def wrong_count(subject: Subject) -> Iterator[Break]:
    """Every slot of a ring with a count one up or down."""
    for ring in subject.kernel.rings:
        if ring.count is None:
            continue
        for count in (ring.count + 1, ring.count - 1):
            edits = [
                e for op in ring.inits for e in subject.put(op, _with_count(subject, op, count))
            ]
            yield Break(f"count {count} for {ring.count} of {ring.name}", ring.inits[0], edits)


@operator(
    "MBAR-03", "MBAR-02", "MBAR-05",
    breaks="deadlock, or race: the one slot waits for an arrival that nobody makes, or completes one early",
)  # fmt: skip
def wrong_slot_count(subject: Subject) -> Iterator[Break]:
    """One slot of a ring with a count one up or down."""
    for ring in subject.kernel.rings:
        counts = () if ring.count is None else (ring.count + 1, ring.count - 1)
        for op in ring.inits if len(ring.inits) > 1 else ():
            for count in counts:
                yield Break(
                    f"count {count} for {ring.count} of one slot of {ring.name}", op,
                    subject.put(op, _with_count(subject, op, count)),
                )  # fmt: skip


@operator("MBAR-04", "MBAR-10", breaks="undefined: the barrier is used and was never initialised")
def drop_init(subject: Subject) -> Iterator[Break]:
    """One slot without initialisation."""
    for ring in subject.kernel.rings:
        for op in ring.inits:
            yield Break(f"a slot of {ring.name} is not initialised", op, subject.drop(op))


@operator("MBAR-09", breaks="undefined: a live barrier is initialised again")
def init_twice(subject: Subject) -> Iterator[Break]:
    """An initialisation repeated, without inval between."""
    for ring in subject.kernel.rings:
        for op in ring.inits:
            again = subject.behind(op, print_statement(op.node))
            yield Break(f"a slot of {ring.name} initialised twice", op, again)


@operator("MBAR-01", breaks="undefined: a barrier object is 8-byte aligned")
def misaligned_barrier(subject: Subject) -> Iterator[Break]:
    """Initialised four bytes on."""
    for ring in subject.kernel.rings:
        for op in ring.inits:
            edits = subject.put(op, subject.shifted(op, "mbar", 4))
            yield Break(f"a slot of {ring.name} 4 bytes on", op, edits)


@operator(
    "MBAR-10", breaks="undefined: other writes to a live barrier, or any use of an invalidated one"
)
def spoil_barrier(subject: Subject) -> Iterator[Break]:
    """A store over a barrier, and its invalidation, right behind its initialisation."""
    for ring in subject.kernel.rings:
        op = ring.inits[0]
        address = print_operand(subject.raw(op, "mbar"))
        yield Break(
            f"a store over {ring.name}", op, subject.behind(op, f"st.shared.b32 {address}, 0;")
        )
        yield Break(
            f"{ring.name} invalidated", op,
            subject.behind(op, f"mbarrier.inval.shared::cta.b64 {address};"),
        )  # fmt: skip


@operator(
    "MBAR-07", "MBAR-04", "MBAR-03",
    breaks="deadlock or undefined: one side leaves the ring's end, or comes round a slot early, and the other does not",
)  # fmt: skip
def wrong_depth(subject: Subject) -> Iterator[Break]:
    """The slot index wraps one late or one early."""
    for ring in subject.kernel.rings:
        if ring.slots is None or ring.slots < 2:
            continue
        for op in _wraps(subject, ring):
            for depth in (ring.slots + 1, ring.slots - 1):
                operands = (*op.node.operands[:2], Integer(depth, str(depth)))
                words = ".".join(op.node.opcode.modifiers)
                text = f"setp.{words} {', '.join(map(print_operand, operands))};"
                yield Break(f"a ring of {ring.slots} wraps at {depth}", op, subject.put(op, text))


def _wraps(subject: Subject, ring: Ring) -> Iterator[Op]:
    """`setp.eq p, slot + 1, slots` in a loop, whose `selp` goes back to slot 0."""
    for op in subject.flow.ops:
        last = op.operands[-1] if op.operands else None
        if op.node.opcode.root != "setp" or not op.has("eq") or not isinstance(last, Integer):
            continue
        predicate = op.operands[0]
        wraps = any(
            other.node.opcode.root == "selp" and other.operands[-1] == predicate
            and isinstance(other.operands[1], Integer) and other.operands[1].value == 0
            and other.index - op.index < 16
            for other in subject.flow.ops[op.index :]
        )  # fmt: skip
        if last.value == ring.slots and wraps and subject.flow.loops(op.index):
            yield op
