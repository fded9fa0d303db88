"""Rules of the mbarrier family: the barrier object itself, from its initialisation to its end.

What happens in its phases is in `mbarrier_phase.py`, at which scope in `mbarrier_scope.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.audit.kernel import MBARRIER_BYTES
from tilewright.audit.mbarrier_rings import ended_slots, slots_initialised
from tilewright.audit.rules import Outcome, rule
from tilewright.audit.signals import (
    ARRIVES,
    COUNT_MAX,
    CTA_BARRIERS,
    WAITS,
    access_bytes,
    align_of,
    bytes_of,
    cluster_fences,
    declared,
    multicasts,
    where,
)
from tilewright.ptx.finding import Finding
from tilewright.ptx.nodes import Sink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel
    from tilewright.ptx.flow import Op
    from tilewright.ptx.values import Value

EXPECTS = ("mbarrier.expect_tx", "mbarrier.complete_tx")
WARP = 32
OWN_ONLY = ("mbarrier.init", "mbarrier.inval", *WAITS)


def _barrier_ops(kernel: Kernel) -> list[tuple[Op, Value]]:
    """Instructions of the mbarrier family with the address that they name."""
    found = []
    for op in kernel.flow.ops:
        value = kernel.value(op, "mbar") if "mbar" in op.roles else None
        if value is not None:
            found.append((op, value))
    return found


@rule(
    "MBAR-01", "error", section="9.7.13.15.1",
    help="give the barrier 8 bytes of its own CTA's shared memory, 8-byte aligned",
)  # fmt: skip
def object_size_and_alignment(kernel: Kernel) -> Iterator[Outcome]:
    """A barrier is 8 bytes, aligned to 8, in shared memory."""
    said: set[tuple[str, int | None]] = set()
    for op, value in _barrier_ops(kernel):
        if value.place in said:
            continue
        why = _misplaced(kernel, op, value)
        if why:
            said.add(value.place)
            yield kernel.finding("MBAR-01", why, op)


def _misplaced(kernel: Kernel, op: Op, value: Value) -> str | None:
    space, _, name = value.base.partition(":")
    if space in {"global", "local", "const"}:
        return f"barrier in .{space} memory: {name}; an mbarrier is an object in shared memory"
    variable = declared(kernel, value.base)
    if space != "shared" or variable is None:
        return None
    threads = kernel.threads(op)[0]
    offsets = np.broadcast_to(value.constant, threads.shape)[threads]
    if offsets.size == 0 or any(each % MBARRIER_BYTES for _, each in value.unknown):
        return None
    odd = offsets[offsets % MBARRIER_BYTES != 0]
    if odd.size and align_of(variable) % MBARRIER_BYTES == 0:
        return f"barrier at {name.partition('@')[0]}+{odd[0]} is not 8-byte aligned"
    size = bytes_of(variable, name)
    if size is not None and not value.unknown and int(offsets.min()) + MBARRIER_BYTES > size:
        return f"8-byte barrier at {name.partition('@')[0]}+{offsets.min()} passes the end of its symbol: {size} bytes"
    return None


@rule(
    "MBAR-02", "error", section="9.7.13.15.9",
    help="initialise with the number of arrivals a phase, 1 to 1048575",
)  # fmt: skip
def initial_count(kernel: Kernel) -> Iterator[Outcome]:
    """A barrier is initialised with a count of 1 to 2^20 - 1."""
    for op in kernel.ops("mbarrier.init"):
        value = kernel.value(op, "count")
        count = None if value is None else value.number()
        if count is not None and not 1 <= count <= COUNT_MAX:
            yield kernel.finding(
                "MBAR-02", f"mbarrier.init with a count outside 1 to {COUNT_MAX}: {count}", op
            )


# --- visibility of the initialisation -------------------------------------------------------------


@rule(
    "MBAR-04", "error", section="9.7.13.15.9",
    help="fence.mbarrier_init.release.cluster by the initialising thread, then a barrier before the first use",
)  # fmt: skip
def initialisation_visible(kernel: Kernel) -> Iterator[Outcome]:
    """The initialisation must be ordered before every use by another thread, and by another CTA."""
    yield from slots_initialised(kernel)
    for ring in kernel.rings:
        users = [
            op
            for op in kernel.flow.ops
            if "mbar" in op.roles
            and not op.is_a("mbarrier.init", "mbarrier.inval")
            and kernel.ring(op) is ring
        ]
        found = [
            each
            for init in ring.inits
            for user in users
            if (each := _init_unseen(kernel, init, user)) is not None
        ]
        errors = [each for each in found if isinstance(each, Finding)]
        yield from (errors or found)[:1]


def _init_unseen(kernel: Kernel, init: Op, user: Op) -> Outcome | None:
    reach = kernel.reach
    if not _may_be_same_slot(kernel, init, user):
        return None
    out = where(kernel, user, "mbar") != "own" or multicasts(kernel, user) != "own"
    foreign = reach.mask(user) & ~reach.mask(init)
    strong = kernel.view(_Published).by(
        init, across_ctas=out, one_warp=_one_warp(kernel, init, user)
    )
    if not (foreign or out) or not kernel.flow.path((init.index,), (user.index,), strong):
        return None
    arrivals = _arrivals_unpublished(kernel, init)
    others = reach.everyone if out else foreign
    if not reach.threads_to((-1,), user, strong) & others:
        return None
    says = "used here by another thread" if not out else "used here by, or from, another CTA"
    maybe = strong | _perhaps_orders(kernel, init, across_ctas=out)
    if kernel.flow.path((init.index,), (user.index,), maybe - set(arrivals) - _waits_of(kernel)):
        cause = (
            "barrier.cluster.arrive.relaxed publishes nothing without fence.mbarrier_init or fence.acq_rel.cluster before it"
            if arrivals
            else "nothing orders it before the first use"
        )
        return kernel.finding(
            "MBAR-04",
            f"initialisation of {_name(kernel, init)} is not visible: {cause}",
            init,
            user,
            says,
        )
    return kernel.undecided(
        "MBAR-04",
        f"what orders the initialisation of {_name(kernel, init)} before its use is not understood",
        user,
    )


def _perhaps_orders(kernel: Kernel, init: Op, *, across_ctas: bool) -> set[int]:
    """Instructions by which one thread may learn that another has come so far."""
    ring = kernel.ring(init)
    return {
        op.index
        for op in kernel.flow.ops
        if op.node.opcode.root in {"atom", "call"}
        or (op.node.opcode.root in {"bar", "barrier"} and not across_ctas)
        or (op.node.opcode.root == "ld" and (op.has("acquire") or op.has("volatile")))
        or (op.node.opcode.root == "mbarrier" and op.is_a(*WAITS) and kernel.ring(op) is not ring)
    }


def _waits_of(kernel: Kernel) -> set[int]:
    """Waits for the cluster's barrier: they acquire what the arrivals released, and no more."""
    return kernel.indices(kernel.ops("barrier.cluster.wait"))


