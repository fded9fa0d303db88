"""Rules of cluster launch control: the request itself, who issues it, and what its answer completes.

clc_loop.py holds when the response may be read and when to ask again, clc_stages.py how a response is reused,
clc_work.py what becomes of the coordinates, clc_cluster.py that every CTA is there from the first request to the last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.audit.kernel import MBARRIER_BYTES
from tilewright.audit.responses import (
    RESPONSE_BYTES,
    Request,
    Responses,
    reads_own_rank,
    responses,
    splits,
    warps_of,
)
from tilewright.audit.rules import Outcome, rule
from tilewright.audit.signals import ARRIVES, WAITS, align_of, bytes_of, declared, in_one_go
from tilewright.audit.trace import CTAS_DIFFER, LANES_DIFFER, WARPS_DIFFER
from tilewright.ptx.opcodes import unsupported_because

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel, Ring
    from tilewright.ptx.flow import Op
    from tilewright.ptx.values import Value

TRY_CANCEL = "9.7.13.17"
ALIGNMENT = 16
EXPECTS = (*ARRIVES, "mbarrier.expect_tx")


# --- operands -------------------------------------------------------------------------------------


@rule(
    "CLC-01", "error", section=TRY_CANCEL,
    help="give each response 16 bytes of its own, in a symbol of .align 16 at an offset that is a multiple of 16",
)  # fmt: skip
def response_aligned(kernel: Kernel) -> Iterator[Outcome]:
    """The response buffer is 16 bytes, aligned to 16."""
    for request in responses(kernel).requests:
        where, offset = request.response, request.response.single
        if not where.base or offset is None:
            if where.cta is None:
                yield kernel.undecided(
                    "CLC-01", "the response address is not understood", request.op
                )
            continue
        variable = declared(kernel, where.base)
        symbol = where.base.partition(":")[2]
        whole = all(step % ALIGNMENT == 0 for _, step in where.unknown)
        if whole and offset % ALIGNMENT:
            yield kernel.finding(
                "CLC-01",
                f"the response is written at {symbol}+{offset}, {offset % ALIGNMENT} bytes past a"
                f" multiple of {ALIGNMENT}: its 16 bytes must be aligned to 16",
                request.op, variable.span if variable else None, "the symbol",
            )  # fmt: skip
        elif not whole:
            steps = [step for _, step in where.unknown if step % ALIGNMENT]
            yield kernel.undecided(
                "CLC-01", f"stages lie {min(map(abs, steps))} bytes apart by an unknown index",
                request.op,
            )  # fmt: skip
        if variable is None:
            continue
        if align_of(variable) % ALIGNMENT:
            yield kernel.finding(
                "CLC-01",
                f"{symbol} is aligned to {align_of(variable)}: nothing makes the response at"
                f" +{offset} a multiple of {ALIGNMENT}",
                request.op, variable.span, "declared here",
                severity="error" if kernel.options.strict else "warning",
            )  # fmt: skip
        size = bytes_of(variable, symbol)
        if size is not None and not where.unknown and offset + RESPONSE_BYTES > size:
            yield kernel.finding(
                "CLC-01",
                f"the response takes bytes {offset} to {offset + RESPONSE_BYTES - 1} of {symbol},"
                f" which has {size}: it overwrites what lies behind",
                request.op, variable.span, f"{size} bytes",
            )  # fmt: skip
        yield from _over_a_barrier(kernel, request)


def _over_a_barrier(kernel: Kernel, request: Request) -> Iterator[Outcome]:
    offset = request.response.single
    if offset is None or request.response.unknown:
        return
    for ring in kernel.rings:
        end = ring.start + MBARRIER_BYTES * (ring.slots or 1)
        if ring.base == request.response.base and offset < end and ring.start < offset + 16:
            yield kernel.finding(
                "CLC-01",
                f"the response overlaps the barrier {ring.name}: the answer overwrites it",
                request.op, ring.inits[0], "initialised here",
            )  # fmt: skip


@rule(
    "CLC-02", "error", section=TRY_CANCEL,
    help="pass the issuing CTA's own shared memory; multicast finds the other CTAs by itself",
)  # fmt: skip
def operands_of_the_issuer(kernel: Kernel) -> Iterator[Outcome]:
    """Both operands of try_cancel are in shared memory of the issuing CTA."""
    for request in responses(kernel).requests:
        for name, value in (("response", request.response), ("mbarrier", request.mbar)):
            space = value.base.partition(":")[0]
            if space in {"global", "local", "const", "param"}:
                yield kernel.finding(
                    "CLC-02",
                    f"the {name} operand is in .{space} memory: it must be in shared memory of the"
                    " issuing CTA",
                    request.op,
                )
                continue
            own = reads_own_rank(kernel, value, request.op)
            if own is False:
                yield kernel.finding(
                    "CLC-02",
                    f"the {name} operand is an address in another CTA (by mapa): both operands must"
                    " be in the issuing CTA's own shared memory",
                    request.op,
                )
            elif own is None:
                yield kernel.undecided(
                    "CLC-02", f"the CTA of the {name} operand is not known", request.op
                )


@rule(
    "CLC-19", "error", section=TRY_CANCEL,
    help="compile for sm_100a, sm_103a, sm_110a or sm_120a (f targets from PTX 8.8), or ask without multicast",
)  # fmt: skip
def target_has_it(kernel: Kernel) -> Iterator[Outcome]:
    """The module's target and PTX version have the instruction and its multicast form."""
    seen: set[str] = set()
    target = next(iter(kernel.module.target), "")
    for op in kernel.ops("clusterlaunchcontrol"):
        if op.facts is None:
            continue
        why = unsupported_because(op.facts, kernel.module.version, target)
        if why is not None and why not in seen:
            seen.add(why)
            yield kernel.finding("CLC-19", why, op)


