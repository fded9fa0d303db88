"""Rules of bulk tensor copies, a copy at a time: alignment, masks, whose barrier, the tensor map.

tma_ring.py holds what copies and their barriers owe each other, tma_store.py the way back to global memory.
What a tensor map says (box, swizzle, strides) is not in the text: rules that need it say so.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from tilewright.audit.copies import certain, first_rank, home, loads, same_address
from tilewright.audit.rules import Outcome, rule
from tilewright.audit.signals import align_of, declared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.copies import Copy
    from tilewright.audit.kernel import Kernel
    from tilewright.ptx.flow import Op
    from tilewright.ptx.values import Value

TENSOR_ALIGN = 128
MAP_ALIGN = 64
SWIZZLES = {128: 1024, 64: 512, 32: 256}
"""Bytes of a swizzle's span -> bytes after which its pattern repeats."""

BULK = ("cp.async.bulk", "cp.reduce.async.bulk")
ASIDE = ("commit_group", "wait_group", "prefetch")
FENCE = "fence.proxy.tensormap::generic"


def _bulk(kernel: Kernel) -> list[Op]:
    return [op for op in kernel.ops(*BULK) if not set(ASIDE) & set(op.entry.split("."))]


# --- alignment ------------------------------------------------------------------------------------


def _sure_align(kernel: Kernel, value: Value, wanted: int) -> int:
    """The greatest power of two up to `wanted` that everything but the constant is a multiple of."""
    symbol = declared(kernel, value.base)
    base = align_of(symbol) if symbol is not None else 1
    return gcd(wanted, base, *(coefficient for _, coefficient in value.unknown))


@rule(
    "TMA-01", "error", section="9.7.9.27.1.2",
    help="align the tiles of tensor copies to 128 bytes",
)  # fmt: skip
def aligned_tiles(kernel: Kernel) -> Iterator[Outcome]:
    """The shared address of a tensor copy is 128-byte aligned."""
    wanted = TENSOR_ALIGN
    unsure: dict[str, tuple[Op, int]] = {}
    for op in kernel.ops("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor"):
        for role in ("dst", "src"):
            value = kernel.value(op, role)
            if value is None or not value.base.startswith("shared:"):
                continue
            sure = _sure_align(kernel, value, wanted)
            off = value.constant % sure != 0
            verdict = certain(kernel, op, off)
            if verdict:
                at = _where(kernel, op, value, off)
                yield kernel.finding(
                    "TMA-01",
                    f"shared address at offset {at} is {_power_in(at)}-byte aligned;"
                    f" {op.entry} needs {wanted}",
                    op,
                )
            elif verdict is None or sure < wanted:
                unsure.setdefault(value.base, (op, sure))
    for base, (op, sure) in unsure.items():
        name = base.partition(":")[2]
        yield kernel.undecided(
            "TMA-01",
            f"{name} and what is added to it are multiples of {sure} for sure; {wanted} are needed",
            op,
        )


def _where(kernel: Kernel, op: Op, value: Value, off: np.ndarray) -> int:
    mask = kernel.threads(op)[0]
    hit = np.broadcast_to(off, mask.shape) & mask
    return int(np.broadcast_to(value.constant, mask.shape)[hit][0])


def _power_in(number: int) -> int:
    return number & -number


@rule(
    "TMA-02", "error", section="5.5.7",
    help="align swizzled tiles to the repeat of the pattern: 1024 bytes for 128B, 512 for 64B, 256 for 32B",
)  # fmt: skip
def swizzle_atoms(kernel: Kernel) -> Iterator[Outcome]:
    """A swizzled tile begins where the pattern of its swizzle repeats, as hardware swizzles by address bits."""
    repeat = max(SWIZZLES.values())
    for copy in loads(kernel):
        if not copy.op.is_a("cp.async.bulk.tensor") or not copy.dst.base.startswith("shared:"):
            continue
        coefficients = [coefficient for _, coefficient in copy.dst.unknown]
        off = copy.dst.constant % gcd(repeat, *coefficients) != 0
        if certain(kernel, copy.op, off):
            at = _where(kernel, copy.op, copy.dst, off)
            wrong = [f"{span}B" for span, bytes_ in SWIZZLES.items() if at % bytes_]
            yield kernel.undecided(
                "TMA-02",
                f"tile at offset {at}: wrong with swizzle {' or '.join(wrong)} unless it is part of a"
                " larger tile; the swizzle stands in the tensor map",
                copy.op,
            )
            return