def _name(kernel: Kernel, op: Op) -> str:
    ring = kernel.ring(op)
    return ring.name.partition("@")[0] if ring is not None else "the barrier"


def _may_be_same_slot(kernel: Kernel, init: Op, user: Op) -> bool:
    a, b = kernel.value(init, "mbar"), kernel.value(user, "mbar")
    if a is None or b is None or a.unknown or b.unknown:
        return True
    return a.single == b.single or a.single is None or b.single is None


class _Published:
    """Barriers that order each initialisation before what follows them, kept."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._kept: dict[tuple[int, bool, bool], set[int]] = {}

    def by(self, init: Op, *, across_ctas: bool, one_warp: bool) -> set[int]:
        key = init.index, across_ctas, one_warp
        if key not in self._kept:
            self._kept[key] = self._find(init, across_ctas=across_ctas, one_warp=one_warp)
        return self._kept[key]

    def _find(self, init: Op, *, across_ctas: bool, one_warp: bool) -> set[int]:
        kernel = self.kernel
        unpublished = set(_arrivals_unpublished(kernel, init))
        found = kernel.indices(kernel.ops("barrier.cluster.arrive")) - unpublished
        found &= kernel.flow.reachable((init.index,))  # an arrival before it says nothing of it
        if not across_ctas:
            found |= kernel.indices(kernel.ops(*CTA_BARRIERS))
            if one_warp:
                found |= kernel.indices(kernel.ops("bar.warp.sync"))
        return found


def _one_warp(kernel: Kernel, init: Op, user: Op) -> bool:
    """Whether all that execute either are of one warp of each CTA."""
    warps = (kernel.threads(init)[0] | kernel.threads(user)[0]).any(axis=0).nonzero()[0] // WARP
    return bool(np.unique(warps).size <= 1)


def _arrivals_unpublished(kernel: Kernel, init: Op) -> list[int]:
    """Relaxed arrivals on the cluster's barrier that the initialisation can come to without a fence."""
    fences = kernel.indices(kernel.ops("fence.mbarrier_init")) | cluster_fences(kernel)
    released = {op.index for op in kernel.ops("barrier.cluster.arrive") if not op.has("relaxed")}
    return [
        op.index
        for op in kernel.ops("barrier.cluster.arrive")
        if op.has("relaxed") and kernel.flow.path((init.index,), (op.index,), fences | released)
    ]


