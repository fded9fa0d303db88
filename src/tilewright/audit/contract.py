"""The contract that a kernel keeps, recovered from its text, in the words of a plan's `contract`.

What cannot be read is None and shown as "unknown". Counts of arrivals are of instructions in the text: a
loop or a copy for each unrolled stage arrives once a phase all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.audit.contract_clc import request_loop

if TYPE_CHECKING:
    from tilewright.audit.kernel import Kernel, Ring
    from tilewright.ptx.flow import Op

SIGNALS = (
    "mbarrier.arrive",
    "mbarrier.arrive_drop",
    "mbarrier.expect_tx",
    "tcgen05.commit",
    "cp.async.mbarrier.arrive",
)
COMPLETIONS = (
    "cp.async.bulk",
    "cp.async.bulk.tensor",
    "clusterlaunchcontrol.try_cancel",
    "st.async",
    "red.async",
    "mbarrier.complete_tx",
)
NO_ACCESS = (
    *("mbarrier", "tcgen05", "mapa", "getctarank", "cvta", "fence"),
    *("clusterlaunchcontrol", "cp.async.bulk.tensor"),
)
"""What names shared::cluster and is no access of DSMEM: barriers, copies from global memory, addresses, fences."""

WAITS = ("mbarrier.try_wait", "mbarrier.test_wait")


@dataclass(frozen=True, slots=True)
class Party:
    """Who does something to a barrier: the instruction, and how many threads of each CTA may execute it.

    Attributes:
        lines: where it stands, each copy.
        threads: of each CTA rank; `exact` when nothing unknown decides besides.
        mask: CTAs that a multicast or commit reaches, by sender's rank; empty without.
        remote: it names another CTA's barrier.
    """

    instruction: str
    lines: tuple[int, ...]
    threads: tuple[int, ...]
    exact: bool
    mask: tuple[int, ...] = ()
    remote: bool = False


@dataclass(frozen=True, slots=True)
class BarrierRow:
    """One barrier object, as the plan's ledger has it."""

    barrier: str
    depth: int | None
    arrive_count: int | None
    tx_bytes: tuple[int, ...]
    arrives: tuple[Party, ...]
    completes: tuple[Party, ...]
    waits: tuple[Party, ...]
    init_line: int


@dataclass(frozen=True, slots=True)
class KernelContract:
    """One kernel's contract.

    Attributes:
        cluster_shape: None where neither the kernel nor the caller says it.
        scheduler: clc, dynamic_atomic or "static or single_tile", by what the text asks.
        cta_group: of its tcgen05 instructions; None without.
    """

    kernel: str
    cluster_shape: tuple[int, int, int] | None
    scheduler: str
    cta_group: int | None
    tmem_columns: int | None
    barriers: tuple[BarrierRow, ...]
    clc: tuple[str, ...]
    dsmem: tuple[str, ...]


def recover_contract(kernel: Kernel) -> KernelContract:
    """Read the contract off a kernel."""
    shape = kernel.shape
    return KernelContract(
        kernel=kernel.function.name,
        cluster_shape=shape.cluster if shape.cluster_known else None,
        scheduler=_scheduler(kernel),
        cta_group=_cta_group(kernel),
        tmem_columns=_tmem_columns(kernel),
        barriers=tuple(_row(kernel, ring) for ring in kernel.rings),
        clc=tuple(request_loop(kernel)),
        dsmem=tuple(_dsmem(kernel)),
    )


def _row(kernel: Kernel, ring: Ring) -> BarrierRow:
    armed = {
        value.number()
        for op in kernel.of_ring(ring, *SIGNALS)
        if "expect_tx" in op.name and (value := kernel.value(op, "tx_bytes")) is not None
    }
    return BarrierRow(
        barrier=ring.name,
        depth=ring.slots,
        arrive_count=ring.count,
        tx_bytes=tuple(sorted(number for number in armed if number is not None)),
        arrives=_parties(kernel, kernel.of_ring(ring, *SIGNALS)),
        completes=_parties(kernel, kernel.of_ring(ring, *COMPLETIONS)),
        waits=_parties(kernel, kernel.of_ring(ring, *WAITS)),
        init_line=ring.inits[0].span.line,
    )


