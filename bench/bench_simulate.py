"""How long the simulator takes for a million tiles, beside SimPy and a bare heap on the same list.

    python bench/bench_simulate.py [--tiles 1000000] [--slots 132] [--repeat 3]

SimPy runs the dynamic schedule: a process a worker, a timeout a tile. Its makespan must equal ours. Peak
memory is that of a fresh process that runs one scheduler, list and interpreter included.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import time
from heapq import heapify, heapreplace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import simpy

from tilewright.sim import SCHEDULERS, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


def tile_costs(count: int) -> np.ndarray:
    """Lognormal costs around 22,000 cycles, always the same ones."""
    rng = np.random.default_rng(2026)
    return np.rint(rng.lognormal(10.0, 0.5, count)).astype(np.int64)


def run_simpy(costs: list[int], slots: int) -> int:
    """The dynamic schedule in SimPy; its makespan."""
    environment = simpy.Environment()
    tiles = iter(costs)

    def worker() -> Generator[Any, Any, None]:
        for cost in tiles:
            yield environment.timeout(cost)

    for _ in range(slots):
        environment.process(worker())
    environment.run()
    return int(environment.now)


def run_heap(costs: list[int], slots: int) -> int:
    """The dynamic schedule with a heap of end times and nothing recorded; its makespan."""
    free = [0] * slots
    heapify(free)
    for cost in costs:
        heapreplace(free, free[0] + cost)
    return max(free)


def seconds(call: Callable[[], object], repeat: int) -> float:
    """The quickest of some runs."""
    best = float("inf")
    for _ in range(repeat):
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    return best


def peak_mb(scheduler: str, tiles: int, slots: int) -> float:
    """Peak resident memory of a fresh process that runs one scheduler."""
    command = [sys.executable, __file__, "--tiles", str(tiles), "--slots", str(slots)]
    done = subprocess.run(
        [*command, "--only", scheduler], check=True, capture_output=True, text=True
    )
    return float(done.stdout)


def own_peak_mb() -> float:
    """Peak resident memory of this process."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def machine() -> str:
    """Processor and interpreter, for the record."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(encoding="utf-8").splitlines()
        name = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), name)
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}"


def compare(tiles: int, slots: int, repeat: int) -> None:
    """Print the table."""
    costs = tile_costs(tiles)
    as_list: list[int] = costs.tolist()
    print(f"{tiles} tiles on {slots} slots; {machine()}; simpy {simpy.__version__}")
    assert run_simpy(as_list, slots) == simulate("dynamic_atomic", costs, slots).makespan_cycles
    reference = seconds(lambda: run_simpy(as_list, slots), repeat)
    bare = seconds(lambda: run_heap(as_list, slots), repeat)
    print(f"{'SimPy':16}{reference:7.2f} s")
    print(f"{'bare heap':16}{bare:7.2f} s   {reference / bare:5.1f} x SimPy's speed")
    for scheduler in SCHEDULERS:
        took = seconds(lambda name=scheduler: simulate(name, costs, slots), repeat)  # type: ignore[misc]
        print(
            f"{scheduler:16}{took:7.2f} s   {reference / took:5.1f} x SimPy's speed"
            f"   peak {peak_mb(scheduler, tiles, slots):4.0f} MB"
        )


def main() -> None:
    """Read the arguments; with `--only`, run one scheduler and print the peak memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiles", type=int, default=1_000_000)
    parser.add_argument("--slots", type=int, default=132)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", choices=SCHEDULERS)
    given = parser.parse_args()
    if given.only:
        simulate(given.only, tile_costs(given.tiles), given.slots)
        print(own_peak_mb())
    else:
        compare(given.tiles, given.slots, given.repeat)


if __name__ == "__main__":
    main()