# --- life and death of the object -----------------------------------------------------------------


def _same_address(a: Value | None, b: Value | None) -> bool:
    """Surely the same bytes: everything known and equal."""
    return (
        a is not None
        and b is not None
        and bool(a.base)
        and not a.unknown
        and not b.unknown
        and a.cta is None
        and b.cta is None
        and a.single is not None
        and a.place == b.place
    )


@rule(
    "MBAR-09", "error", section="9.7.13.15.9",
    help="mbarrier.inval the barrier, by a thread ordered after its last use, before initialising it again",
)  # fmt: skip
def initialised_once(kernel: Kernel) -> Iterator[Outcome]:
    """A live barrier must not be initialised again without mbarrier.inval."""
    inits = kernel.ops("mbarrier.init")
    yield from _by_several(kernel, inits)
    for second in inits:
        for first in inits:
            where_first, where_second = kernel.value(first, "mbar"), kernel.value(second, "mbar")
            if not _same_address(where_first, where_second):
                continue
            between = kernel.reach.between(first, second)
            if any(kernel.flow.ops[i].is_a("mbarrier.inval") for i in between):
                continue
            if not _surely_follows(kernel, first, second):
                continue
            yield kernel.finding(
                "MBAR-09",
                f"{_name(kernel, second)} is initialised again while it is a live barrier: no mbarrier.inval between",
                second, first, "initialised here first",
            )  # fmt: skip
            break


def _by_several(kernel: Kernel, inits: list[Op]) -> Iterator[Outcome]:
    """Threads of one CTA that all initialise the same barrier: the second finds a live one."""
    for op in inits:
        value, (mask, exact) = kernel.value(op, "mbar"), kernel.threads(op)
        if value is None or value.unknown or value.single is None or not exact:
            continue
        most = int(mask.sum(axis=1).max())
        if most > 1 and kernel.block_bounded:
            yield kernel.finding(
                "MBAR-09",
                f"{_name(kernel, op)} is initialised by {most} threads of a CTA: all but the first find a live"
                " barrier, and one that comes late wipes out what has arrived",
                op,
            )
            return


def _surely_follows(kernel: Kernel, first: Op, second: Op) -> bool:
    """Whether some thread that executes `second` has always passed `first`, or another one has by the text."""
    if first is second:
        return kernel.flow.path((first.index,), (first.index,))
    if not kernel.flow.path((first.index,), (second.index,)):
        return False
    without = kernel.reach.threads_to((-1,), second, {first.index})
    always = kernel.reach.mask(second) & ~without
    return bool(always) or not kernel.reach.open_conditions(first)


@rule(
    "MBAR-10", "error", section="9.7.13.15.10",
    help="mbarrier.inval the barrier before its bytes are used for anything else, and do not use it after",
)  # fmt: skip
def bytes_not_reused(kernel: Kernel) -> Iterator[Outcome]:
    """The bytes of a live barrier are for mbarrier instructions only, and those are for live barriers only."""
    yield from _plain_accesses(kernel)
    yield from [*_after_the_end(kernel)] or ended_slots(kernel)
    yield from _never_initialised(kernel)


