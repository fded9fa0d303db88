"""What one tile costs: cycles a stage by resource, and what stands before and after the main loop.

A stage is one step of the operand ring: `cta_tile.k` along K. Each resource alone would need

    mma     2 m n k / (tensor rate * efficiency * utilisation of the instruction's M)
    smem    bytes that the matrix instructions read / shared-memory bandwidth
    l2      bytes that this CTA requests / its share of L2 bandwidth
    hbm     this stage's part of all HBM bytes / its share of HBM bandwidth
    latency (memory latency + l2 + mma) / stages of the ring: what one slot's round trip takes

and together the p-norm of them with p = `INTERFERENCE`: the largest, and a few per cent more where two
are nearly equal. Groups of one launch differ in HBM bytes a stage: a skinny one reads its weights for few
rows. A tile is `stages * cycles`, plus, where nothing hides them, the fill of the ring before
and the epilogue after. A persistent kernel hides the fill (its producer runs ahead) and, with a second
accumulator, the epilogue; one tile a CTA hides neither.

Left out: bank conflicts, drift between CTAs; power beyond the two efficiencies.
A SM's share of L2 does not grow when others idle: an H200 gave 31 to 47 B per cycle to each of 99 to 33
CTAs against 30 to each of 132 (tests/data/h200/memory.csv), so small grids are judged a little slow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tilewright.problem import DTYPES
from tilewright.traffic import l2_bytes_a_stage, smem_read_bytes_a_stage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tilewright.device import Device
    from tilewright.problem import Matmul
    from tilewright.tiling import Tiling
    from tilewright.traffic import Traffic

    Numbers = NDArray[np.float64] | float

INTERFERENCE = 16.0
"""Exponent of the p-norm over resources: 4 % more than the larger of two equal demands, nothing at half.
Kind: assumed, plausible 8 to infinity (a pure roofline). Single-CTA kernels of 128x256x64 bf16 tiles, which
need L2 and tensor cores about equally, are published at 94 to 99 % of either limit (docs/validation.md)."""

HBM_INTERFERENCE = 4.0
"""The same between HBM and the rest: 19 % more at equal demands, 2 % at half. Misses come in bursts, at the
start of every wave. Kind: assumed, plausible 2 to 16; on an H200 it takes the error of the products that HBM
bounds most from 20 to 14 %, and 2 or 3 would serve others worse (docs/validation.md)."""

TCGEN05_M64_UTILISATION = 0.5
"""tcgen05 with M = 64 uses half of the datapath. Source: SemiAnalysis, Dissecting Nvidia Blackwell."""


@dataclass(frozen=True, slots=True)
class StageCycles:
    """Cycles that one stage would need of each resource alone; None where the device value is unknown."""

    mma: float
    smem: float | None
    l2: float | None
    hbm: float | None
    latency: float | None
    exp: float | None = None

    @property
    def demands(self) -> dict[str, float]:
        """The known ones by name, in cycles."""
        named = {
            "mma": self.mma,
            "smem": self.smem,
            "l2": self.l2,
            "hbm": self.hbm,
            "latency": self.latency,
            "exp": self.exp,
        }
        return {name: value for name, value in named.items() if value is not None}

    @property
    def bound(self) -> str:
        """The resource that needs most."""
        demands = self.demands
        return max(demands, key=lambda name: demands[name])

    @property
    def total(self) -> float:
        """All together: the p-norm."""
        return float(self.weighted(1.0))

    def weighted(self, hbm_weights: Numbers) -> NDArray[np.float64]:
        """The p-norm where a stage takes so many times the mean HBM bytes."""
        on_chip = _norm([value for name, value in self.demands.items() if name != "hbm"])
        hbm = (self.hbm or 0.0) * hbm_weights
        both = on_chip**HBM_INTERFERENCE + hbm**HBM_INTERFERENCE
        return np.asarray(both ** (1.0 / HBM_INTERFERENCE))


@dataclass(frozen=True, slots=True)
class TileCost:
    """Cycles of one CTA's tile.

    Attributes:
        stage: cycles a stage by resource.
        fill_cycles: from the first load to the first full stage.
        epilogue_cycles: accumulators to global memory, nothing hidden.
        exposed_epilogue_cycles: what a persistent kernel of this tiling still waits for, a tile.
    """

    stage: StageCycles
    fill_cycles: float
    epilogue_cycles: float
    exposed_epilogue_cycles: float

    def persistent(self, k_steps: Numbers, hbm_weights: Numbers = 1.0) -> NDArray[np.float64]:
        """Tiles of a persistent kernel, fill and epilogue overlapped with their neighbours.

        Args:
            k_steps: stages of each tile.
            hbm_weights: HBM bytes of one of its stages over the mean stage's.
        """
        main = k_steps * self.stage.weighted(hbm_weights)
        hidden = self.epilogue_cycles - self.exposed_epilogue_cycles
        return np.asarray(np.maximum(main, hidden) + self.exposed_epilogue_cycles)

    def alone(self, k_steps: Numbers, hbm_weights: Numbers = 1.0) -> NDArray[np.float64]:
        """Tiles of a kernel that does one a CTA: fill, main loop, epilogue one after another."""
        main = k_steps * self.stage.weighted(hbm_weights)
        return np.asarray(self.fill_cycles + main + self.epilogue_cycles)


def _norm(values: list[float]) -> float:
    """(sum of v^p)^(1/p) over what is on the chip."""
    largest = max(values)
    if largest == 0.0:
        return 0.0
    total = sum((v / largest) ** INTERFERENCE for v in values)
    return float(largest * total ** (1.0 / INTERFERENCE))


def tile_cost(
    problem: Matmul,
    tiling: Tiling,
    traffic: Traffic,
    *,
    active_sms: int,
    ctas_per_sm: int,
    device: Device,
    busy: float = 1.0,
) -> TileCost:
    """Cost of a CTA tile when `active_sms` SMs work on the problem.

    Args:
        active_sms: SMs that hold a CTA; they share HBM among them.
        ctas_per_sm: CTAs that share one SM's tensor cores and memory paths.
        busy: fraction of all SM time of the launch that has a tile, see `tensor_efficiency`.
    """
    stages = _cta_stages(tiling, traffic)
    latency = _load_latency(device)
    stage = StageCycles(
        mma=mma_cycles_a_stage(tiling, device, busy) * ctas_per_sm,
        smem=_per(smem_read_bytes_a_stage(tiling), device.smem_bytes_per_cycle, ctas_per_sm),
        l2=_per(traffic.l2_bytes / stages, l2_bytes_per_cycle(device), ctas_per_sm),
        hbm=_per(traffic.hbm_bytes / stages, hbm_bytes_per_cycle(device, active_sms), ctas_per_sm),
        latency=None,
    )
    if latency is not None:
        # a slot is free again when its load, its transfer and its MMAs are done; a stage waits for its
        # slowest box, so one that misses L2 sets the latency
        cycle = latency + (stage.l2 or 0.0) + stage.mma
        stage = replace(stage, latency=cycle / tiling.num_stages)
    epilogue, exposed = _epilogue(problem, tiling, device, ctas_per_sm)
    return TileCost(
        stage=stage,
        fill_cycles=latency or 0.0,
        epilogue_cycles=epilogue,
        exposed_epilogue_cycles=exposed,
    )


def tensor_efficiency(device: Device, busy: float = 1.0) -> float:
    """Fraction of the tensor rate that an SM sustains while a fraction `busy` of the machine works.

    Power is the chip's: what a full machine sustains, `tensor_efficiency`, is power-limited, and a machine
    that idles in part clocks the rest higher, up to `tensor_efficiency_max`.
    """
    full = device.tensor_efficiency or 1.0
    most = max(device.tensor_efficiency_max or full, full)
    return min(most, full / max(busy, 1e-9))


def mma_cycles_a_stage(tiling: Tiling, device: Device, busy: float = 1.0) -> float:
    """Cycles that one CTA's MMAs of a stage need of its SM's tensor cores; `busy` as there."""
    efficiency = tensor_efficiency(device, busy)
    rate = (device.tensor_rate(tiling.mma.dtype) or 0.0) * efficiency
    if tiling.mma.family == "tcgen05" and tiling.mma.shape.m // tiling.cta_group == 64:
        rate *= TCGEN05_M64_UTILISATION
    return 2.0 * math.prod(tiling.cta_tile) / rate


def least_cycles_a_stage(tiling: Tiling, device: Device) -> float:
    """A floor of a stage's cycles that needs no traffic estimate: MMAs, shared memory, L2 requests."""
    demands = [mma_cycles_a_stage(tiling, device, busy=0.0)]
    if device.smem_bytes_per_cycle is not None:
        demands.append(smem_read_bytes_a_stage(tiling) / device.smem_bytes_per_cycle)
    share = l2_bytes_per_cycle(device)
    if share is not None:
        demands.append(l2_bytes_a_stage(tiling) / share)
    return max(demands)


