"""Rules of tensor memory: allocation, deallocation, and who may touch which lanes.

An allocation is known by the shared word that tcgen05.alloc writes its address to: what is loaded from there
is the allocation's address. Two CTAs of a pair allocate and deallocate together, one warp in each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tilewright.audit.rules import Outcome, rule
from tilewright.audit.tcgen05 import WARP, cta_group, of_pair
from tilewright.audit.tmem_end import freed_unmet
from tilewright.audit.trace import WARPS_DIFFER, allocation_of, allocations, may_split
from tilewright.ptx.flow import constant
from tilewright.ptx.nodes import Binary, Memory, Name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tilewright.audit.kernel import Kernel
    from tilewright.ptx.finding import Finding
    from tilewright.ptx.flow import Op
    from tilewright.ptx.nodes import Operand
    from tilewright.ptx.values import Value

COLUMNS_MIN, COLUMNS_MAX = 32, 512
LANE_SHIFT = 16
"""An address in tensor memory: the lane above, the column in the lower 16 bits."""

LANES = 128


def columns(kernel: Kernel, op: Op) -> int | None:
    """Columns that alloc or dealloc names."""
    value = kernel.value(op, "columns")
    return None if value is None else value.number()


# --- how many -------------------------------------------------------------------------------------


@rule(
    "TC-01", "error", section="9.7.16.7.1",
    help="allocate 32, 64, 128, 256 or 512 columns, the largest allocation first",
)  # fmt: skip
def columns_are_a_power_of_two(kernel: Kernel) -> Iterator[Outcome]:
    """An allocation has a power of two of columns in [32, 512], and later ones are not larger."""
    sizes: list[tuple[Op, int]] = []
    for op in kernel.ops("tcgen05.alloc", "tcgen05.dealloc"):
        number = columns(kernel, op)
        if number is None:
            yield kernel.undecided("TC-01", "the number of columns is not a constant", op)
        elif not COLUMNS_MIN <= number <= COLUMNS_MAX or number & (number - 1):
            yield kernel.finding(
                "TC-01",
                f"{op.entry} of {number} columns: the number must be a power of two in"
                f" [{COLUMNS_MIN}, {COLUMNS_MAX}]",
                op,
            )
        if number is not None and op.is_a("tcgen05.alloc"):
            sizes.append((op, number))
    yield from _more_than_there_is(kernel, sizes)
    for later, more in sizes:
        for earlier, less in sizes:
            if less < more and follows(kernel, earlier, later):
                yield kernel.finding(
                    "TC-01",
                    f"tcgen05.alloc of {more} columns after one of {less}: the sizes of a CTA's"
                    " successive allocations must not increase",
                    later, earlier, f"allocates {less} columns before it",
                )  # fmt: skip


def _more_than_there_is(kernel: Kernel, sizes: list[tuple[Op, int]]) -> Iterator[Outcome]:
    """Warps of one CTA that allocate together more than there is before they come to a dealloc."""
    if not kernel.block_bounded:
        return
    for op, number in sizes:
        mask, exact = kernel.threads(op)
        whole = mask[:, : mask.shape[1] // WARP * WARP].reshape(mask.shape[0], -1, WARP)
        warps = int(whole.any(axis=2).sum(axis=1).max(initial=0))
        if exact and warps * number > COLUMNS_MAX and warps > 1:
            yield kernel.finding(
                "TC-01",
                f"{warps} warps of a CTA allocate {number} columns each: there are {COLUMNS_MAX}, and one of them waits"
                " for ever",
                op,
            )
            return


def follows(kernel: Kernel, earlier: Op, later: Op) -> bool:
    """Whether `later` is proved to come after `earlier` when both execute in one CTA.

    Some thread executes both, in this order and not the other; or all of the CTA pass a barrier between.
    """
    flow = kernel.flow
    if not flow.path((earlier.index,), (later.index,)) or flow.path(
        (later.index,), (earlier.index,)
    ):
        return False
    if kernel.together(earlier, later):
        return flow.dominates(earlier.index, later.index) or kernel.threads(earlier)[1]
    return any(
        flow.dominates(barrier.index, later.index)
        and flow.path((earlier.index,), (barrier.index,))
        and not flow.path((barrier.index,), (earlier.index,))
        for barrier in kernel.ops("bar.sync", "barrier.sync", "bar.cta.sync", "barrier.cta.sync",
                                  "barrier.cluster.wait")
        if bool(np.all(kernel.threads(barrier)[0]))
    )  # fmt: skip


# --- together in the pair -------------------------------------------------------------------------


@rule(
    "TC-02", "error", section="9.7.16.5",
    help="execute it in one whole warp of each CTA of the pair, with no condition on the CTA's rank",
)  # fmt: skip
def allocated_by_both(kernel: Kernel) -> Iterator[Outcome]:
    """A whole warp executes alloc, and with .cta_group::2 one in each CTA of the pair."""
    for entry in ("tcgen05.alloc", "tcgen05.relinquish_alloc_permit"):
        yield from _whole_warp(kernel, "TC-02", kernel.ops(entry))
        yield from _in_both(kernel, "TC-02", of_pair(kernel, entry))
    waits = kernel.indices(kernel.ops("barrier.cluster.wait"))
    for op in of_pair(kernel, "tcgen05.alloc"):
        if kernel.reach.threads_to((-1,), op, waits):
            yield kernel.undecided(
                "TC-02",
                "whether the other CTA of the pair runs already: no cluster barrier before",
                op,
            )


def _in_both(kernel: Kernel, rule_id: str, ops: list[Op]) -> Iterator[Finding]:
    """One finding for the first instruction that one CTA of a pair executes and the other has none like."""
    if not ops or not kernel.shape.cluster_known or kernel.shape.ranks % 2:
        return
    reached = {rank for op in ops for rank in kernel.ranks(op)}
    for op in ops:
        alone = [rank for rank in kernel.ranks(op) if rank ^ 1 not in reached]
        if alone:
            yield kernel.finding(
                rule_id,
                f"{op.entry} with .cta_group::2 is executed in rank {alone[0]} and never in its"
                f" peer, rank {alone[0] ^ 1}: the first warp waits for the peer's, so this"
                " deadlocks",
                op,
            )
            return


def _whole_warp(kernel: Kernel, rule_id: str, ops: Iterable[Op]) -> Iterator[Finding]:
    for op in ops:
        lanes = _part_of_a_warp(kernel, op)
        if lanes:
            yield kernel.finding(
                rule_id,
                f"{op.entry} is reached by {lanes} of {WARP} lanes: it is .sync.aligned, and every"
                " lane of the warp must execute it",
                op,
            )


def _part_of_a_warp(kernel: Kernel, op: Op) -> int:
    """Lanes that may execute it in a warp of which some never do; 0 where whole warps do."""
    mask = kernel.threads(op)[0]
    whole = mask.shape[1] // WARP * WARP
    counts = mask[:, :whole].reshape(mask.shape[0], -1, WARP).sum(axis=2)
    partial = counts[(counts > 0) & (counts < WARP)]
    return int(partial[0]) if partial.size else 0


@rule(
    "TC-06", "error", section="9.7.16.5",
    help="let both CTAs pass the cluster barrier first, then deallocate in both",
)  # fmt: skip
def deallocated_by_both(kernel: Kernel) -> Iterator[Outcome]:
    """A .cta_group::2 dealloc is executed in both CTAs, and neither needs the other's later step first."""
    yield from _whole_warp(kernel, "TC-06", kernel.ops("tcgen05.dealloc"))
    ops = of_pair(kernel, "tcgen05.dealloc")
    yield from _in_both(kernel, "TC-06", ops)
    if not kernel.shape.cluster_known:
        return
    flow = kernel.flow
    waits = kernel.ops("barrier.cluster.wait")
    for early in ops:
        peers = {rank ^ 1 for rank in kernel.ranks(early)}
        for late in ops:
            ranks = set(kernel.ranks(late))
            if not ranks & peers or ranks & set(kernel.ranks(early)):
                continue
            between = [
                wait
                for wait in waits
                if flow.dominates(wait.index, late.index)
                and flow.path((early.index,), (wait.index,))
                and not flow.path((wait.index,), (early.index,))
            ]
            if between:
                yield kernel.finding(
                    "TC-06",
                    f"rank {min(ranks) ^ 1} deallocates before the cluster barrier that rank"
                    f" {min(ranks)} passes before its own dealloc: a dealloc may wait for the"
                    " peer's, which waits at the barrier",
                    early, late, f"the peer's dealloc, behind the barrier at line"
                    f" {between[0].span.line}",
                )  # fmt: skip