def _plain_accesses(kernel: Kernel) -> Iterator[Outcome]:
    for op in kernel.ops("ld", "st", "atom", "red", "cp.async.bulk", "st.async"):
        if op.is_a("cp.async.bulk.tensor", "cp.async.bulk.prefetch") or op.has("param"):
            continue
        for role in ("dst", "src"):
            value = kernel.value(op, role)
            if value is None or not value.base.startswith("shared") or value.unknown:
                continue
            init = _live_under(kernel, op, value)
            if init is not None:
                yield kernel.finding(
                    "MBAR-10",
                    f"{op.node.opcode.root} on the bytes of {_name(kernel, init)}, a live barrier: no mbarrier.inval before it",
                    op, init, "initialised here",
                )  # fmt: skip
                break


def _live_under(kernel: Kernel, op: Op, value: Value) -> Op | None:
    """The initialisation of a live barrier that an access surely touches."""
    size = access_bytes(op) if not op.is_a("cp.async.bulk") else _copied(kernel, op)
    threads = kernel.threads(op)[0]
    offsets = np.broadcast_to(value.constant, threads.shape)[threads]
    if offsets.size == 0:
        return None
    for ring in kernel.rings:
        for init in ring.inits if ring.base == value.base else ():
            at = kernel.value(init, "mbar")
            if at is None or at.unknown or at.single is None:
                continue
            hit = (offsets < at.single + MBARRIER_BYTES) & (offsets + size > at.single)
            ended = kernel.indices(kernel.of_ring(ring, "mbarrier.inval"))
            if (
                (hit.all() or (hit.any() and not kernel.reach.open_conditions(op)))
                and kernel.flow.path((init.index,), (op.index,))
                and not kernel.flow.path(ended, (op.index,))
                and not kernel.reach.open_conditions(init)
            ):
                return init
    return None


def _copied(kernel: Kernel, op: Op) -> int:
    value = kernel.value(op, "size")
    return (value.number() if value is not None else None) or 16


def _after_the_end(kernel: Kernel) -> Iterator[Outcome]:
    for end in kernel.ops("mbarrier.inval"):
        inits = kernel.indices(kernel.ops("mbarrier.init"))
        for op, value in _barrier_ops(kernel):
            if op.is_a("mbarrier.init") or not _same_address(kernel.value(end, "mbar"), value):
                continue
            if any(i in inits for i in kernel.reach.between(end, op)):
                continue
            without = kernel.reach.threads_to((-1,), op, {end.index})
            if op is not end and kernel.reach.mask(op) & ~without:
                yield kernel.finding(
                    "MBAR-10", f"{op.name} on {_name(kernel, end)} after its mbarrier.inval",
                    op, end, "no barrier from here on",
                )  # fmt: skip
                break


def _never_initialised(kernel: Kernel) -> Iterator[Outcome]:
    """Only where the text shows every initialisation that there is."""
    inits = [kernel.value(op, "mbar") for op in kernel.ops("mbarrier.init")]
    if not inits or any(op.node.opcode.root == "call" for op in kernel.flow.ops):
        return
    if any(each is None or not each.base or each.single is None for each in inits):
        return
    said: set[tuple[str, int | None]] = set()
    for op, value in _barrier_ops(kernel):
        known = value.base.startswith("shared") and not value.unknown and value.single is not None
        if known and kernel.ring(op) is None and value.place not in said:
            said.add(value.place)
            yield kernel.finding(
                "MBAR-10",
                f"{op.name} on {value.base.partition(':')[2]}+{value.single}, which no mbarrier.init makes a barrier",
                op,
            )


@rule(
    "MBAR-11", "error", section="9.7.13.15.2",
    help="split the bytes over several barriers or phases",
)  # fmt: skip
def outstanding_bytes(kernel: Kernel) -> Iterator[Outcome]:
    """At most 2^20 - 1 bytes may be outstanding on a barrier in a phase."""
    for op in kernel.ops(*ARRIVES, *EXPECTS):
        value = kernel.value(op, "tx_bytes")
        number = None if value is None else value.number()
        if number is not None and not 0 <= number <= COUNT_MAX:
            yield kernel.finding(
                "MBAR-11",
                f"{number} bytes expected on one barrier; its transaction count ends at {COUNT_MAX}",
                op,
            )


