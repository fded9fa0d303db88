"""What bounds a kernel: four candidates, the evidence for and against each, and what would decide.

The predicted time is split into parts that add up: the main loop (under the name of the resource that
bounds a stage), what stands before and after it (latency), and slots that idle (scheduling). The class
is the largest part. The roofline floor is separate: peak tensor rate and compulsory bytes, nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tilewright.cost import StageCycles
    from tilewright.device import Device
    from tilewright.work import Outcome, Work

BoundClass = Literal["compute", "bandwidth", "latency", "scheduling"]
_CLASS_OF_RESOURCE: dict[str, BoundClass] = {
    "mma": "compute",
    "exp": "compute",
    "smem": "bandwidth",
    "l2": "bandwidth",
    "hbm": "bandwidth",
    "latency": "latency",
}
_DECIDES: dict[BoundClass, str] = {
    "compute": "ncu --section SpeedOfLight --section ComputeWorkloadAnalysis: tensor pipe utilisation "
    "above 80 % confirms it, below 50 % refutes it",
    "bandwidth": "ncu --section MemoryWorkloadAnalysis: DRAM or L2 throughput above 80 % of its peak "
    "confirms it, below 50 % refutes it",
    "latency": "time the kernel at twice K: a time that grows by less than 1.6 confirms it",
    "scheduling": "record %globaltimer at each tile's start and end: idle SM time above a tenth of the "
    "makespan confirms it",
}


@dataclass(frozen=True, slots=True)
class BoundCandidate:
    """One of the four, with its share of the predicted time; None where it cannot be known."""

    bound: BoundClass
    share: float | None
    evidence_for: str
    evidence_against: str
    decides: str


@dataclass(frozen=True, slots=True)
class Roofline:
    """The floor that no kernel passes.

    Attributes:
        compute_us: FLOP at the documented tensor peak.
        memory_us: compulsory bytes at the documented HBM peak; None where it is unknown.
        flops, compulsory_bytes: of the problem.
    """

    compute_us: float
    memory_us: float | None
    flops: float
    compulsory_bytes: float

    @property
    def floor_us(self) -> float:
        """The larger of the two."""
        return max(self.compute_us, self.memory_us or 0.0)


def find_roofline(flops: float, compulsory_bytes: float, dtype: str, device: Device) -> Roofline:
    """Peak rates only: no efficiency, no reuse lost."""
    peak = (device.tensor_rate(dtype) or 0.0) * device.sm_count * device.sm_clock_mhz
    gbps = device.hbm_bandwidth_gbps
    return Roofline(
        compute_us=flops / peak if peak else 0.0,
        memory_us=None if gbps is None else compulsory_bytes / gbps / 1e3,
        flops=flops,
        compulsory_bytes=compulsory_bytes,
    )


def find_bound(
    stage: StageCycles, work: Work, main_cycles: float, outcome: Outcome
) -> list[BoundCandidate]:
    """The four candidates, the largest share first.

    Args:
        main_cycles: main-loop cycles of all tiles together, without fill and epilogue.
    """
    total = max(outcome.kernel_us, 1e-9)
    workers = max(outcome.metrics.workers, 1)
    main = min(total, main_cycles / workers / work.clock_mhz)
    spent = float(_costs(work, outcome).sum()) / workers / work.clock_mhz
    around = max(0.0, spent - main) + max(0.0, outcome.kernel_us - outcome.metrics.makespan_us)
    idle = max(0.0, total - main - around)
    shares: dict[BoundClass, float] = {
        "compute": 0.0,
        "bandwidth": 0.0,
        "latency": around / total,
        "scheduling": idle / total,
    }
    shares[_CLASS_OF_RESOURCE[stage.bound]] += main / total
    found = [
        BoundCandidate(
            name, share, *_evidence(name, stage, work, outcome, around, idle), _DECIDES[name]
        )
        for name, share in shares.items()
    ]
    return sorted(found, key=lambda candidate: -(candidate.share or 0.0))


def _costs(work: Work, outcome: Outcome) -> NDArray[np.float64]:
    return work.alone_cycles if outcome.scheduler == "single_tile" else work.persistent_cycles


def _evidence(
    name: BoundClass,
    stage: StageCycles,
    work: Work,
    outcome: Outcome,
    around_us: float,
    idle_us: float,
) -> tuple[str, str]:
    """Numbers for and against one candidate."""
    demands = stage.demands
    total = outcome.kernel_us
    if name == "compute":
        compute = {k: v for k, v in demands.items() if k in {"mma", "exp"}}
        memory = {k: v for k, v in demands.items() if k in {"smem", "l2", "hbm"}}
        return _demand("needs", compute), _demand("but", memory)
    if name == "bandwidth":
        memory = {k: v for k, v in demands.items() if k in {"smem", "l2", "hbm"}}
        return _demand("needs", memory), _demand("but", {"mma": demands["mma"]})
    if name == "latency":
        waiting = demands.get("latency")
        ring = "unknown" if waiting is None else f"{waiting:.0f} cycles a stage"
        return (
            f"{around_us:.2f} us of {total:.2f} us are fill and epilogue that nothing hides",
            f"the ring hides memory latency: {ring} against {stage.total:.0f} of the slowest resource",
        )
    m = outcome.metrics
    idle = (
        f"{work.num_tiles} tiles on {work.slots} slots: slots idle for {idle_us:.2f} us of {total:.2f} us, "
        f"the tail alone is {m.tail_us:.2f} us"
    )
    return idle, f"slots are busy for {m.efficiency:.1%} of the makespan"


def _demand(verb: str, demands: dict[str, float]) -> str:
    if not demands:
        return "unknown: the device file lacks these rates"
    parts = ", ".join(f"{name} {cycles:.0f}" for name, cycles in demands.items())
    return f"a stage {verb} {parts} cycles" if verb == "needs" else f"the other side needs {parts}"