def _cta_stages(tiling: Tiling, traffic: Traffic) -> float:
    """Stages of all CTAs together, from the bytes that arrive in shared memory."""
    element = traffic.smem_write_bytes
    one = tiling.smem.a_bytes + tiling.smem.b_bytes + _scale_bytes(tiling)
    return max(element / one, 1.0)


def _scale_bytes(tiling: Tiling) -> float:
    """Scale factors of one stage without the padding of their layout."""
    element = DTYPES[tiling.mma.dtype]
    if not element.scale_block:
        return 0.0
    m, n, k = tiling.cta_tile
    return (m + n / tiling.cta_group) * k / element.scale_block * element.scale_bytes


def l2_bytes_per_cycle(device: Device) -> float | None:
    """One SM's share of L2 bandwidth, in bytes an SM cycle."""
    if device.l2_bandwidth_gbps is None:
        return None
    return device.l2_bandwidth_gbps * 1e3 / device.sm_clock_mhz / device.sm_count


def hbm_gbps(device: Device) -> float | None:
    """Sustained read bandwidth where it was measured, otherwise the documented peak."""
    return device.hbm_read_gbps or device.hbm_bandwidth_gbps


def hbm_bytes_per_cycle(device: Device, active_sms: int) -> float | None:
    """One active SM's share of HBM bandwidth, in bytes an SM cycle; at most its share of L2."""
    gbps = hbm_gbps(device)
    if gbps is None:
        return None
    share = gbps * 1e3 / device.sm_clock_mhz / max(active_sms, 1)
    through_l2 = l2_bytes_per_cycle(device)
    return share if through_l2 is None else min(share, through_l2)


def _per(amount: float, rate: float | None, ctas_per_sm: int) -> float | None:
    return None if rate is None else amount / rate * ctas_per_sm


def _load_latency(device: Device) -> float | None:
    return device.hbm_latency_cycles or device.l2_latency_cycles


def _epilogue(
    problem: Matmul, tiling: Tiling, device: Device, ctas_per_sm: int
) -> tuple[float, float]:
    """Cycles from the last MMA to the last byte, and the part a persistent kernel cannot hide.

    Accumulators go to shared memory in the output type at shared-memory speed, from there to L2 at this
    SM's share, and the store is acknowledged a memory latency later.
    """
    elements = tiling.cta_tile.m * tiling.cta_tile.n
    to_smem = _per(elements * problem.out_bytes, device.smem_bytes_per_cycle, ctas_per_sm) or 0.0
    moved = elements * (problem.out_bytes + problem.epilogue_bytes)
    to_l2 = _per(moved, l2_bytes_per_cycle(device), ctas_per_sm) or 0.0
    total = to_smem + to_l2 + (_load_latency(device) or 0.0)
    if tiling.mma.family == "mma.sync":
        return total, total
    if tiling.accumulator_stages >= 2:
        return total, 0.0
    return total, to_smem