def _parties(kernel: Kernel, ops: list[Op]) -> tuple[Party, ...]:
    """Copies of one instruction by the same threads are one party."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for op in ops:
        mask, exact = kernel.threads(op)
        value = kernel.value(op, "mbar")
        key = (
            op.entry,
            tuple(kernel.per_cta(op)),
            exact,
            _mask(kernel, op),
            value is not None and value.cta is not None,
            mask.tobytes(),
        )
        found.setdefault(key, []).append(op.span.line)
    return tuple(
        Party(key[0], tuple(lines), key[1], key[2], key[3], key[4]) for key, lines in found.items()
    )


def _mask(kernel: Kernel, op: Op) -> tuple[int, ...]:
    value = kernel.value(op, "mask")
    if value is None or not value.known:
        return ()
    full = np.broadcast_to(value.constant, kernel.threads(op)[0].shape)
    return tuple(int(row[0]) for row in full)


def _scheduler(kernel: Kernel) -> str:
    if kernel.ops("clusterlaunchcontrol.try_cancel"):
        return "clc"
    draws = [op for op in kernel.ops("atom") if op.has("add") or op.has("inc")]
    if any(kernel.flow.loops(op.index) and op.has("global") for op in draws):
        return "dynamic_atomic"
    return "static or single_tile"


def _cta_group(kernel: Kernel) -> int | None:
    groups = {
        int(word[-1])
        for op in kernel.ops("tcgen05")
        for word in op.node.opcode.modifiers
        if word.startswith("cta_group::")
    }
    return max(groups) if groups else None


def _tmem_columns(kernel: Kernel) -> int | None:
    columns = [kernel.value(op, "columns") for op in kernel.ops("tcgen05.alloc")]
    numbers = [value.number() for value in columns if value is not None]
    known = [number for number in numbers if number is not None]
    return sum(known) if known and len(known) == len(numbers) else None


def _dsmem(kernel: Kernel) -> list[str]:
    """Accesses to other CTAs' shared memory, beside arrivals and multicast loads."""
    rows = []
    for op in kernel.flow.ops:
        if op.is_a(*NO_ACCESS):
            continue
        if "shared::cluster" in op.node.opcode.modifiers:
            rows.append(f"line {op.span.line}: {op.name}")
    return rows


def compare_with_plan(contract: KernelContract, plan: dict[str, Any]) -> list[str]:
    """What differs between a kernel's contract and a plan's, a line each; empty when they agree.

    Args:
        plan: what `tilewright plan --json` printed.
    """
    said = plan["contract"]
    differences = []
    shape = tuple(said["launch"]["cluster_shape"])
    size = shape[0] * shape[1] * shape[2]
    have = contract.cluster_shape
    if have is not None and have[0] * have[1] * have[2] != size:
        differences.append(f"cluster: the plan has {size} CTAs {shape}, the kernel {have}")
    group = plan["conclusion"]["cta_group"]
    if (contract.cta_group or 1) != group:
        differences.append(f"cta_group: the plan has {group}, the kernel {contract.cta_group}")
    scheduler = plan["conclusion"]["scheduler"]
    if scheduler not in contract.scheduler.split(" or ") and scheduler != "static_blocked":
        differences.append(f"scheduler: the plan has {scheduler}, the kernel {contract.scheduler}")
    wanted = [
        (row["barrier"], row["depth"], row["arrive_count"], row["tx_bytes"])
        for row in said["barriers"]
        if row["storage"].startswith("mbarrier")
    ]
    rows = list(contract.barriers)
    for name, depth, count, tx_bytes in wanted:
        fitting = [
            row
            for row in rows
            if row.depth == depth
            and row.arrive_count == count
            and (tx_bytes in row.tx_bytes if tx_bytes else not row.tx_bytes)
        ]
        if fitting:
            rows.remove(fitting[0])
        else:
            differences.append(
                f"barrier {name}: no ring of {depth} with count {count} and {tx_bytes} bytes a phase in the kernel"
            )
    differences += [
        f"barrier {row.barrier} of the kernel (ring of {row.depth}, count {row.arrive_count}, bytes "
        f"{', '.join(map(str, row.tx_bytes)) or 'none'}) is in no row of the plan"
        for row in rows
    ]
    return differences