# --- masks ----------------------------------------------------------------------------------------


@rule(
    "TMA-05", "error", section="9.7.9.27.1.2",
    help="set only bits of CTAs that the cluster has, and at least one",
)  # fmt: skip
def mask_in_cluster(kernel: Kernel) -> Iterator[Outcome]:
    """A multicast mask names at least one CTA, and none beyond the cluster."""
    unknown: Op | None = None
    for op in _bulk(kernel):
        mask = kernel.value(op, "mask")
        if mask is None or not op.has("multicast::cluster"):
            continue
        if not mask.known:
            unknown = unknown or op
            continue
        bits = mask.constant & 0xFFFF
        if certain(kernel, op, bits == 0):
            yield kernel.finding(
                "TMA-05", "multicast mask 0: the copy lands nowhere and signals no barrier", op
            )
        ranks = kernel.shape.ranks
        if not kernel.shape.cluster_known:
            yield kernel.undecided("TMA-05", "the size of the cluster is not known", op)
        elif certain(kernel, op, bits >> ranks != 0):
            number = _where(kernel, op, mask, bits >> ranks != 0)
            yield kernel.finding(
                "TMA-05",
                f"multicast mask {number:#x} names CTA {number.bit_length() - 1} of a cluster of {ranks}",
                op,
            )
    if unknown is not None:
        yield kernel.undecided("TMA-05", "the multicast mask is not known", unknown)


# --- whose barrier --------------------------------------------------------------------------------


def _homes(kernel: Kernel, copy: Copy) -> tuple[list[int | None], list[int | None]]:
    mask = kernel.threads(copy.op)[0]
    every = range(kernel.shape.ranks)
    return (
        [home(kernel, copy.dst, rank, mask[rank]) if mask[rank].any() else None for rank in every],
        [home(kernel, copy.mbar, rank, mask[rank]) if mask[rank].any() else None for rank in every],
    )


def _apart(kernel: Kernel, copy: Copy) -> np.ndarray:
    """Ranks whose copy signals a barrier that its form may not signal."""
    dst, mbar = _homes(kernel, copy)
    apart = [
        d is not None and b is not None and (d >> 1 != b >> 1 if copy.pair else d != b)
        for d, b in zip(dst, mbar, strict=True)
    ]
    return np.array(apart)[:, None]


def _barrier_elsewhere(kernel: Kernel, rule_id: str, copy: Copy) -> Iterator[Outcome]:
    """The break that both rules on the barrier's CTA share, under the id that fits."""
    apart = _apart(kernel, copy)
    verdict = certain(kernel, copy.op, apart)
    if verdict is None:
        yield kernel.undecided(rule_id, "which CTAs issue the copy depends on data", copy.op)
    if not verdict:
        return
    rank = first_rank(kernel, copy.op, apart)
    dst, mbar = _homes(kernel, copy)
    form = "even .cta_group::2 signals only the pair" if copy.pair else "only .cta_group::2 may"
    yield kernel.finding(
        rule_id,
        f"copy into CTA {dst[rank]} signals a barrier of CTA {mbar[rank]}, and {form}: the barrier of"
        f" CTA {dst[rank]} never sees its bytes",
        copy.op,
    )