# --- who issues -----------------------------------------------------------------------------------


@rule(
    "CLC-11", "error", section=TRY_CANCEL,
    help="issue each request from one thread of the cluster: elect one lane of one warp of rank 0",
)  # fmt: skip
def one_thread_asks(kernel: Kernel) -> Iterator[Outcome]:
    """One thread of the cluster issues each request."""
    for request in responses(kernel).requests:
        per_cta = kernel.per_cta(request.op)
        ctas, most = sum(1 for count in per_cta if count), max(per_cta, default=0)
        lanes = max(warps_of(kernel.threads(request.op)[0]).values(), default=0)
        if most > 1 and _apart(request.response):
            why = "every issuing thread has a response of its own"
        elif lanes > 1 and splits(kernel, request.op, LANES_DIFFER):
            why = "which lanes reach it depends on data"
        elif lanes <= 1 < most and not kernel.shape.block_known:
            why = "one thread of each warp issues it, and how many warps there are is not known"
        elif lanes <= 1 < most and splits(kernel, request.op, WARPS_DIFFER):
            why = "which warps reach it depends on data"
        else:
            why = ""
        if why:
            yield kernel.undecided("CLC-11", why, request.op)
        elif most > 1:
            yield kernel.finding(
                "CLC-11",
                f"{most} threads of a CTA issue this request: each cancels a cluster of its own, all"
                f" answers overwrite one response and bring {most} times 16 bytes to its barrier",
                request.op,
            )
        elif ctas > 1:
            yield from _several_ctas(kernel, request, ctas)


def _apart(value: Value) -> bool:
    return value.single is None


def _several_ctas(kernel: Kernel, request: Request, ctas: int) -> Iterator[Outcome]:
    if splits(kernel, request.op, CTAS_DIFFER):
        yield kernel.undecided("CLC-11", "which CTAs reach it depends on data", request.op)
    elif request.multicast:
        yield kernel.finding(
            "CLC-11",
            f"one thread in each of {ctas} CTAs issues this multicast request: {ctas} clusters are"
            f" cancelled for one that is processed, and every barrier gets {ctas * 16} bytes",
            request.op,
        )
    else:
        yield kernel.finding(
            "CLC-11",
            f"each of {ctas} CTAs of the cluster asks for itself: every answer cancels a whole"
            " cluster, so every CTA must process all tiles of the one it got",
            request.op, severity="warning",
        )  # fmt: skip


# --- what the answer completes ---------------------------------------------------------------------


def landing(kernel: Kernel, op: Op) -> frozenset[int] | None:
    """CTA ranks whose barrier an instruction on an mbarrier may reach; None when that is not known."""
    value = kernel.value(op, "mbar")
    if value is None or not value.base:
        return None
    mask = kernel.threads(op)[0]
    if value.cta is None:
        return frozenset(kernel.ranks(op))
    if value.cta.base == "leader":
        return frozenset(rank & ~1 for rank in kernel.ranks(op))
    if not value.cta.known:
        return None
    where = np.broadcast_to(value.cta.constant, mask.shape)
    return frozenset(int(rank) for rank in np.unique(where[mask]))


def may_be_same(a: Value, b: Value) -> bool:
    """Whether two barrier addresses may be of one slot, their CTAs left aside."""
    if a.base != b.base:
        return False
    if a.unknown or b.unknown:
        return True
    return a.single is None or b.single is None or a.single == b.single