# --- in which order -------------------------------------------------------------------------------


@rule(
    "TC-03", "error", section="9.7.16.7.1",
    help="relinquish the permit after the last allocation of the CTA",
)  # fmt: skip
def no_alloc_after_relinquish(kernel: Kernel) -> Iterator[Outcome]:
    """No thread of a CTA allocates once one of its threads relinquished the permit."""
    for alloc in kernel.ops("tcgen05.alloc"):
        for given_up in kernel.ops("tcgen05.relinquish_alloc_permit"):
            if not set(kernel.ranks(alloc)) & set(kernel.ranks(given_up)):
                continue
            if follows(kernel, given_up, alloc):
                yield kernel.finding(
                    "TC-03",
                    "tcgen05.alloc after the CTA relinquished its permit to allocate",
                    alloc, given_up, "relinquishes the permit",
                )  # fmt: skip
                break
            if kernel.flow.path((given_up.index,), (alloc.index,)):
                yield kernel.undecided(
                    "TC-03", "whether it comes after relinquish_alloc_permit depends on data", alloc
                )
                break


@rule(
    "TC-05", "error", section="9.7.16.7.1",
    help="deallocate every allocation before the kernel exits, in the CTA that made it",
)  # fmt: skip
def everything_is_deallocated(kernel: Kernel) -> Iterator[Outcome]:
    """Every allocation is deallocated before the kernel exits."""
    allocs, deallocs = kernel.ops("tcgen05.alloc"), kernel.ops("tcgen05.dealloc")
    freed_in = {rank for op in deallocs for rank in kernel.ranks(op)}
    terms = allocations(kernel)
    freed = [allocation_of(kernel.value(op, "taddr"), terms) for op in deallocs]
    for alloc in allocs:
        left = [rank for rank in kernel.ranks(alloc) if rank not in freed_in]
        if not deallocs:
            why = "no tcgen05.dealloc in the kernel"
        elif left and cta_group(alloc) == 1:
            why = f"no tcgen05.dealloc is executed in rank {left[0]}"
        elif all(freed) and not any(alloc in by for by in freed):
            why = "no tcgen05.dealloc names its address"
        else:
            yield from _leaves_first(kernel, alloc, deallocs)
            continue
        size = columns(kernel, alloc)
        yield kernel.finding(
            "TC-05",
            f"{'columns' if size is None else f'{size} columns'} of tensor memory are still"
            f" allocated when the kernel exits: {why}; a later tcgen05.alloc on the SM may wait for"
            " them for ever",
            alloc,
        )


