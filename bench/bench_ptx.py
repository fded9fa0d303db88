"""How fast PTX is read: megabytes a second for tokens alone, for tokens and tree, and for printing.

The text is the repository's own PTX files, repeated to the size asked for; the best of several runs is printed, in
processor time, since other work on the machine only ever adds to it.

    python bench/bench_ptx.py [--megabytes 4] [--runs 7] [FILE.ptx …]
"""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.ptx import parse_ptx, print_ptx
from tilewright.ptx.source import Source
from tilewright.ptx.tokens import tokenize

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = Path(__file__).parents[1] / "tests" / "data" / "ptx"


def best_seconds(work: Callable[[], object], runs: int) -> float:
    """The shortest processor time of `runs` runs."""
    times = []
    for _ in range(runs):
        start = time.process_time()
        result = work()
        times.append(time.process_time() - start)
        del result
    return min(times)


def processor_name() -> str:
    """What the machine calls its processor."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("files", nargs="*", type=Path)
    options.add_argument("--megabytes", type=float, default=4.0)
    options.add_argument("--runs", type=int, default=7)
    given = options.parse_args()
    files = given.files or sorted(DATA.glob("*.ptx"))
    text = "\n".join(path.read_text() for path in files)
    text *= max(1, round(given.megabytes * 1e6 / len(text)))
    module = parse_ptx(text)
    instructions = sum(1 for function in module.functions for _ in function.instructions())
    megabytes = len(text) / 1e6
    print(f"{processor_name()}, Python {platform.python_version()}")
    print(f"{megabytes:.1f} MB (1e6 B) of {len(files)} files, {instructions} instructions")
    measured: dict[str, Callable[[], object]] = {
        "tokens": lambda: tokenize(Source("bench", text), whole_lines=True),
        "tokens and tree": lambda: parse_ptx(text),
        "printing": lambda: print_ptx(module),
    }
    for name, work in measured.items():
        seconds = best_seconds(work, given.runs)
        print(f"{name:16} {megabytes / seconds:6.1f} MB/s  {seconds:.3f} s")


if __name__ == "__main__":
    main()
