"""How many problems a second a sweep plans, and what a second process brings.

    python bench/bench_sweep.py            # 400 plans with one process and with two
    python bench/bench_sweep.py --all      # also every problem of bench/models.json on two devices, with two

The problems are the layers of the thirteen public models in models.json at several numbers of tokens.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from pathlib import Path

from tilewright.device import load
from tilewright.sweep import sweep
from tilewright.sweep.rows import Row, read_rows

TOKENS = (
    1,
    2,
    4,
    8,
    16,
    32,
    48,
    64,
    96,
    128,
    192,
    256,
    384,
    512,
    768,
    1024,
    1536,
    2048,
    3072,
    4096,
    6144,
    8192,
    16384,
)
PREFILL = ({"seqlens": [512] * 8}, {"seqlens": [8192]}, {"seqlens": [100, 4000, 700, 2500]})
DECODE = ({"sequences": 16, "context": 4096}, {"sequences": 128, "context": 2048}, {"sequences": 256, "context": 8192})  # fmt: skip


def model_rows(folder: Path) -> list[Row]:
    """The layers of every model at every number of tokens, about two thousand problems."""
    tables = json.loads((Path(__file__).parent / "models.json").read_text(encoding="utf-8"))
    for table in tables:
        table.update(tokens=TOKENS, prefill=PREFILL, decode=DECODE)
    file = folder / "models.json"
    file.write_text(json.dumps(tables), encoding="utf-8")
    return read_rows(file)


def timed(rows: list[Row], names: tuple[str, ...], processes: int, out: Path) -> tuple[float, int]:
    """Plans a second, process starts included, and rows that failed."""
    start = time.perf_counter()
    done = sweep(rows, [load(name) for name in names], out, processes=processes)
    return done.asked / (time.perf_counter() - start), len(done.failed)


def main() -> None:
    """Print the rates."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        rows = model_rows(folder)
        some = random.Random(0).sample(rows, 200)  # noqa: S311  (a sample, no secret)
        rates = []
        for processes in (1, 2):
            rate, failed = timed(some, ("b200", "h200"), processes, folder / f"{processes}.csv")
            rates.append(rate)
            print(
                f"{processes} process{'es' * (processes > 1)}: {rate:.1f} plans/s, {failed} failed"
            )
        print(f"gain of the second process: {rates[1] / rates[0]:.2f}x")
        if "--all" in sys.argv:
            start = time.perf_counter()
            rate, failed = timed(rows, ("b200", "h200"), 2, folder / "all.csv")
            took = time.perf_counter() - start
            print(
                f"{len(rows)} problems on 2 devices: {took:.0f} s, {rate:.1f} plans/s, {failed} failed"
            )


if __name__ == "__main__":
    main()
