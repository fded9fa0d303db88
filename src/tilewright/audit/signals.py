"""Who touches whose shared memory: addresses that name another CTA, multicasts, and signals to a barrier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from tilewright.ptx.flow import constant
from tilewright.ptx.nodes import Integer

if TYPE_CHECKING:
    from tilewright.audit.kernel import Kernel, Ring
    from tilewright.ptx.flow import Op
    from tilewright.ptx.nodes import Variable
    from tilewright.ptx.values import Value

Where = Literal["own", "other", "maybe"]

ARRIVES = ("mbarrier.arrive", "mbarrier.arrive_drop")
SIGNALS = (*ARRIVES, "cp.async.mbarrier.arrive", "tcgen05.commit")
"""Instructions that arrive on a barrier, now or when what they track is done."""
WAITS = ("mbarrier.try_wait", "mbarrier.test_wait")
CTA_BARRIERS = (
    "bar.sync", "bar.red", "bar.cta.sync", "bar.cta.red",
    "barrier.sync", "barrier.red", "barrier.cta.sync", "barrier.cta.red",
)  # fmt: skip
COUNT_MAX = (1 << 20) - 1
BLOCKING_ROOTS = frozenset({"bar", "barrier", "atom", "call", "nanosleep"})
MEMORY_ROLES = ("dst", "src", "mbar", "response", "address")

_TYPE_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}


def where(kernel: Kernel, op: Op, role: str) -> Where:
    """Whether an address is in the shared memory of the CTA that uses it."""
    value = kernel.value(op, role)
    if value is None or value.cta is None:
        return "own"
    if kernel.shape.cluster_known and kernel.shape.ranks == 1:
        return "own"
    threads, moved = kernel.threads(op)[0], leaves(kernel, op, role)
    if moved is None:
        return "maybe"
    if not np.any(moved & threads):
        return "own" if kernel.shape.cluster_known else "maybe"
    return "other" if np.all(moved[threads]) else "maybe"


def leaves(kernel: Kernel, op: Op, role: str) -> np.ndarray | None:
    """Threads, (ranks, threads), whose address is in another CTA than theirs; None where that is not known."""
    value, shape = kernel.value(op, role), kernel.threads(op)[0].shape
    own = np.arange(kernel.shape.ranks)[:, None]
    if value is None or value.cta is None:
        return np.zeros(shape, dtype=bool)
    if value.cta.base == "leader":
        return np.broadcast_to(own % 2 == 1, shape)
    return np.broadcast_to(value.cta.constant != own, shape) if value.cta.known else None


def multicasts(kernel: Kernel, op: Op) -> Where:
    """Whether an instruction delivers to other CTAs by a mask, or to all."""
    if op.has("multicast::cluster::all"):
        return "own" if kernel.shape.cluster_known and kernel.shape.ranks == 1 else "other"
    mask = kernel.value(op, "mask")
    if mask is None or not op.has("multicast::cluster"):
        return "own"
    if not mask.known:
        return "maybe"
    threads = kernel.threads(op)[0]
    own = np.broadcast_to(1 << np.arange(kernel.shape.ranks)[:, None], threads.shape)
    others = np.broadcast_to(mask.constant, threads.shape) & ~own & 0xFFFF
    return "other" if np.any(others[threads]) else "own"


def reaches_out(kernel: Kernel, op: Op) -> Where:
    """Whether an instruction touches the shared memory of another CTA in any of its operands."""
    found = [multicasts(kernel, op)]
    found += [where(kernel, op, role) for role in MEMORY_ROLES if role in op.roles]
    return "other" if "other" in found else "maybe" if "maybe" in found else "own"


def remote_ops(kernel: Kernel) -> list[Op]:
    """Instructions that touch, or may touch, the shared memory of another CTA."""
    return [
        op
        for op in kernel.flow.ops
        if op.facts is not None
        and not op.is_a("mapa", "getctarank")
        and (op.has("multicast::cluster") or op.has("multicast::cluster::all") or op.roles)
        and reaches_out(kernel, op) != "own"
    ]


def signalled_by(kernel: Kernel, ring: Ring) -> list[Op]:
    """Instructions that name one barrier object and are not its initialisation, wait or end."""
    return [
        op
        for op in kernel.flow.ops
        if "mbar" in op.roles
        and not op.is_a("mbarrier.init", "mbarrier.inval", *WAITS)
        and kernel.ring(op) is ring
    ]


def all_understood(kernel: Kernel) -> bool:
    """Whether every instruction that names a barrier names one that is known, and nothing is called."""
    return not any(
        op.node.opcode.root == "call"
        or ("mbar" in op.roles and not op.is_a("mbarrier.init") and kernel.ring(op) is None)
        for op in kernel.flow.ops
    )


def cluster_fences(kernel: Kernel) -> set[int]:
    """Fences of the generic proxy that reach the cluster."""
    return {
        op.index
        for op in kernel.ops("fence", "membar")
        if not op.is_a("fence.proxy", "fence.mbarrier_init", "membar.proxy")
        and any(op.has(scope) for scope in ("cluster", "gpu", "gl", "sys"))
        and not op.has("acquire")
    }


def count_of(kernel: Kernel, op: Op) -> int | None:
    """Arrivals that one thread makes by an instruction."""
    if op.is_a(*ARRIVES) and op.role("count") is not None:
        value = kernel.value(op, "count")
        return None if value is None else value.number()
    return 1


def access_bytes(op: Op) -> int:
    """Bytes that an ordinary load, store or atomic touches."""
    modifiers = op.node.opcode.modifiers
    lanes = next((int(m[1:]) for m in modifiers if m in {"v2", "v4", "v8"}), 1)
    kind = next((m for m in reversed(modifiers) if m[:1] in "busf" and m[1:] in _TYPE_BYTES), "b8")
    return lanes * _TYPE_BYTES[kind[1:]]


def declared(kernel: Kernel, base: str) -> Variable | None:
    """The declaration of the symbol that a value is based on."""
    return kernel.flow.variables.get(base.partition(":")[2])


def align_of(variable: Variable) -> int:
    """Bytes that the declaration aligns its symbol to."""
    given = constant(variable.align) if variable.align is not None else None
    return given if given is not None else _element_bytes(variable)


def _element_bytes(variable: Variable) -> int:
    lanes = int(variable.vector[2:]) if variable.vector else 1
    return lanes * _TYPE_BYTES.get(variable.type[2:], 1)


def bytes_of(variable: Variable, name: str) -> int | None:
    """Bytes of a declared symbol; None where a dimension is open."""
    for each in variable.declarators:
        if each.name == name.partition("@")[0]:
            size = _element_bytes(variable)
            for dimension in each.dimensions:
                if not isinstance(dimension, Integer):
                    return None
                size *= dimension.value
            return size or None
    return None


# --- one turn of one thread ---------------------------------------------------------------------------


def blocks(op: Op) -> bool:
    """Whether a thread may be held, or learn something from others, at an instruction."""
    root = op.node.opcode.root
    return root in BLOCKING_ROOTS or op.is_a(*WAITS) or (root == "ld" and op.has("acquire"))


def same_slot(a: Value | None, b: Value | None) -> bool:
    """The same barrier, given that the second is reached from the first without going back before it."""
    if a is None or b is None or not a.base:
        return False
    same_cta = (a.cta is None) == (b.cta is None)
    if a.cta is not None and b.cta is not None:
        same_cta = a.cta.unknown == b.cta.unknown and a.cta.same_place(b.cta)
    return same_cta and a.unknown == b.unknown and a.same_place(b)


def in_one_go(kernel: Kernel, first: Op, second: Op) -> bool:
    """Whether whoever executes `second` has executed `first` before, on the same slot, with no wait between."""
    if first.index == second.index or not kernel.flow.dominates(first.index, second.index):
        return False
    if first.guard and first.guard != second.guard:
        return False
    if not same_slot(kernel.value(first, "mbar"), kernel.value(second, "mbar")):
        return False
    if not kernel.together(first, second):
        return False
    between = kernel.reach.between(first, second)
    return not any(blocks(kernel.flow.ops[i]) for i in between)
