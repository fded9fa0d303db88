"""Experiments: commands that run and compare the chosen option with the next best.

GEMMs use CUTLASS's profiler, which builds every tile, cluster and cta_group from flags. What a device
value is settled by is a micro-benchmark that anybody with the device can write in a page; it is named,
not invented as a command that does not exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.plan_model import Check
from tilewright.problem import Gemm

if TYPE_CHECKING:
    from tilewright.candidates import Candidate
    from tilewright.decide import Decision
    from tilewright.device import Device
    from tilewright.problem import Matmul

_SETTLES: dict[str, str] = {
    "l2_bandwidth_gbps": "tilewright probe",
    "hbm_read_gbps": "tilewright probe",
    "tensor_efficiency": "time a library GEMM of 8192^3 back to back and divide by the tensor peak",
    "cta_turnover_cycles": "run equal spin tiles, one a CTA and persistent, and divide the difference by "
    "the rounds",
    "clc_latency_cycles": "time try_cancel to the completion of its mbarrier phase with clock64",
    "atomic_cycles": "tilewright probe",
    "cluster_sync_cycles": "tilewright probe",
}
_CUTLASS_TYPE = {
    "bf16": "bf16",
    "fp16": "f16",
    "tf32": "tf32",
    "fp8_e4m3": "e4m3",
    "fp8_e5m2": "e5m2",
    "int8": "s8",
    "mxfp8": "e4m3",
    "nvfp4": "e2m1",
}


def settle(name: str, device: Device) -> str:
    """The experiment that settles a device value."""
    what = _SETTLES.get(name, f"measure {name}")
    return f"on {device.product}: {what}"


def gemm_experiments(
    problem: Matmul, decision: Decision, best: dict[Any, Candidate]
) -> list[Check]:
    """Profiler commands for the chosen tiling and for the best of each other class."""
    if not isinstance(problem, Gemm):
        return []
    chosen = decision.chosen
    fastest: dict[str, float] = {}
    for option in (chosen, *decision.rejected):
        fastest.setdefault(option.name, option.us)
    checks = []
    for name, candidate in best.items():
        if name == chosen.name:
            refuted = (
                f"it is not the fastest of these by {max(0.0, _lead(fastest, chosen.name)):.0%}"
            )
        else:
            refuted = (
                f"it is faster than the {chosen.name} kernel (predicted {fastest[name]:.1f} us)"
            )
        checks.append(Check(command=_cutlass(problem, candidate), refuted_if=refuted))
    return checks


def _lead(fastest: dict[str, float], chosen: str) -> float:
    others = [us for name, us in fastest.items() if name != chosen]
    return min(others) / fastest[chosen] - 1 if others else 0.0


def _cutlass(problem: Gemm, candidate: Candidate) -> str:
    tiling = candidate.tiling
    m, n, k = problem.m, problem.n, problem.k
    if candidate.swap_ab:
        m, n = n, m
    tile = tiling.pair_tile or tiling.cta_tile
    x, y, z = tiling.cluster_shape
    kind = _CUTLASS_TYPE[problem.dtype]
    return (
        f"cutlass_profiler --operation=Gemm --m={m} --n={n} --k={k} --batch_count={problem.batch} "
        f"--A={kind}:row --B={kind}:column --accumulator-type={problem.element.accumulator[:1]}32 "
        f"--cta_m={tile.m} --cta_n={tile.n} --cta_k={tile.k} "
        f"--cluster_m={x} --cluster_n={y} --cluster_k={z}"
    ).replace("--accumulator-type=i32", "--accumulator-type=s32")