def _leaves_first(kernel: Kernel, alloc: Op, deallocs: list[Op]) -> Iterator[Outcome]:
    """A thread that allocates and deallocates reaches an exit first, by conditions that are all known."""
    mine = [op for op in deallocs if kernel.together(alloc, op)]
    if not mine:
        return
    flow, freed = kernel.flow, kernel.indices(mine)
    for leave in flow.exits:
        exact = kernel.threads(leave)[1]
        both = kernel.threads(leave)[0] & kernel.threads(alloc)[0]
        if not exact or not kernel.threads(alloc)[1] or not bool(np.any(both)):
            continue
        if flow.dominates(alloc.index, leave.index) and not flow.path(tuple(freed), (leave.index,)):
            yield kernel.finding(
                "TC-05",
                "the kernel exits here with tensor memory that was allocated and not deallocated",
                leave, alloc, "allocates it",
            )  # fmt: skip


@rule(
    "TC-07", "error", section="9.7.16.7.1",
    help="pass barrier.cluster between the last access of either CTA and the dealloc",
)  # fmt: skip
def accesses_end_before_dealloc(kernel: Kernel) -> Iterator[Outcome]:
    """Both CTAs of a pair are done with tensor memory before either deallocates it."""
    flow = kernel.flow
    crossing = kernel.ops("barrier.cluster.wait", "mbarrier.try_wait", "mbarrier.test_wait")
    told = False
    for dealloc in of_pair(kernel, "tcgen05.dealloc"):
        accesses = [
            op for op in kernel.ops("tcgen05.ld", "tcgen05.st") if kernel.together(op, dealloc)
        ]
        avoid = kernel.indices(crossing) | kernel.elsewhere(dealloc)
        bare = [op for op in accesses if flow.path((op.index,), (dealloc.index,), avoid)]
        if bare:
            told = True
            yield kernel.finding(
                "TC-07",
                "tensor memory of the pair is deallocated with nothing between this CTA's last"
                f" {bare[-1].entry} and the dealloc that waits for the other CTA: the peer may"
                " still access it",
                dealloc, bare[-1], "the same access may still be running in the peer",
            )  # fmt: skip
    if not told:
        yield from freed_unmet(kernel)


