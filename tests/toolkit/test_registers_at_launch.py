"""The register count that a kernel with setmaxnreg begins with: what the emulator takes is what ptxas takes."""

from __future__ import annotations

import re

import pytest

from tilewright.emulate.program import Program
from tilewright.emulate.register_file import registers_at_launch
from tilewright.ptx import parse_ptx
from tilewright.run.compiler import compile_source

pytestmark = pytest.mark.toolkit

SOURCE = """
extern "C" __global__ void {bounds} k(int* out) {{
    int value = out[threadIdx.x];
    if (threadIdx.x < 128) {{ {first} out[0] = value; }}
    else if (threadIdx.x < 256) {{ {second} out[1] = value; }}
    else {{ {third} out[2] = value; }}
}}
"""
BOUNDS = (
    "__launch_bounds__(128, 1)", "__launch_bounds__(256, 1)", "__launch_bounds__(320, 1)", "__launch_bounds__(384, 1)",
    "__launch_bounds__(384, 2)", "__launch_bounds__(640, 1)", "__launch_bounds__(384)", "__maxnreg__(128)", "",
)  # fmt: skip
CHANGES = (
    ("dec 40", "inc 232", ""), ("dec 40", "inc 232", "inc 200"), ("dec 40", "inc 72", "inc 64"), ("dec 40", "", ""),
)  # fmt: skip


def statement(change: str) -> str:
    way, _, count = change.partition(" ")
    return f'asm volatile("setmaxnreg.{way}.sync.aligned.u32 {count};");' if change else ""


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("changes", CHANGES, ids=", ".join)
def test_ptxas_takes_as_many(bounds: str, changes: tuple[str, str, str]) -> None:
    first, second, third = map(statement, changes)
    source = SOURCE.format(bounds=bounds, first=first, second=second, third=third)
    compiled = compile_source(source, "k.cu", "sm_90a")
    said = re.search(r"Used (\d+) registers", compiled.log)
    assert said is not None
    numbers = re.findall(r"\d+", bounds)
    threads = int(numbers[0]) if "launch" in bounds else 384
    known = registers_at_launch(Program(parse_ptx(compiled.ptx)), threads)
    if known is None:
        assert "unable to determine register count at entry" in compiled.log
    else:
        assert min(known, 255) == int(
            said[1]
        )  # a thread can name 255 of the 256 that are allocated
