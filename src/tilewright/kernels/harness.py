"""A tile function of the user's inside any scheduler's loop: one self-contained source, and how to launch it.

    __device__ void tilewright_tile(const Tile& tile, void* arguments, unsigned char* shared)

`Tile` is in harness.cuh: the tile's number, this CTA's rank among those that share it, the cluster as it is.
All threads of every CTA of the tile call the function. The source may include the .cuh files of this package.

Launch `ENTRY` along x with `threads` threads, `launch_smem_bytes` of dynamic shared memory, clusters of
`cluster_size`, `grid_ctas` CTAs and `pack_arguments` as the one parameter. With `larger_clusters` the launch
may also prefer clusters of a multiple (cudaLaunchAttributePreferredClusterDimension): a larger cluster does
neighbouring tiles side by side. That a granted CLC answer then stands for a cluster as large as the one that
asked is an assumption: CUTLASS makes it (sm100_tile_scheduler.hpp, fetch_next_work), PTX does not say it.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Literal

import numpy as np

from tilewright.errors import BadInput, NoFit, UnknownName, Unsupported
from tilewright.kernels.config import ANSWER_STRIDE, SCHEDULERS
from tilewright.kernels.source import assemble as inline, read_source
from tilewright.protocol import scheduler as protocol
from tilewright.residency import check_cluster_size

if TYPE_CHECKING:
    from tilewright.device import Device

ENTRY = "tilewright_tiles"
"""Name of the kernel."""

SIGNATURE = (
    "__device__ void tilewright_tile(const Tile& tile, void* arguments, unsigned char* shared)"
)
COUNTER_BYTES = 8
"""Of `work_counter`: two words, zero before the first launch and after each."""

TIMELINE = np.dtype(
    [("start_ns", "<u8"), ("end_ns", "<u8"), ("sm", "<u4"), ("cta", "<u4")], align=True
)
"""`TileTime` of harness.cuh: one for each tile and each rank in it, rank fastest; zeros before the launch."""

DEPTH_MAX = 3
"""Unread answers that schedule.cuh has room for."""

CLUSTER_MAX = 16
"""CTAs; sizes over 8 need the launch attribute for non-portable clusters."""

THREADS_MAX = 1024
Meeting = Literal["none", "cta", "cluster"]
_MEETINGS = ("none", "cta", "cluster")
_DEFINITION = re.compile(r"\bvoid\s+tilewright_tile\s*\(")
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"', re.MULTILINE)


@dataclass(frozen=True)
class HarnessConfig:
    """What the loop around a tile function is compiled for.

    Attributes:
        cluster_size: CTAs that share a tile.
        scheduler: how clusters come by their tiles.
        depth: answers that a dynamic scheduler may have unread; with 1 the CTAs of a cluster begin each tile
            only when all have ended the one before.
        threads: of a CTA.
        smem_bytes: dynamic shared memory of the tile function; the scheduler's comes on top.
        barrier: who meets between two tiles. "none" when the function itself orders its uses of shared memory.
        timeline: keep when and where each tile ran.
        ask_ahead: a dynamic scheduler asks as a tile begins, so that the answer costs nothing but is a claim
            held behind a long tile; otherwise as it ends.
        larger_clusters: the launch may prefer clusters of a multiple of `cluster_size`.
    Raises:
        UnknownName, BadInput: when it is made.
    """

    cluster_size: int = 1
    scheduler: str = "static"
    depth: int = 2
    threads: int = 256
    smem_bytes: int = 0
    barrier: Meeting = "cta"
    timeline: bool = False
    ask_ahead: bool = True
    larger_clusters: bool = False

    def __post_init__(self) -> None:
        for what, given, known in (
            ("scheduler", self.scheduler, tuple(SCHEDULERS)),
            ("barrier", self.barrier, _MEETINGS),
        ):
            if given not in known:
                raise UnknownName(what, given, known)
        for name, number, low, high in (
            ("cluster_size", self.cluster_size, 1, CLUSTER_MAX),
            ("depth", self.depth, 1, DEPTH_MAX),
            ("threads", self.threads, 32, THREADS_MAX),
            ("smem_bytes", self.smem_bytes, 0, 2**31 - 1024),
        ):
            if not low <= number <= high:
                raise BadInput(
                    f"{name} {number} is outside {low} to {high}",
                    given=number,
                    allowed=f"{low} to {high}",
                    nearest=str(min(max(number, low), high)),
                )
        if self.threads % 32:
            raise BadInput(
                f"{self.threads} threads are not whole warps of 32",
                given=self.threads,
                allowed=f"multiples of 32 up to {THREADS_MAX}",
                nearest=str(-(-self.threads // 32) * 32),
            )

    @property
    def is_dynamic(self) -> bool:
        """Tiles are asked for while the kernel runs."""
        return self.scheduler in {"dynamic_atomic", "clc"}

    @property
    def is_persistent(self) -> bool:
        """The grid is the resident clusters, not the tiles."""
        return self.scheduler in {"static", "static_blocked", "dynamic_atomic"}

    @property
    def uses_clusters(self) -> bool:
        """The kernel has cluster instructions."""
        return self.cluster_size > 1 or self.larger_clusters

    @property
    def launch_smem_bytes(self) -> int:
        """Dynamic shared memory of the launch: the tile function's, then answers and barriers."""
        if not self.is_dynamic:
            return -(-self.smem_bytes // 32) * 32
        return -(-self.smem_bytes // 32) * 32 + (ANSWER_STRIDE + 16) * self.depth + 8

    def grid_ctas(self, num_tiles: int, resident_ctas: int, *, preferred_size: int = 0) -> int:
        """CTAs to launch; the grid is a multiple of the largest cluster in it.

        Args:
            resident_ctas: that the chip holds at once in clusters of these sizes.
            preferred_size: CTAs of the larger cluster that the launch prefers, if it does.
        """
        largest = preferred_size or self.cluster_size
        if largest % self.cluster_size or (
            largest > self.cluster_size and not self.larger_clusters
        ):
            raise BadInput(
                f"clusters of {largest} around tiles of {self.cluster_size} CTAs need larger_clusters and a "
                "multiple",
                given=largest,
                allowed=f"multiples of {self.cluster_size}, with larger_clusters",
                nearest=str(-(-largest // self.cluster_size) * self.cluster_size),
            )
        wanted = -(-num_tiles * self.cluster_size // largest) * largest
        return min(wanted, resident_ctas // largest * largest) if self.is_persistent else wanted

    def check_fit(self, device: Device) -> None:
        """Refuse what the device cannot run.

        Raises:
            Unsupported, NoFit, BadInput
        """
        if (self.is_dynamic or self.larger_clusters) and not device.clusters:
            raise Unsupported(
                f"{device.name} has no clusters: the harness takes its tiles by single_tile, static or "
                f"static_blocked there, not {self.scheduler}",
                given=self.scheduler,
                allowed="single_tile, static, static_blocked",
                nearest="static",
            )
        protocol.check_scheduler(self.scheduler, self.cluster_size, self.depth, device)
        check_cluster_size(self.cluster_size, device)
        most = device.smem_per_cta_max_bytes
        if self.launch_smem_bytes > most:
            beside = self.launch_smem_bytes - self.smem_bytes
            raise NoFit(
                f"{self.smem_bytes} bytes of shared memory and {beside} for the scheduler are "
                f"{self.launch_smem_bytes} a CTA; {device.name} allows {most}",
                given=self.smem_bytes,
                allowed=f"0 to {(most - beside) // 32 * 32}",
                nearest=str((most - beside) // 32 * 32),
            )

    def render(self) -> str:
        """The text of config.cuh."""
        values = {
            "int cluster_m": self.cluster_size,
            "int cluster_n": 1,
            "Scheduler scheduler": f"Scheduler::{SCHEDULERS[self.scheduler]}",
            "int schedule_depth": self.depth,
            "int threads": self.threads,
            "int tile_bytes": self.smem_bytes,
            "int smem_bytes": self.launch_smem_bytes,
            "Meeting barrier": f"Meeting::{self.barrier}",
            "bool timeline": str(self.timeline).lower(),
            "bool ask_ahead": str(self.ask_ahead).lower(),
            "bool larger_clusters": str(self.larger_clusters).lower(),
        }
        lines = [f"constexpr {name} = {value};" for name, value in values.items()]
        return "\n".join(
            ['#include "harness.cuh"\n\nnamespace config {', *lines, "}  // namespace config\n"]
        )


def assemble(config: HarnessConfig, tile_source: str | None = None) -> str:
    """One self-contained source: the tile function in the loop of this configuration.

    Args:
        tile_source: CUDA C++ that defines the function of `SIGNATURE`; None takes example_tile.cuh.
    Raises:
        BadInput: no such function, or an include that is not a file of this package.
    """
    source = read_source("example_tile.cuh") if tile_source is None else tile_source
    if not _DEFINITION.search(source):
        near = re.search(r"\bvoid\s+(\w*tile\w*)\s*\(", source)
        raise BadInput(
            "the tile source defines no tilewright_tile" + (f"; it has {near[1]}" if near else ""),
            given=near[1] if near else "",
            allowed=SIGNATURE,
            nearest="tilewright_tile",
        )
    known = sorted(
        file.name
        for file in resources.files("tilewright.kernels").iterdir()
        if file.name.endswith(".cuh") and file.name not in {"config.cuh", "example_tile.cuh"}
    )
    for included in _INCLUDE.findall(source):
        if included not in known:
            raise BadInput(
                f'the tile source includes "{included}", which is no file of this package: paste it in',
                given=included,
                allowed=", ".join(known),
            )
    return inline("harness.cu", config.render(), source)


def pack_arguments(
    num_tiles: int, *, arguments: int = 0, work_counter: int = 0, timeline: int = 0
) -> bytes:
    """`TileArguments` as the kernel reads it.

    Args:
        arguments: what the tile function is handed, a device address as a rule.
        work_counter: device address of two zero words; needed by dynamic_atomic.
        timeline: device address of num_tiles * cluster_size zeroed `TIMELINE` entries; needed with timeline.
    """
    if not 0 <= num_tiles < 2**31:
        raise BadInput(
            f"{num_tiles} tiles; a launch takes 0 to 2^31 - 1",
            given=num_tiles,
            allowed="0 to 2^31 - 1",
        )
    return struct.pack("<3Qi4x", arguments, work_counter, timeline, num_tiles)