@rule(
    "TC-08", "error", section="9.7.16.7.1",
    help="give dealloc the address and the number of columns that alloc was given",
)  # fmt: skip
def dealloc_matches(kernel: Kernel) -> Iterator[Outcome]:
    """A dealloc names the address and the columns of a live allocation."""
    terms = allocations(kernel)
    allocs = kernel.ops("tcgen05.alloc")
    for op in kernel.ops("tcgen05.dealloc") if allocs else ():
        yield from _by_more_warps(kernel, allocs, op)
        taddr = kernel.value(op, "taddr")
        of = allocation_of(taddr, terms)
        size = columns(kernel, op)
        sizes = [columns(kernel, alloc) for alloc in of or allocs]
        if size is None or None in sizes:
            yield kernel.undecided("TC-08", "a number of columns is not a constant", op)
        elif size not in sizes:
            yield kernel.finding(
                "TC-08",
                f"tcgen05.dealloc of {size} columns; the allocation has"
                f" {' or '.join(str(each) for each in sorted(set(map(int, filter(None, sizes)))))}",
                op, (of or allocs or [op])[0], "allocates them",
            )  # fmt: skip
        elif of and taddr is not None and len(taddr.unknown) == 1 and taddr.single != 0:
            yield kernel.finding(
                "TC-08",
                f"tcgen05.dealloc at {_offset(taddr)} from the address that tcgen05.alloc gave",
                op, of[0], "gave the address",
            )  # fmt: skip


def _by_more_warps(kernel: Kernel, allocs: list[Op], op: Op) -> Iterator[Finding]:
    """A dealloc that more warps of a CTA execute than any alloc; warps below one that allocates surely exist."""
    if may_split(kernel, op, WARPS_DIFFER):
        return
    made, freed = (
        np.array([_warps(kernel.threads(each)[0]) for each in ops]) for ops in (allocs, [op])
    )
    for rank, (mine, by) in enumerate(zip(freed[0], made.sum(axis=0), strict=True)):
        last = (
            mine.size
            if kernel.shape.block_known
            else int(np.max(np.flatnonzero(by), initial=-1)) + 1
        )
        times = int(mine[:last].sum())
        if times > max(int(by.sum()), 1):
            yield kernel.finding(
                "TC-08",
                f"tcgen05.dealloc is executed by {times} warps of the CTA of rank {rank}, and tcgen05.alloc by"
                f" {int(by.sum())}: what the first one frees the others free again",
                op, allocs[0], "allocated here",
            )  # fmt: skip
            return


def _warps(mask: np.ndarray) -> np.ndarray:
    """Of each CTA, which warps may execute it."""
    padded = np.pad(mask, ((0, 0), (0, -mask.shape[1] % WARP)))
    warps: np.ndarray = np.any(padded.reshape(mask.shape[0], -1, WARP), axis=2)
    return warps


def _offset(value: Value) -> str:
    return "an offset" if value.single is None else f"offset {value.single}"


# --- which lanes ----------------------------------------------------------------------------------


@rule(
    "TC-15", "error", section="9.7.16.8.1",
    help="add (warp % 4) << 21 to the address, the same in all lanes of the warp",
)  # fmt: skip
def warp_keeps_to_its_lanes(kernel: Kernel) -> Iterator[Outcome]:
    """Warp w of a warpgroup accesses lanes 32 (w % 4) to +31, by one address, as a whole warp."""
    terms = allocations(kernel)
    for op in kernel.ops("tcgen05.ld", "tcgen05.st"):
        yield from _whole_warp(kernel, "TC-15", [op])
        taddr = op.role("taddr")
        if taddr is None:
            continue
        for value in starts(kernel, taddr, op):
            if not allocation_of(value, terms) or not _only_columns(value, terms):
                yield kernel.undecided(
                    "TC-15", "the address in tensor memory is not understood", op
                )
                break
            problem = _wrong_lanes(kernel, op, value)
            if problem:
                yield kernel.finding("TC-15", f"{op.entry} {problem}", op)
                break


