"""Protocols: who does what when inside a kernel, and what must hold for it to be right.

`make_protocol` derives every table of the contract from a tiling and a scheduler: roles and their
programs, the barrier ledger with its counts, bytes and masks, the parities of each phase, when each slot
may be read and overwritten, what crosses between CTAs, the CLC loop, the MMA contract, the memory maps and
the launch. Attention and the user's own tiles have a function each that gives the same `Protocol`.

No count is typed in: roles, masks and operand bytes are; `arrive_count` and `tx_bytes` add them up. What
the tables mean is in docs/contract.md; rule ids are those of the PTX contract there.

Left out: a C operand loaded by TMA, ping-pong wgmma, stream-K's partial tiles, sparse metadata.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.errors import BadInput, Unsupported
from tilewright.protocol import attention, gemm, layout, ledger, scheduler as schedulers
from tilewright.protocol.layout import grid_counts
from tilewright.protocol.mma_contract import accumulator_layout, mma_table, tmem_cell
from tilewright.protocol.model import (
    Barrier,
    Effect,
    Parts,
    Program,
    ProtocolError,
    Ring,
    Role,
    Signal,
    Step,
    Sync,
    Transfer,
    arrive_count,
    ranks_of,
    tx_bytes,
)
from tilewright.protocol.scheduler import SCHEDULERS, Readers
from tilewright.protocol.sharing import multicast_rows, sharing_rows
from tilewright.protocol.tiles import tile_parts
from tilewright.residency import check_cluster_size
from tilewright.tile_map import cta_shares

if TYPE_CHECKING:
    from tilewright.attention import AttentionTiling
    from tilewright.device import Device
    from tilewright.tiling import Tiling

__all__ = [
    "SCHEDULERS",
    "Barrier",
    "Effect",
    "Program",
    "Protocol",
    "ProtocolError",
    "Ring",
    "Role",
    "Signal",
    "Step",
    "Sync",
    "Transfer",
    "accumulator_layout",
    "arrive_count",
    "grid_counts",
    "make_attention_protocol",
    "make_protocol",
    "make_tiles_protocol",
    "ranks_of",
    "tmem_cell",
    "tx_bytes",
]


@dataclass(frozen=True, slots=True)
class Protocol:
    """The contract of one kernel: facts, and tables derived from them.

    Attributes:
        kernel: its family, in words.
        parts: roles, barriers, rings and other synchronisation.
        tables: the parts of the contract that are tables already: sharing, multicast, clc, mma, tmem,
            smem, launch.
    """

    kernel: str
    scheduler: str
    cluster_shape: tuple[int, int, int]
    cta_group: int
    parts: Parts
    tables: dict[str, Any]

    @property
    def cluster_size(self) -> int:
        """CTAs a cluster."""
        x, y, z = self.cluster_shape
        return x * y * z

    @property
    def roles(self) -> tuple[Role, ...]:
        """Roles, each with its program."""
        return self.parts.roles

    @property
    def barriers(self) -> tuple[Barrier, ...]:
        """The mbarriers."""
        return self.parts.barriers

    @property
    def rings(self) -> tuple[Ring, ...]:
        """The slots."""
        return self.parts.rings

    def barrier(self, name: str) -> Barrier:
        """The mbarrier of this name."""
        return next(barrier for barrier in self.barriers if barrier.name == name)

    def arrive_count(self, name: str) -> int:
        """What mbarrier.init of this barrier is given."""
        return arrive_count(self.barrier(name), self.roles)

    def tx_bytes(self, name: str) -> int:
        """What arrive.expect_tx on this barrier is given."""
        return tx_bytes(self.barrier(name))

    def ledger(self) -> list[dict[str, Any]]:
        """The barrier ledger."""
        return ledger.ledger_rows(self.barriers, self.parts.syncs, self.roles, self.cluster_size)

    def phases(self, uses: int | None = None) -> list[dict[str, Any]]:
        """Parities of the prologue, a steady lap and the drain after `uses` uses of each ring."""
        return ledger.phase_rows(self.barriers, self.roles, uses)

    def as_dict(self) -> dict[str, Any]:
        """The contract as JSON-able tables."""
        return {
            "kernel": self.kernel,
            "scheduler": self.scheduler,
            "cta_group": self.cta_group,
            "roles": [_role_row(role) for role in self.roles],
            "barriers": self.ledger(),
            "phases": self.phases(),
            "slots": ledger.slot_rows(self.rings, self.roles),
            "dsmem": ledger.dsmem_rows(self.barriers, self.rings, self.roles),
            "notes": list(self.parts.notes),
            **self.tables,
        }


def make_protocol(
    tiling: Tiling, scheduler: str, device: Device, *, clc_depth: int = 2
) -> Protocol:
    """The contract of a GEMM kernel.

    Args:
        clc_depth: slots for answers of the clc and dynamic_atomic schedulers.
    Raises:
        UnknownName, BadInput, Unsupported: the scheduler does not exist, or not on this device.
    """
    size = tiling.cluster_size
    schedulers.check_scheduler(scheduler, size, clc_depth, device)
    family = tiling.mma.family
    shares = cta_shares(
        tiling.cta_tile, tiling.cluster_shape, tiling.cta_group, multicast=tiling.multicast
    )
    parts, readers = _gemm_parts(tiling, shares)
    parts = schedulers.add_scheduler(parts, scheduler, readers, size, clc_depth, device)
    tmem = tiling.tmem_columns
    tables = {
        "sharing": sharing_rows(shares, tiling.smem, tiling.cta_group),
        "multicast": multicast_rows(shares, tiling.smem),
        "clc": _request_table(parts, scheduler, size, clc_depth),
        "mma": mma_table(tiling, shares),
        "tmem": layout.tmem_table(
            layout.gemm_tmem(tiling), tmem, tiling.cta_group, "tmem_allocator, warp 3"
        ),
        "smem": layout.smem_table(
            layout.gemm_regions(tiling),
            parts.barriers,
            parts.rings,
            tiling.smem_bytes,
            tmem=tmem > 0,
        ),
        "launch": layout.launch_table(
            scheduler, tiling.cluster_shape, tiling.threads, tiling.smem_bytes, device
        ),
    }
    return Protocol(
        f"{family} GEMM", scheduler, tiling.cluster_shape, tiling.cta_group, parts, tables
    )


def _gemm_parts(tiling: Tiling, shares: list[Any]) -> tuple[Parts, Readers]:
    if tiling.mma.family == "tcgen05":
        return gemm.tcgen05_parts(tiling, shares), gemm.TCGEN05_READERS
    if tiling.mma.family == "wgmma":
        return gemm.wgmma_parts(tiling, shares), gemm.WGMMA_READERS
    if tiling.cluster_size > 1:
        raise BadInput(
            f"the mma.sync kernel copies with cp.async and shares nothing; cluster {tiling.cluster_shape}",
            given=tiling.cluster_shape,
            allowed="(1, 1, 1)",
            nearest="(1, 1, 1)",
        )
    return gemm.mma_sync_parts(tiling), gemm.WORKER_READERS


def make_attention_protocol(
    tiling: AttentionTiling, scheduler: str, device: Device, *, clc_depth: int = 2
) -> Protocol:
    """The contract of an attention forward kernel.

    Raises:
        UnknownName, BadInput, Unsupported: as `make_protocol`, and cuts that do not fit TMEM or a cluster.
        NoFit: more shared memory than the device has.
    """
    size = tiling.cluster_size
    schedulers.check_scheduler(scheduler, size, clc_depth, device)
    check_cluster_size(size, device)
    parts, readers = attention.attention_parts(tiling, device)
    parts = schedulers.add_scheduler(parts, scheduler, readers, size, clc_depth, device)
    tmem = tiling.tmem_columns
    tables = {
        "sharing": [_attention_share(tiling, rank) for rank in range(size)],
        "multicast": _attention_multicast(tiling),
        "clc": _request_table(parts, scheduler, size, clc_depth),
        "mma": attention.attention_mma(tiling),
        "tmem": layout.tmem_table(
            [(r.name, r.size * r.depth) for r in parts.rings if r.space == "tmem" and r.size],
            tmem,
            1,
            f"tmem_allocator, warp {tiling.threads // 32 - 1}",
        ),
        "smem": layout.smem_table(
            layout.attention_regions(tiling),
            parts.barriers,
            parts.rings,
            min(tiling.smem_bytes, device.smem_per_cta_max_bytes),
            tmem=tmem > 0,
        ),
        "launch": layout.launch_table(
            scheduler, tiling.cluster_shape, tiling.threads, tiling.smem_bytes, device
        ),
    }
    return Protocol("attention forward", scheduler, tiling.cluster_shape, 1, parts, tables)


def _attention_share(tiling: AttentionTiling, rank: int) -> dict[str, Any]:
    part = tiling.block_kv // tiling.cluster_size
    return {
        "rank": rank,
        "owns_rows": [rank * tiling.block_q, (rank + 1) * tiling.block_q],
        "loads_kv_rows": [rank * part, (rank + 1) * part],
        "kv_mask": hex((1 << tiling.cluster_size) - 1),
    }


def _attention_multicast(tiling: AttentionTiling) -> list[dict[str, Any]]:
    if tiling.cluster_size == 1:
        return []
    return [
        {
            "issuer": rank,
            "operand": operand,
            "mask": hex((1 << tiling.cluster_size) - 1),
            "receivers": list(range(tiling.cluster_size)),
            "bytes": tiling.kv_block_bytes // tiling.cluster_size,
            "bytes_received_each": tiling.kv_block_bytes,
            "offset": "the same in every receiver",
            "rules": ["TMA-03", "TMA-04", "TMA-05", "CLU-16"],
        }
        for rank in range(tiling.cluster_size)
        for operand in ("K", "V")
    ]


def make_tiles_protocol(
    cluster_shape: tuple[int, int, int],
    threads: int,
    smem_bytes: int,
    scheduler: str,
    device: Device,
    *,
    clc_depth: int = 2,
) -> Protocol:
    """The contract around a tile function of the user's.

    Args:
        smem_bytes: what the tile function uses; the scheduler's barriers and answers come on top.
    Raises:
        UnknownName, BadInput, Unsupported: as `make_protocol`.
    """
    x, y, z = cluster_shape
    size = x * y * z
    schedulers.check_scheduler(scheduler, size, clc_depth, device)
    check_cluster_size(size, device)
    if not 1 <= threads <= device.threads_per_cta_max:
        raise Unsupported(
            f"{threads} threads a CTA: {device.name} allows 1 to {device.threads_per_cta_max}",
            given=threads,
            allowed=f"1 to {device.threads_per_cta_max}",
        )
    parts = schedulers.add_scheduler(
        tile_parts(size, threads), scheduler, gemm.WORKER_READERS, size, clc_depth, device
    )
    regions = [layout.Region("tile function", smem_bytes, 1, 128)] if smem_bytes else []
    smem = layout.smem_table(
        regions, parts.barriers, parts.rings, device.smem_per_cta_max_bytes, tmem=False
    )
    tables: dict[str, Any] = {
        "sharing": [
            {"rank": rank, "cluster_ctaid": _ctaid(rank, cluster_shape)} for rank in range(size)
        ],
        "multicast": [],
        "clc": _request_table(parts, scheduler, size, clc_depth),
        "mma": {},
        "tmem": {},
        "smem": smem,
        "launch": layout.launch_table(
            scheduler, cluster_shape, threads, smem["used_bytes"], device
        ),
    }
    return Protocol("user tiles", scheduler, cluster_shape, 1, parts, tables)


def _ctaid(rank: int, shape: tuple[int, int, int]) -> list[int]:
    x, y, _ = shape
    return [rank % x, rank // x % y, rank // (x * y)]


def _request_table(parts: Parts, scheduler: str, size: int, depth: int) -> dict[str, Any]:
    if scheduler == "clc":
        return schedulers.clc_table(parts, size, depth)
    if scheduler == "dynamic_atomic":
        return {"dynamic_atomic": schedulers.dynamic_table(parts, depth)}
    return {}


def _role_row(role: Role) -> dict[str, Any]:
    program = role.program
    blocks = {
        "once_a_tile_before": program.first,
        "each_k_step": program.body,
        "once_a_tile_after": program.last,
        "fetch_next_tile": program.fetch,
        "drain": program.drain,
    }
    return {
        "name": role.name,
        "warps": list(role.warps),
        "threads": role.threads,
        "ranks": list(role.ranks),
        "does": role.does,
        "program": {
            name: [ledger.render_step(s) for s in steps] for name, steps in blocks.items() if steps
        },
        "k_steps_in_before": program.peeled,
    }