class _Armed:
    """What is expected and arrives on the barrier of one request."""

    def __init__(self, kernel: Kernel, view: Responses, request: Request) -> None:
        self.expects: list[Op] = []
        self.plain: list[Op] = []
        self.others: list[Op] = []  # other transactions or arrivals of hardware
        self.unknown = view.unknown_barriers
        ring = request.ring
        for op in kernel.flow.ops:
            if "mbar" not in op.roles or op.is_a("mbarrier.init", "mbarrier.inval"):
                continue
            value = kernel.value(op, "mbar")
            if ring is None or value is None or kernel.ring(op) is not ring:
                continue
            if not may_be_same(value, request.mbar) or op.is_a(
                "mbarrier.try_wait", "mbarrier.test_wait"
            ):
                continue
            if "tx_bytes" in op.roles and op.is_a(*EXPECTS):
                self.expects.append(op)
            elif op.is_a(*ARRIVES):
                self.plain.append(op)
            elif not op.is_a("clusterlaunchcontrol"):
                self.others.append(op)


@rule(
    "CLC-03", "error", section=TRY_CANCEL,
    help="let every CTA arm its own barrier with 16 bytes, or arm all of them remotely by mapa",
)  # fmt: skip
def every_cta_is_armed(kernel: Kernel) -> Iterator[Outcome]:
    """A multicast request brings 16 bytes to the barrier of every CTA, each armed for them."""
    view = responses(kernel)
    for request in view.requests:
        if not request.multicast or kernel.shape.ranks == 1 or request.ring is None:
            continue
        armed = _Armed(kernel, view, request)
        places = [landing(kernel, op) for op in armed.expects]
        if armed.unknown or armed.others or None in places:
            yield kernel.undecided(
                "CLC-03", "a barrier that is armed is not understood", request.op
            )
            continue
        covered = frozenset().union(*(place for place in places if place))
        waiting = {rank for op in view.waits(request.ring) for rank in kernel.ranks(op)}
        bare = sorted(waiting - covered)
        if covered and bare:
            ranks = ", ".join(map(str, bare))
            yield kernel.finding(
                "CLC-03",
                f"the multicast answer brings 16 bytes to {request.ring.name} in each of"
                f" {kernel.shape.ranks} CTAs, but nobody arms it in rank {ranks}: its phase never"
                " completes and the waiting threads hang",
                request.op, armed.expects[0], f"arms rank {', '.join(map(str, sorted(covered)))} only",
            )  # fmt: skip


@rule(
    "CLC-04", "error", section=TRY_CANCEL,
    help="arm the barrier with mbarrier.arrive.expect_tx of 16 bytes, once a phase",
)  # fmt: skip
def sixteen_bytes(kernel: Kernel) -> Iterator[Outcome]:
    """Each barrier expects exactly 16 bytes for each request and phase."""
    view = responses(kernel)
    for request in view.requests:
        if request.ring is None:
            yield kernel.undecided(
                "CLC-04", "the barrier of the request is not understood", request.op
            )
            continue
        armed = _Armed(kernel, view, request)
        if armed.others or armed.unknown:
            yield kernel.undecided(
                "CLC-04", "other transactions reach the same barrier", request.op
            )
        elif not armed.expects and armed.plain:
            yield kernel.finding(
                "CLC-04",
                f"the arrival on {request.ring.name} expects no bytes: the phase completes before"
                " the answer is there, and the old response is read",
                armed.plain[0], request.op, "brings 16 bytes to this barrier",
            )  # fmt: skip
        else:
            yield from _amounts(kernel, view, request, armed)