def _only_columns(value: Value, terms: dict[str, list[Op]]) -> bool:
    """Whether the unknown parts, the allocation aside, are steps of columns: a stage times its width.

    A step of one may be anything, the bits of a lane among it.
    """
    return all(name in terms or 1 < abs(factor) < 1 << LANE_SHIFT for name, factor in value.unknown)


def _wrong_lanes(kernel: Kernel, op: Op, value: Value) -> str:
    mask = kernel.threads(op)[0].copy()
    if not kernel.shape.block_known and bool(np.any(mask[:, :LANES])):
        mask[:, LANES:] = False  # warps that a smaller block does not have
    address = np.broadcast_to(value.constant, mask.shape)
    lane = address >> LANE_SHIFT & 0xFFFF
    threads = np.arange(mask.shape[1])[None, :]
    own = np.broadcast_to(threads // WARP % 4 * WARP, mask.shape)
    first = np.broadcast_to(address[:, threads[0] // WARP * WARP], mask.shape)
    if bool(np.any((address != first) & mask)):
        return "has different addresses in the lanes of one warp: all lanes must give the same"
    wrong = ((lane // WARP * WARP) != own) & mask
    if not bool(np.any(wrong)):
        return ""
    rank, thread = (int(each[0]) for each in np.nonzero(wrong))
    start, warp = int(lane[rank, thread]), thread // WARP
    return (
        f"of warp {warp} names lane {start} of {LANES}: warp {warp} may access lanes"
        f" {warp % 4 * WARP} to {warp % 4 * WARP + WARP - 1} only"
    )


def starts(kernel: Kernel, operand: Operand, op: Op) -> list[Value]:
    """Values of an address where loops begin: what steps are added to on the way round is left aside."""
    found: list[Value] = []
    _collect(kernel, operand, op, 0, set(), found)
    return found


def _collect(
    kernel: Kernel,
    operand: Operand,
    op: Op,
    offset: int,
    seen: set[tuple[str, int]],
    out: list[Value],
) -> None:
    if isinstance(operand, Memory):
        operand = operand.parts[0]
    if isinstance(operand, Binary) and operand.operator in {"+", "-"}:
        step = constant(operand.right)
        if step is not None:
            sign = 1 if operand.operator == "+" else -1
            _collect(kernel, operand.left, op, offset + sign * step, seen, out)
            return
    defs = kernel.values.reaching(operand.name, op.index) if isinstance(operand, Name) else ()
    for index in defs:
        made = kernel.flow.ops[index]
        key = (str(operand), index)
        if key in seen:
            continue
        seen.add(key)
        if not _stepped(kernel, made, offset, seen, out):
            out.append(
                _moved(kernel.values.choices(_register(operand), op.index), defs, index, offset)
            )


def _register(operand: Operand) -> str:
    """The register of an operand that is one."""
    return operand.name if isinstance(operand, Name) else ""


def _moved(choices: list[Value], defs: tuple[int, ...], index: int, offset: int) -> Value:
    value = choices[defs.index(index)]
    return replace(value, constant=value.constant + offset)


def _stepped(
    kernel: Kernel, made: Op, offset: int, seen: set[tuple[str, int]], out: list[Value]
) -> bool:
    """Follow `mov` and the addition of a constant smaller than a lane; False for anything else."""
    root = made.node.opcode.root
    if root == "mov" and isinstance(made.operands[1], Name):
        _collect(kernel, made.operands[1], made, offset, seen, out)
        return True
    if root in {"add", "sub"}:
        step = kernel.values.of(made.operands[2], made).number()
        if step is not None and abs(step) < 1 << LANE_SHIFT:
            shift = offset + (step if root == "add" else -step)
            _collect(kernel, made.operands[1], made, shift, seen, out)
            return True
    return False
