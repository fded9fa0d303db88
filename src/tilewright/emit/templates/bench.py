"""What the plan predicted against what this GPU measures: every path and every option, and the library.

    python bench.py [--samples 9] [--gpu 0]

Times are medians of launches back to back in a CUDA graph, operands warm in L2 where they fit. The plan is
refuted, and the exit code 1, when an option that it did not take is faster by more than the model's error.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, NamedTuple

import numpy as np
from arrays import STORAGE, DeviceArray, LaunchError, encode
from driver import Cuda
from launcher import Gemm
from paths import read_constants

CONSTANTS = read_constants()
PROBLEM = CONSTANTS["problem"]
ERROR = 0.04
"""Of a predicted ratio between two kernels: the model's, from published ratios."""


class Row(NamedTuple):
    """A kernel's times in microseconds; None where it does not run."""

    name: str
    predicted: float
    us: float | None
    note: str


def random_operand(
    cuda: Any, shape: tuple[int, ...], dtype: str, rng: np.random.Generator
) -> DeviceArray:
    """Uniform values; a large array repeats a block, which costs the GPU the same power."""
    count = int(np.prod(shape))
    block = encode(rng.uniform(-1, 1, min(count, 1 << 22)).astype(np.float32), dtype)
    values = np.resize(block, count).reshape(shape).astype(STORAGE[dtype], copy=False)
    return DeviceArray.of(cuda, values, dtype)


def operands(cuda: Any) -> tuple[dict[str, DeviceArray], dict[str, Any]]:
    """A and B of the plan's problem, and what else a call takes."""
    m, n, k, groups = (PROBLEM[name] for name in ("m", "n", "k", "groups"))
    ragged, rng = PROBLEM["ragged"], np.random.default_rng(0)
    batched = ragged == "none" and groups > 1
    shapes = {
        "a": (groups, m, k) if batched else (m, k),
        "b": (groups, n, k) if batched or ragged == "m" else (n, k),
    }
    d = (groups, m, n) if batched or ragged == "k" else (m, n)
    arrays = {
        name: random_operand(cuda, shape, PROBLEM["dtype"], rng) for name, shape in shapes.items()
    }
    extras: dict[str, Any] = {} if ragged == "none" else {"counts": PROBLEM["counts"]}
    if CONSTANTS["has_c"]:
        extras |= {"c": random_operand(cuda, d, PROBLEM["out_dtype"], rng), "beta": 1.0}
    if CONSTANTS["has_bias"]:
        extras["bias"] = random_operand(cuda, (n,), "fp32", rng)
    return arrays, extras


def library_us(cuda: Any, samples: int) -> tuple[str, float] | None:
    """The product by torch, where it is here and has one call for it."""
    try:
        import torch  # noqa: PLC0415  (not needed otherwise)
    except ImportError:
        return None
    m, n, k, groups = (PROBLEM[name] for name in ("m", "n", "k", "groups"))
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
    kind = kinds.get(PROBLEM["dtype"])
    if kind is None or PROBLEM["ragged"] != "none":
        return None
    lead = (groups,) if groups > 1 else ()
    a = torch.rand(*lead, m, k, device="cuda", dtype=kind) * 2 - 1
    b = torch.rand(*lead, n, k, device="cuda", dtype=kind) * 2 - 1
    d = torch.empty(*lead, m, n, device="cuda", dtype=kind)

    def launch(stream: int) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
            torch.matmul(a, b.transpose(-1, -2), out=d)

    launch(torch.cuda.current_stream().cuda_stream)
    return f"torch {torch.__version__} matmul", cuda.time_us(launch, samples=samples)


def measure(cuda: Any, samples: int) -> list[Row]:
    """Each path and option that runs here, on the same operands."""
    arrays, extras = operands(cuda)
    rows = []
    for entry in [*CONSTANTS["paths"], *CONSTANTS["candidates"]]:
        name, predicted = str(entry["name"]), float(entry["predicted_us"])
        try:
            gemm = Gemm(path=name, cuda=cuda)
            launch = gemm.bind(arrays["a"], arrays["b"], **extras)
            us = cuda.time_us(launch, samples=samples)
        except LaunchError as error:
            rows.append(Row(name, predicted, None, str(error).splitlines()[0]))
        else:
            rows.append(Row(name, predicted, us, f"predicted for {entry['planned_for']}"))
    return rows


def line(name: str, predicted: float | None, us: float | None, note: str = "") -> str:
    """A row of the table."""
    before = "" if predicted is None else f"{predicted:.1f}"
    seen, rate = ("-", "-") if us is None else (f"{us:.1f}", f"{PROBLEM['flops'] / us / 1e6:.0f}")
    return f"{name:<28} {before:>12} {seen:>12} {rate:>8}  {note}".rstrip()


def verdict(rows: list[Row]) -> tuple[str, bool]:
    """Whether the plan's own path is the fastest of its options, and whether that refutes the plan."""
    chosen = rows[0]
    options = [row for row in rows[len(CONSTANTS["paths"]) :] if row.us is not None]
    if chosen.us is None or not options:
        return "no verdict: the plan's own path or its options do not run here", False
    best = min(options, key=lambda row: row.us or 0.0)
    lead = chosen.us / (best.us or chosen.us) - 1
    if lead <= ERROR:
        return (
            f"holds: {chosen.name} is the fastest, or as fast as {best.name} within {ERROR:.0%}",
            False,
        )
    return (
        f"refuted: {best.name} is faster than {chosen.name} by {lead:.1%}, over {ERROR:.0%}",
        True,
    )


def main() -> int:
    """Print the table; 1 when the plan is refuted, 2 when nothing runs here."""
    parser = argparse.ArgumentParser(description="predicted against measured")
    parser.add_argument("--samples", type=int, default=9)
    parser.add_argument("--gpu", type=int, default=0)
    given = parser.parse_args()
    try:
        cuda = Cuda(given.gpu)
        rows = measure(cuda, given.samples)
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(
        f"{cuda.name}, driver of CUDA {cuda.driver_version}; planned for {CONSTANTS['planned_for']}"
    )
    print(f"{'kernel':<28} {'predicted us':>12} {'measured us':>12} {'TFLOP/s':>8}")
    for row in rows:
        print(line(*row))
    library = library_us(cuda, given.samples)
    if library is not None:
        print(line(library[0], None, library[1]))
    says, refuted = verdict(rows)
    print(says)
    return int(refuted)


if __name__ == "__main__":
    sys.exit(main())
