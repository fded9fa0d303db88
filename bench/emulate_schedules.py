"""Every kind of emitted GEMM under hundreds of schedules each, over all cores: minutes on a large machine, hours on a small one.

    python bench/emulate_schedules.py [--schedules 200] [--first-seed 0] [--processes N] [--only pair] [--write FILE.md]

What is run, and on which problems, is in tests/support/emulated_gemms.py; the seed of a schedule decides the order of
all agents and, of kernels with cluster launch control, the resident clusters and the requests declined early.
Exit code 1 if any schedule found anything or gave a wrong result; the row then says the seed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from emulated_gemms import CONFIGS, Schedules, kernel_text, problems

CHUNK = 10
"""Schedules that a process takes at a time."""


class Share(NamedTuple):
    """Some seeds of one problem."""

    name: str
    problem: int
    seeds: range


class Result(NamedTuple):
    """What became of them."""

    share: Share
    failures: list[tuple[str, int, str]]
    seconds: float
    instructions: int


def work(share: Share) -> Result:
    """Run a share."""
    begin = time.process_time()
    problem = problems(share.name)[share.problem]
    schedules = Schedules(problem)
    failures = [
        (problem.what, seed, text) for seed in share.seeds if (text := schedules.failure(seed))
    ]
    instructions = sum(outcome.instructions for outcome in schedules.gpu.outcomes)
    return Result(share, failures, time.process_time() - begin, instructions)


def shares(names: list[str], seeds: range) -> list[Share]:
    """All the work, the problems' first seeds first."""
    return [
        Share(name, index, seeds[start : start + CHUNK])
        for start in range(0, len(seeds), CHUNK)
        for name in names
        for index in range(len(problems(name)))
    ]


def table(results: list[Result]) -> list[str]:
    """Markdown: a configuration a row."""
    by_name: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_name[result.share.name].append(result)
    lines = [
        "| kernel | problems | schedules of each | warp instructions | wrong or found |",
        "| --- | --- | ---: | ---: | --- |",
    ]
    for name, of_name in by_name.items():
        counts: dict[int, int] = defaultdict(int)
        for result in of_name:
            counts[result.share.problem] += len(result.share.seeds)
        what = ", ".join(problem.what for problem in problems(name))
        wrong = [f"{what}, seed {seed}" for r in of_name for what, seed, _ in r.failures]
        instructions = sum(result.instructions for result in of_name)
        lines.append(
            f"| {name} | {what} | {min(counts.values())} | {instructions / 1e6:.1f} M | {'; '.join(wrong) or 'none'} |"
        )
    return lines


def main() -> int:
    """Run, print, write."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--schedules", type=int, default=200)
    options.add_argument("--first-seed", type=int, default=0)
    options.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options.add_argument("--only", default="", help="kernels whose name has this in it")
    options.add_argument("--deadline-s", type=float, default=float("inf"), help="stop by then")
    options.add_argument("--write", type=Path, help="the table as Markdown")
    given = options.parse_args()
    names = [name for name in CONFIGS if given.only in name]
    begin = time.monotonic()
    for name in names:  # once, before the processes part
        for problem in problems(name):
            kernel_text(problem.config)
    todo = shares(names, range(given.first_seed, given.first_seed + given.schedules))
    results: list[Result] = []
    with multiprocessing.get_context("fork").Pool(given.processes) as pool:
        for result in pool.imap_unordered(work, todo):
            results.append(result)
            for what, seed, text in result.failures:
                print(f"{result.share.name}, {what}, seed {seed}: {text}", flush=True)
            if time.monotonic() - begin > given.deadline_s:
                print(f"stopped with {len(results)} of {len(todo)} shares done", flush=True)
                pool.terminate()
                break
    wall_s, cpu_s = time.monotonic() - begin, sum(result.seconds for result in results)
    count = sum(len(result.share.seeds) for result in results)
    order = {name: place for place, name in enumerate(names)}
    results.sort(key=lambda result: (order[result.share.name], result.share.problem))
    lines = table(results)
    print("\n".join(lines))
    print(
        f"{count} schedules in {wall_s:.0f} s by {given.processes} processes, {cpu_s:.0f} s of processor time"
    )
    if given.write is not None:
        given.write.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(any(result.failures for result in results))


if __name__ == "__main__":
    sys.exit(main())