@rule(
    "TMA-06", "error", section="9.7.9.27.1.2",
    help="give the copy a barrier of the CTA that it lands in",
)  # fmt: skip
def barrier_beside_data(kernel: Kernel) -> Iterator[Outcome]:
    """A copy without .cta_group::2 signals a barrier of the CTA that it lands in."""
    for copy in loads(kernel):
        where = copy.mbar.cta
        if copy.pair or (where is not None and where.base == "leader"):
            continue
        if not kernel.shape.cluster_known and (where is not None or copy.dst.cta is not None):
            yield kernel.undecided("TMA-06", "the size of the cluster is not known", copy.op)
            continue
        if where is not None and not where.known:
            yield kernel.undecided("TMA-06", "the CTA of the barrier is not known", copy.op)
            continue
        yield from _barrier_elsewhere(kernel, "TMA-06", copy)


@rule(
    "TMA-12", "error", section="9.7.9.27.1.2",
    help="use the .cta_group::2 form to signal the barrier of the pair's even CTA",
)  # fmt: skip
def leader_by_pair_form(kernel: Kernel) -> Iterator[Outcome]:
    """Only the .cta_group::2 form signals a barrier in the peer of the destination, and only in that pair."""
    for copy in loads(kernel):
        where = copy.mbar.cta
        if where is not None and (copy.pair or where.base == "leader"):
            yield from _barrier_elsewhere(kernel, "TMA-12", copy)


# --- the tensor map -------------------------------------------------------------------------------


@rule(
    "TMA-11", "error", section="9.7.9.27.1.2",
    help="pass the map as a __grid_constant__ parameter, or keep it in .const or .global, 64-byte aligned",
)  # fmt: skip
def map_in_reach(kernel: Kernel) -> Iterator[Outcome]:
    """A tensor map is in .param, .const or .global, 64-byte aligned, and fenced after it was changed."""
    for op in kernel.flow.ops:
        value = kernel.value(op, "tensor")
        if value is None or not op.is_a(
            "cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor", "cp.async.bulk.prefetch.tensor"
        ):
            continue
        space, _, name = value.base.partition(":")
        if space in {"local", "shared"}:
            yield kernel.finding(
                "TMA-11",
                f"tensor map in .{space} memory ({name}): hardware reads maps in .param, .const and"
                " .global only",
                op,
            )
        elif space and value.single is not None:
            yield from _map_aligned(kernel, op, value)
        yield from _map_fenced(kernel, op, value)


def _map_aligned(kernel: Kernel, op: Op, value: Value) -> Iterator[Outcome]:
    name = value.base.partition(":")[2]
    variable = next(
        (p for p in kernel.function.parameters or () if p.declarators[0].name == name),
        declared(kernel, value.base),
    )
    if variable is None or value.single is None:
        return
    sure = gcd(MAP_ALIGN, align_of(variable), *(coefficient for _, coefficient in value.unknown))
    if value.single % sure:
        yield kernel.finding(
            "TMA-11",
            f"tensor map at {name}+{value.single}: a map is {MAP_ALIGN}-byte aligned",
            op, variable.span, f"{name} is aligned to {align_of(variable)} bytes",
        )  # fmt: skip


def _map_fenced(kernel: Kernel, op: Op, value: Value) -> Iterator[Outcome]:
    fences = [f.index for f in kernel.ops(FENCE) if f.has("acquire")]
    for change in kernel.ops("tensormap.cp_fenceproxy", "tensormap.replace"):
        where = kernel.value(change, "tensor" if "tensor" in change.roles else "dst")
        if where is None or not _same_map(where, value):
            continue
        if kernel.flow.path((change.index,), (op.index,)) and not _passes(
            kernel, change, op, fences
        ):
            yield kernel.finding(
                "TMA-11",
                "tensor map used after a change with no fence.proxy.tensormap::generic.acquire between:"
                " the copy may read the old map",
                op, change, "the map is changed here",
            )  # fmt: skip
            return


def _same_map(a: Value, b: Value) -> bool:
    if a.base or b.base:
        return same_address(a, b)
    return bool(a.unknown) and a.unknown == b.unknown and bool(np.all(a.constant == b.constant))


def _passes(kernel: Kernel, start: Op, goal: Op, through: list[int]) -> bool:
    inside = kernel.reach.between(start, goal)
    return any(index in inside for index in through)
