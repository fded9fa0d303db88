"""Time to a plan of 8192^3 bf16 on b200: as a call and as a process.

    python bench/bench_plan.py

Limits that the project set itself: 100 ms a call, 0.7 s a process. The process is also held against the
shortest one that loads the same libraries (numpy, pydantic, typer), run in turn with it.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time

from tilewright import Gemm, load, make_plan

CALL_LIMIT_MS = 100.0
PROCESS_LIMIT_S = 0.7
PLAN = ["plan", "gemm", "--m", "8192", "--n", "8192", "--k", "8192", "--device", "b200", "--json"]
TILEWRIGHT = [sys.executable, "-c", "from tilewright.cli import main; main()", *PLAN]
LIBRARIES = [sys.executable, "-c", "import numpy, pydantic, typer"]


def call_ms(repeats: int = 15) -> list[float]:
    """Milliseconds of each `make_plan`, after one to warm up."""
    problem, device = Gemm(m=8192, n=8192, k=8192), load("b200")
    make_plan(problem, device)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        make_plan(problem, device)
        times.append((time.perf_counter() - start) * 1e3)
    return times


def process_s(command: list[str]) -> float:
    """Wall-clock seconds of a process."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    """Print both, their limits and the ratio to loading the libraries alone."""
    calls = call_ms()
    plans, libraries = [], []
    for _ in range(7):
        plans.append(process_s(TILEWRIGHT))
        libraries.append(process_s(LIBRARIES))
    call, process = statistics.median(calls), statistics.median(plans)
    floor = statistics.median(libraries)
    print(f"machine: {platform.processor() or platform.machine()}, {os.cpu_count()} cores")
    print(f"python {platform.python_version()}")
    print(
        f"call:    {call:6.1f} ms (min {min(calls):.1f}, max {max(calls):.1f}); "
        f"{call / CALL_LIMIT_MS:.2f} of the limit of {CALL_LIMIT_MS:.0f} ms"
    )
    print(
        f"process: {process:6.2f} s  (min {min(plans):.2f}, max {max(plans):.2f}); "
        f"{process / PROCESS_LIMIT_S:.2f} of the limit of {PROCESS_LIMIT_S} s"
    )
    print(
        f"         {process / floor:.2f} x a process that only imports its libraries ({floor:.2f} s)"
    )


if __name__ == "__main__":
    main()