@rule(
    "MBAR-13", "error", section="9.7.13.15.8",
    help="initialise, end and wait for a barrier in its own CTA; a remote arrive returns no state: destination _",
)  # fmt: skip
def remote_operations(kernel: Kernel) -> Iterator[Outcome]:
    """On another CTA's barrier only arrive, expect_tx and complete_tx exist, and they return nothing."""
    for op in kernel.ops("mbarrier"):
        if op.is_a(*OWN_ONLY) and op.has("shared::cluster"):
            yield kernel.finding(
                "MBAR-13",
                f"{op.entry} on .shared::cluster; it works on the own CTA's barrier only",
                op,
            )
        elif op.is_a("mbarrier.init", "mbarrier.inval") and where(kernel, op, "mbar") == "other":
            yield kernel.finding("MBAR-13", f"{op.entry} on a barrier of another CTA", op)
        elif op.is_a(*ARRIVES) and op.has("shared::cluster"):
            state = op.role("state")
            if state is not None and not isinstance(state, Sink):
                yield kernel.finding(
                    "MBAR-13",
                    f"{op.entry} on .shared::cluster returns no state; its destination is _",
                    op,
                )


@rule(
    "MBAR-14", "error", section="9.7.13.15.13",
    help="write .release.cta, .release.cluster, .relaxed.cluster and so on in full, or neither",
)  # fmt: skip
def modifiers_and_counts(kernel: Kernel) -> Iterator[Outcome]:
    """Semantics and scope come together, .relaxed needs PTX 8.6, a count is 1 to 2^20 - 1, .noComplete completes nothing."""
    version = kernel.module.version
    for op in kernel.ops(*ARRIVES, *WAITS):
        semantics = [word for word in ("release", "acquire", "relaxed") if op.has(word)]
        scopes = [word for word in ("cta", "cluster") if op.has(word)]
        if bool(semantics) != bool(scopes):
            has, lacks = ("semantics", "scope") if semantics else ("scope", "semantics")
            yield kernel.finding(
                "MBAR-14", f"{op.entry} with {has} .{(semantics or scopes)[0]} and no {lacks}", op
            )
        if op.has("relaxed") and version is not None and version < (8, 6):
            yield kernel.finding(
                "MBAR-14",
                f"{op.entry}.relaxed needs PTX ISA 8.6; the module declares {version[0]}.{version[1]}",
                op,
            )
        yield from _arrival_count(kernel, op)


def _arrival_count(kernel: Kernel, op: Op) -> Iterator[Outcome]:
    value = kernel.value(op, "count")
    count = None if value is None or not op.is_a(*ARRIVES) else value.number()
    if count is None:
        return
    ring = kernel.ring(op)
    if not 1 <= count <= COUNT_MAX:
        yield kernel.finding(
            "MBAR-14", f"{op.entry} with a count outside 1 to {COUNT_MAX}: {count}", op
        )
    elif (
        op.has("noComplete") and ring is not None and ring.count is not None and count >= ring.count
    ):
        yield kernel.finding(
            "MBAR-14", f"{op.entry}.noComplete with count {count} completes a phase of {ring.count} arrivals",
            op, ring.inits[0], "count given here",
        )  # fmt: skip


@rule(
    "MBAR-15", "warning", section="9.7.13.15.16",
    help="loop until it returns true",
)  # fmt: skip
def result_used(kernel: Kernel) -> Iterator[Outcome]:
    """try_wait and test_wait may return false: only a true result orders anything."""
    read = {name for op in kernel.flow.ops for name in _read_by(op)}
    for op in kernel.ops(*WAITS):
        result = op.role("complete")
        name = getattr(result, "name", "")
        if name not in read:
            yield kernel.finding(
                "MBAR-15",
                f"result of {op.entry} is never read; it may be false, and then nothing is ordered",
                op,
                severity="warning",
            )


def _read_by(op: Op) -> set[str]:
    """Registers that an instruction reads, as far as their names tell."""
    found = {op.guard} if op.guard else set()
    first = 1 if op.facts is None or any(r.access == "write" for r in op.facts.operands) else 0
    stack = list(op.operands[first:])
    while stack:
        operand = stack.pop()
        if hasattr(operand, "name"):
            found.add(operand.name)
        for part in ("elements", "parts"):
            stack.extend(getattr(operand, part, ()))
        stack.extend(
            getattr(operand, part)
            for part in ("first", "second", "left", "right", "operand")
            if hasattr(operand, part)
        )
    return found