def _amounts(kernel: Kernel, view: Responses, request: Request, armed: _Armed) -> Iterator[Outcome]:
    expects = {op.index for op in armed.expects}
    twice = next((r.op for r in view.requests if in_one_go(kernel, r.op, request.op)), None)
    if twice is not None:
        yield kernel.finding(
            "CLC-04",
            f"two requests bring {2 * RESPONSE_BYTES} bytes to one slot with no wait between",
            request.op, twice, "asks already",
        )  # fmt: skip
    on_ring = [r for r in view.requests if r.ring is request.ring]
    paired = all(
        kernel.flow.always_between(a.op.index, b.op.index, expects)
        for a in on_ring for b in on_ring
    )  # fmt: skip
    each = [int(kernel.threads(r.op)[0].sum()) for r in on_ring]
    issued = max(each) if paired else sum(each)
    amounts: list[tuple[Op, int]] = []
    for op in armed.expects:
        value = kernel.value(op, "tx_bytes")
        amount = None if value is None else value.number()
        if amount is None:
            yield kernel.undecided("CLC-04", "the bytes expected are not known", op)
            return
        if amount > RESPONSE_BYTES * issued:
            yield kernel.finding(
                "CLC-04",
                f"{amount} bytes are expected on {request.ring.name if request.ring else ''}; a"
                f" request brings {RESPONSE_BYTES}: the phase never completes",
                op, request.op, "brings 16 bytes",
            )  # fmt: skip
        amounts.append((op, amount))
    for rank in range(kernel.shape.ranks):
        total = sum(amount * _reaching(kernel, op, rank) for op, amount in amounts)
        if 0 < total < RESPONSE_BYTES:
            yield kernel.finding(
                "CLC-04",
                f"{total} bytes are expected on {request.ring.name if request.ring else ''}; a request"
                f" brings {RESPONSE_BYTES}: the count stays {RESPONSE_BYTES - total} off and the phase"
                " never completes",
                amounts[0][0], request.op, "brings 16 bytes",
            )  # fmt: skip
            return


def _reaching(kernel: Kernel, op: Op, rank: int) -> int:
    """Threads whose instruction may reach the barrier of one CTA; of unknown ones, enough for any sum."""
    value, mask = kernel.value(op, "mbar"), kernel.threads(op)[0]
    if value is None or (value.cta is not None and not value.cta.known):
        return RESPONSE_BYTES
    if value.cta is None:
        return int(mask[rank].sum())
    return int((mask & (np.broadcast_to(value.cta.constant, mask.shape) == rank)).sum())


@rule(
    "CLC-05", "error", section=TRY_CANCEL,
    help="ask with .multicast::cluster::all, or send the answer on to the other CTAs",
)  # fmt: skip
def unicast_answers_the_issuer(kernel: Kernel) -> Iterator[Outcome]:
    """A request without multicast answers the issuing CTA alone."""
    view = responses(kernel)
    for request in view.requests:
        if request.multicast or request.ring is None or kernel.shape.ranks == 1:
            continue
        issuers = set(kernel.ranks(request.op))
        waits = [op for op in view.waits(request.ring) if set(kernel.ranks(op)) - issuers]
        if not waits:
            continue
        armed = _Armed(kernel, view, request)
        peers = sorted(set(kernel.ranks(waits[0])) - issuers)
        armed_there = [op for op in armed.expects if set(landing(kernel, op) or ()) & set(peers)]
        if armed.unknown or armed.others:
            yield kernel.undecided(
                "CLC-05", "the answer may be sent on in a way not understood", waits[0]
            )
        elif armed_there or not armed.plain:
            yield kernel.finding(
                "CLC-05",
                f"CTAs of rank {', '.join(map(str, peers))} wait on {request.ring.name} for an answer"
                " that goes to the issuing CTA alone: they hang",
                request.op, waits[0], "waits in every CTA",
            )  # fmt: skip


@rule(
    "CLC-18", "error", section=TRY_CANCEL,
    help="arm and wait on the barrier that the request names, at the same offset in every CTA",
)  # fmt: skip
def the_barrier_named(kernel: Kernel) -> Iterator[Outcome]:
    """Waits and expectations are on the barrier that the request names."""
    view = responses(kernel)
    for request in view.requests:
        if view.unknown_barriers or request.ring is None:
            yield kernel.undecided("CLC-18", "a barrier is not understood", request.op)
            continue
        waits = kernel.ops(*WAITS)
        here = [op for op in waits if _names(kernel, op, request)]
        armed = _Armed(kernel, view, request)
        slot = _slot(request.ring, request.mbar)
        if waits and not here:
            yield kernel.finding(
                "CLC-18",
                f"the answer completes a phase of {slot}, on which nobody waits: who waits elsewhere"
                " for it hangs, or reads too early",
                request.op, waits[0], "waits on another barrier",
            )  # fmt: skip
        elif here and not armed.expects and not armed.plain and not armed.others:
            yield kernel.finding(
                "CLC-18",
                f"nobody arms {slot}, which the answer completes: its phase has no arrival and never"
                " ends",
                request.op, here[0], "waits for it",
            )  # fmt: skip


def _names(kernel: Kernel, op: Op, request: Request) -> bool:
    value = kernel.value(op, "mbar")
    return value is not None and may_be_same(value, request.mbar)


def _slot(ring: Ring, value: Value) -> str:
    symbol = ring.base.partition(":")[2]
    return ring.name if value.unknown or not value.single else f"{symbol}+{value.single}"
