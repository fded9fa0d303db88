"""Rules of the launch family: cluster dimensions, masks, registers of a warpgroup, elect, dependent launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.audit.cluster import part_of_a_warp
from tilewright.audit.rules import Outcome, rule
from tilewright.audit.signals import CTA_BARRIERS, WAITS
from tilewright.ptx.flow import constant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel
    from tilewright.ptx.flow import Op

PORTABLE_CTAS, MOST_CTAS = 8, 16
WARP, WARPGROUP = 32, 128
REGISTERS_LEAST, REGISTERS_MOST, REGISTERS_STEP = 24, 256, 8
REGISTER_FILE = 65536
FULL_MASK = 0xFFFFFFFF


# --- cluster dimensions ---------------------------------------------------------------------------


@rule(
    "CLU-13", "warning", section="11.7",
    help=".explicitcluster and .reqnctapercluster, or give the launch's cluster to the audit",
)  # fmt: skip
def cluster_is_declared(kernel: Kernel) -> Iterator[Outcome]:
    """A kernel that needs more than one CTA in its cluster says so, or its launch does."""
    if kernel.shape.cluster_known or kernel.directive(".explicitcluster") is not None:
        return
    for op in kernel.flow.ops:
        why = _needs_peers(kernel, op)
        if why:
            yield kernel.finding(
                "CLU-13",
                f"{why}, and nothing declares the cluster: launched without a cluster it is 1x1x1",
                op,
                severity="warning",
            )
            return


def _needs_peers(kernel: Kernel, op: Op) -> str:
    if op.has("cta_group::2"):
        return f"{op.entry}.cta_group::2 needs a pair of CTAs"
    if op.has("multicast::cluster::all"):
        return f"{op.entry} multicasts to the cluster"
    mask = kernel.value(op, "mask") if op.has("multicast::cluster") else None
    bits = None if mask is None else mask.number()
    if bits is not None and bits & 0xFFFE:
        return f"{op.entry} multicasts to CTAs beyond rank 0: mask {bits & 0xFFFF:#x}"
    rank = kernel.value(op, "cta") if op.is_a("mapa") else None
    number = None if rank is None else rank.number()
    if number is not None and number > 0:
        return f"mapa to rank {number} needs more than one CTA"
    return ""


@rule(
    "CLU-14", "error", section="11.7",
    help="let .reqnctapercluster, .maxclusterrank and the launch agree; 8 CTAs are portable, 16 the most",
)  # fmt: skip
def cluster_directives_agree(kernel: Kernel) -> Iterator[Outcome]:
    """The directives of a cluster agree with each other and with the launch."""
    wanted, most = kernel.directive(".reqnctapercluster"), kernel.directive(".maxclusterrank")
    if wanted is not None and most is not None:
        yield kernel.finding(
            "CLU-14",
            ".maxclusterrank and .reqnctapercluster exclude each other",
            most.span,
            wanted.span,
            "the other",
        )
    if kernel.directive(".blocksareclusters") is not None:
        blocks = kernel.directive(".blocksareclusters")
        missing = [
            name for name in (".reqntid", ".reqnctapercluster") if kernel.directive(name) is None
        ]
        if missing and blocks is not None:
            yield kernel.finding(
                "CLU-14", f".blocksareclusters without {' and '.join(missing)}", blocks.span
            )
    if wanted is None:
        yield from _launched_rank(kernel)
        return
    shape = [constant(each) or 1 for each in wanted.arguments]
    ctas = int(np.prod(shape))
    if ctas > MOST_CTAS:
        yield kernel.finding(
            "CLU-14", f"cluster of {ctas} CTAs; the most is {MOST_CTAS}", wanted.span
        )
    elif ctas > PORTABLE_CTAS:
        yield kernel.finding(
            "CLU-14", f"cluster of {ctas} CTAs is not portable: the launch needs NonPortableClusterSizeAllowed beyond {PORTABLE_CTAS}",
            wanted.span, severity="warning",
        )  # fmt: skip
    launched = kernel.options.cluster
    if launched is not None and tuple((*shape, 1, 1)[:3]) != tuple(launched):
        yield kernel.finding(
            "CLU-14",
            f"launch with cluster {'x'.join(map(str, launched))}; the kernel requires {'x'.join(map(str, shape))}",
            wanted.span,
        )


def _launched_rank(kernel: Kernel) -> Iterator[Outcome]:
    most, launched = kernel.directive(".maxclusterrank"), kernel.options.cluster
    limit = None if most is None or not most.arguments else constant(most.arguments[0])
    if (
        most is not None
        and limit is not None
        and launched is not None
        and int(np.prod(launched)) > limit
    ):
        yield kernel.finding(
            "CLU-14",
            f"launch with {int(np.prod(launched))} CTAs a cluster; .maxclusterrank is {limit}",
            most.span,
        )


@rule(
    "CLU-16", "warning", section="9.7.9.27.1.2",
    help="compute the mask from %cluster_nctarank",
)  # fmt: skip
def mask_within_the_cluster(kernel: Kernel) -> Iterator[Outcome]:
    """A multicast mask names CTAs of the cluster only."""
    if not kernel.shape.cluster_known:
        return
    allowed = (1 << kernel.shape.ranks) - 1
    for op in kernel.flow.ops:
        mask = (
            kernel.value(op, "mask")
            if op.has("multicast::cluster") and "mask" in op.roles
            else None
        )
        threads = kernel.threads(op)[0] if mask is not None else None
        if mask is None or threads is None or not mask.known or not threads.any():
            continue
        bits = np.broadcast_to(mask.constant, threads.shape)[threads] & 0xFFFF
        if np.all(bits & ~allowed):
            yield kernel.finding(
                "CLU-16",
                f"mask {int(bits[0]):#x} names CTAs that a cluster of {kernel.shape.ranks} does not have",
                op,
                severity="warning",
            )


# --- registers ------------------------------------------------------------------------------------


def _registers(kernel: Kernel, op: Op) -> int | None:
    value = kernel.value(op, "registers")
    return None if value is None else value.number()


@rule(
    "REG-01", "error", section="9.7.19.5",
    help="24 to 256 in steps of 8",
)  # fmt: skip
def register_count(kernel: Kernel) -> Iterator[Outcome]:
    """A register count for setmaxnreg is 24 to 256, a multiple of 8."""
    for op in kernel.ops("setmaxnreg"):
        number = _registers(kernel, op)
        if number is not None and (
            not REGISTERS_LEAST <= number <= REGISTERS_MOST or number % REGISTERS_STEP
        ):
            yield kernel.finding(
                "REG-01",
                f"setmaxnreg to {number}; it takes {REGISTERS_LEAST} to {REGISTERS_MOST} in steps of {REGISTERS_STEP}",
                op,
            )


@rule(
    "REG-02", "error", section="9.7.19.5",
    help="all four warps of the warpgroup execute the same setmaxnreg, within the register file",
)  # fmt: skip
def registers_by_warpgroup(kernel: Kernel) -> Iterator[Outcome]:
    """All warps of a warpgroup execute the same setmaxnreg, down from what they have or up to what is free."""
    ops = kernel.ops("setmaxnreg")
    for op in ops:
        part = part_of_a_warp(kernel, op, WARPGROUP)
        if part is not None:
            yield kernel.finding(
                "REG-02",
                f"setmaxnreg by {part[0]} of the {part[1]} threads of warpgroup {part[2]}: all its warps must execute the same one",
                op,
            )
        yield from _direction(kernel, op)
    yield from _register_file(kernel, ops)
    if ops and all(kernel.directive(name) is None for name in (".maxnreg", ".maxntid", ".reqntid")):
        yield kernel.finding(
            "REG-02", "setmaxnreg in a kernel with no .maxnreg, .maxntid or .reqntid: its register count is not known and ptxas ignores it",
            ops[0], severity="warning",
        )  # fmt: skip


def _direction(kernel: Kernel, op: Op) -> Iterator[Outcome]:
    given = kernel.directive(".maxnreg")
    has = None if given is None else constant(given.arguments[0])
    wants = _registers(kernel, op)
    others = [
        each
        for each in kernel.ops("setmaxnreg")
        if each is not op and kernel.flow.path((each.index,), (op.index,))
    ]
    if given is None or has is None or wants is None or others:
        return
    if op.has("dec") and wants > has:
        yield kernel.finding(
            "REG-02",
            f"setmaxnreg.dec to {wants} from {has}: dec goes down only",
            op,
            given.span,
            "registers at the start",
        )
    if op.has("inc") and wants < has:
        yield kernel.finding(
            "REG-02",
            f"setmaxnreg.inc to {wants} from {has}: inc goes up only",
            op,
            given.span,
            "registers at the start",
        )


def _register_file(kernel: Kernel, ops: list[Op]) -> Iterator[Outcome]:
    groups = max(kernel.shape.threads // WARPGROUP, 1)
    most: dict[int, tuple[int, Op]] = {}
    for op in ops:
        number = _registers(kernel, op)
        if number is None or not op.has("inc"):
            continue
        for group in range(groups):
            held = kernel.threads(op)[0][0, group * WARPGROUP : (group + 1) * WARPGROUP]
            if held.size == WARPGROUP and held.all() and not kernel.reach.open_conditions(op):
                most[group] = max(most.get(group, (0, op)), (number, op), key=lambda each: each[0])
    if not most:
        return
    last = max(most.values(), key=lambda each: each[1].index)[1]
    kept = {group: least for group in range(max(most)) if group not in most
            for least in (_kept(kernel, ops, group),)}  # fmt: skip
    total = sum(number for number, _ in most.values()) * WARPGROUP
    left = sum(each or REGISTERS_LEAST for each in kept.values()) * WARPGROUP
    if total + left > REGISTER_FILE:
        also = f", others keep {left}" if left else ""
        yield kernel.finding(
            "REG-02",
            f"deadlock: {len(most)} warpgroups raise their registers to {total} in all{also}; the register file"
            f" has {REGISTER_FILE}, so setmaxnreg.inc blocks for ever",
            last,
        )
    elif None in kept.values():
        bare = sum(each is None for each in kept.values())
        most_kept = (REGISTER_FILE - total - left) // WARPGROUP // bare + REGISTERS_LEAST
        yield kernel.finding(
            "REG-02",
            f"{len(most)} warpgroups raise their registers to {total} in all and {bare} never lowers its own:"
            f" setmaxnreg.inc blocks for ever where the kernel has more than {most_kept} a thread",
            last, severity="warning",
        )  # fmt: skip


def _kept(kernel: Kernel, ops: list[Op], group: int) -> int | None:
    """The least that a warpgroup lowers its registers to; None where it never does."""
    lanes = slice(group * WARPGROUP, (group + 1) * WARPGROUP)
    mine = [op for op in ops if kernel.threads(op)[0][0, lanes].any()]
    numbers = [_registers(kernel, op) for op in mine]
    if not mine:
        return None
    return min((each for each in numbers if each is not None), default=REGISTERS_LEAST)


# --- elect, dependent launches --------------------------------------------------------------------


@rule(
    "EL-01", "error", section="9.7.13.14",
    help="elect.sync _|p, 0xffffffff in a converged warp",
)  # fmt: skip
def elect_in_a_whole_warp(kernel: Kernel) -> Iterator[Outcome]:
    """The lanes that elect.sync names execute it, and there is at least one."""
    for op in kernel.ops("elect.sync"):
        value = kernel.value(op, "lanes")
        number = None if value is None else value.number()
        if number is None:
            continue
        lanes = number & FULL_MASK
        if lanes == 0:
            yield kernel.finding(
                "EL-01", "elect.sync with an empty member mask: nobody is elected", op
            )
            continue
        absent = _absent_lanes(kernel, op, lanes)
        if absent is not None:
            yield kernel.finding(
                "EL-01",
                f"elect.sync names lanes of warp {absent[0]} that do not come here: mask {lanes:#x}, lanes {absent[1]:#x}",
                op,
            )


def _absent_lanes(kernel: Kernel, op: Op, lanes: int) -> tuple[int, int] | None:
    """A warp of which some lane comes and some named lane surely does not, and those that may come."""
    for row in kernel.threads(op)[0]:
        for start in range(0, row.size, WARP):
            here = row[start : start + WARP]
            may = sum(1 << i for i, each in enumerate(here) if each)
            there = (1 << here.size) - 1
            if may and lanes & there & ~may:
                return start // WARP, may
    return None


@rule(
    "PDL-01", "warning", section="9.7.13.13",
    help="griddepcontrol.wait before the first read of what the prerequisite grid wrote, in every role",
)  # fmt: skip
def waits_for_the_prerequisite(kernel: Kernel) -> Iterator[Outcome]:
    """A grid in a chain of dependent launches waits for its prerequisite before it reads global memory."""
    waits = kernel.ops("griddepcontrol.wait")
    launches = kernel.ops("griddepcontrol.launch_dependents")
    if not waits and not launches:
        return
    ordered = kernel.indices(waits) | kernel.indices(
        kernel.ops(*CTA_BARRIERS, *WAITS, "barrier.cluster.wait") if waits else ()
    )
    for op in kernel.flow.ops:
        if not _reads_global(op) or not kernel.reach.threads_to((-1,), op, ordered):
            continue
        place = waits[0] if waits else launches[0]
        why = (
            "before griddepcontrol.wait"
            if waits
            else "in a kernel that launches dependents and has no griddepcontrol.wait"
        )
        yield kernel.finding(
            "PDL-01", f"{op.node.opcode.root} reads global memory {why}: the prerequisite grid may still write it",
            op, place, "griddepcontrol here", "warning",
        )  # fmt: skip
        return


def _reads_global(op: Op) -> bool:
    root = op.node.opcode.root
    if root == "ld":
        return op.has("global") and not op.has("nc")
    if root == "atom":
        return op.has("global")
    if op.is_a("cp.async.bulk.prefetch"):
        return False
    return (
        op.is_a("cp.async.bulk", "cp.async")
        and op.has("global")
        and ("mbar" in op.roles or op.entry == "cp.async")
    )
