"""Run every micro-kernel on the GPU at hand and write what came out: python tests/gpu/record_micro.py FILE.json

A worker process runs the cases one after the other; one that fails or hangs takes the worker with it and is
recorded as an error, and the next worker goes on behind it. With --emulated the emulator stands for the GPU.
The file is what tests/null/test_emulate_h200.py replays.
"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import numpy as np

from micro.cases import ALL
from micro.record import SEED, packed
from micro.run import run_case
from tilewright.run.emulated import EmulatedGpu
from tilewright.run.gpu import Gpu

CASE_S, START_S = 12.0, 60.0
"""Seconds that a case may take, and a worker until its first answer."""

NAMES = list(ALL)


def say(text: str, where: TextIO = sys.stdout) -> None:
    """A line, now."""
    print(text, file=where, flush=True)


def work(first: int, *, emulated: bool) -> None:
    """Run cases from `first` on, a line of JSON each; end at an error, for the context may be lost."""
    with EmulatedGpu("sm_90a", resident=16, races=False) if emulated else Gpu() as device:
        about = {"gpu": device.name, "driver": getattr(device, "driver_version", "none")}
        say(json.dumps(about))
        for name in NAMES[first:]:
            case = ALL[name]
            row: dict[str, Any] = {
                "case": name,
                "digest": case.digest,
                "inputs": case.inputs_digest(SEED),
            }
            try:
                runs = [run_case(device, case, SEED) for _ in range(1 if emulated else 2)]
            except Exception as error:  # noqa: BLE001  (whatever it is, the other cases are still wanted)
                row["error"] = f"{type(error).__name__}: {error}"[:300]
                say(json.dumps(row))
                return
            row |= packed(runs[0]) | {"repeats": all(np.array_equal(runs[0], r) for r in runs)}
            say(json.dumps(row))


class Worker:
    """A process that runs cases, and a thread that reads what it prints."""

    def __init__(self, first: int, *, emulated: bool) -> None:
        words = [sys.executable, __file__, "--worker", str(first), *(["--emulated"] * emulated)]
        self.process = subprocess.Popen(  # noqa: S603
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.errors: list[str] = []
        threading.Thread(target=self._read_errors, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors += self.process.stderr.readlines()

    def answer(self, timeout_s: float) -> dict[str, Any] | str:
        """The next line, or why there is none."""
        try:
            line = self.lines.get(timeout=timeout_s)
        except queue.Empty:
            return f"no answer in {timeout_s:g} s"
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        return f"the worker ended with {self.process.wait()}: {''.join(self.errors)[-300:]}"

    def stop(self) -> None:
        """End it, whatever it does; a process that the driver holds back is left to the driver."""
        self.process.kill()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return


def record(*, emulated: bool, deadline_s: float) -> dict[str, Any]:
    """All cases, by as many workers as it takes."""
    begin = time.monotonic()
    result: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "seed": SEED,
        "cases": {},
    }
    rows: dict[str, Any] = result["cases"]
    idle = 0  # workers in a row that did not start
    while len(rows) < len(NAMES) and time.monotonic() - begin < deadline_s and idle < 3:
        worker = Worker(len(rows), emulated=emulated)
        about = worker.answer(START_S)
        idle = idle + 1 if isinstance(about, str) else 0
        if isinstance(about, str):
            say(about, sys.stderr)
        else:
            result |= about
        while not idle and len(rows) < len(NAMES) and time.monotonic() - begin < deadline_s:
            row = worker.answer(CASE_S)
            name = NAMES[len(rows)]
            if isinstance(row, str):
                row = {"case": name, "digest": ALL[name].digest, "error": row}
            assert row.pop("case") == name
            rows[name] = row
            if "error" in row:
                say(f"{name}: {row['error']}", sys.stderr)
                break
        worker.stop()
    return result


def main() -> None:
    """Record, or work for a record."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("file", nargs="?", type=Path)
    options.add_argument("--worker", type=int, help="run cases from this one on and print them")
    options.add_argument("--emulated", action="store_true", help="the emulator instead of a GPU")
    options.add_argument(
        "--deadline-s", type=float, default=240.0, help="write what there is by then"
    )
    given = options.parse_args()
    if given.worker is not None:
        work(given.worker, emulated=given.emulated)
        return
    if given.file is None:
        options.error("the file to write is missing")
    begin = time.monotonic()
    result = record(emulated=given.emulated, deadline_s=given.deadline_s)
    given.file.parent.mkdir(parents=True, exist_ok=True)
    given.file.write_text(json.dumps(result, indent=0) + "\n", encoding="utf-8")
    good = sum("data" in row for row in result["cases"].values())
    unsteady = [name for name, row in result["cases"].items() if not row.get("repeats", True)]
    say(
        f"micro: {good} of {len(NAMES)} recorded on {result.get('gpu')} in {time.monotonic() - begin:.0f} s"
    )
    say(
        f"{given.file.stat().st_size / 1e6:.2f} MB; not the same twice: {', '.join(unsteady) or 'none'}"
    )


if __name__ == "__main__":
    main()
