"""How long an audit takes as files grow: processor seconds, KB a second, and the exponent of growth.

    python bench/bench_audit.py [--megabytes 5] [FILE.ptx …]     # files: audited one by one, and no growth measured

Two ways to grow: a module of more and more kernels (the catalogue's pair GEMM with cluster launch control, renamed), and
one kernel, to a tenth of that size, whose ring is unrolled further and further: hundreds of waits on one barrier, more than
any compiler unrolls, since rules hold each against the others. The exponent
is the slope of log seconds over log bytes between the last two sizes: 1 is time in proportion. Memory is the process's
peak.
"""

from __future__ import annotations

import argparse
import math
import platform
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench_ptx import processor_name

from tilewright.audit import audit_module
from tilewright.ptx import parse_ptx

if TYPE_CHECKING:
    from collections.abc import Callable

GEMM = Path(__file__).parents[1] / "tests" / "data" / "ptx" / "gemm_clc2_full.ptx"
DOUBLINGS = 4


def many_kernels(size: int) -> str:
    """The pair GEMM again and again, each copy under a name of its own."""
    text = GEMM.read_text(encoding="utf-8")
    head, _, body = text.partition(".visible .entry ")
    name = body.partition("(")[0]
    copies = max(1, size // len(text))
    return head + "".join(
        f".visible .entry {body}".replace(name, f"{name}_{i}") for i in range(copies)
    )


STEP = """
@%p1 bra PRODUCE{i};
W{i}:
	mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p2, [full+{at}], {full};
	@!%p2 bra W{i};
	ld.shared.v4.f32 {{%f1, %f2, %f3, %f4}}, [tiles+{slot}];
{sums}	mbarrier.arrive.release.cta.shared::cta.b64 _, [empty+{at}];
	bra.uni NEXT{i};
PRODUCE{i}:
	@%p4 bra NEXT{i};
E{i}:
	mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p2, [empty+{at}], {empty};
	@!%p2 bra E{i};
	mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 _, [full+{at}], 1024;
	cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [tiles+{slot}], [%rd1+{far}], 1024, [full+{at}];
NEXT{i}:
"""
SLOTS, SUMS = 4, 24


def one_kernel(size: int) -> str:
    """A producer warp and a consumer warp over a ring of four slots, every step written out."""
    sums = "".join(
        f"	fma.rn.f32 %f{5 + j % 8}, %f{1 + j % 4}, %f{1 + j % 3}, %f{5 + j % 8};\n"
        for j in range(SUMS)
    )
    lines = [
        ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry unrolled(.param .u64 a)\n.reqntid 64\n{\n",
        "	.reg .pred %p<8>;\n	.reg .b32 %r<8>;\n	.reg .f32 %f<16>;\n	.reg .b64 %rd<4>;\n",
        "	.shared .align 128 .b8 tiles[4096];\n	.shared .align 8 .b64 full[4];\n	.shared .align 8 .b64 empty[4];\n",
        "	ld.param.u64 %rd1, [a];\n	mov.u32 %r1, %tid.x;\n	setp.ge.u32 %p1, %r1, 32;\n	setp.ne.u32 %p3, %r1, 0;\n",
        "	setp.ne.u32 %p4, %r1, 32;\n	@%p3 bra READY;\n",
        *(f"	mbarrier.init.shared::cta.b64 [full+{8 * s}], 1;\n	mbarrier.init.shared::cta.b64 [empty+{8 * s}], 32;\n" for s in range(SLOTS)),
        "	fence.mbarrier_init.release.cluster;\nREADY:\n	bar.sync 0;\n",
    ]  # fmt: skip
    length, i = 0, 0
    while length < size:
        turn, slot = divmod(i, SLOTS)
        step = STEP.format(
            i=i, at=8 * slot, slot=1024 * slot, far=1024 * i, full=turn % 2, empty=(turn + 1) % 2, sums=sums
        )  # fmt: skip
        lines.append(step)
        length, i = length + len(step), i + 1
    return "".join([*lines, "	ret;\n}\n"])


def seconds_of(text: str) -> float:
    """Processor time to parse and audit."""
    start = time.process_time()
    report = audit_module(parse_ptx(text))
    assert not report.errors, report.errors[0]
    return time.process_time() - start


def peak_mb() -> float:
    """Peak memory of this process in MB (1e6 B)."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def grow(title: str, make: Callable[[int], str], largest: int) -> None:
    """Print the times of a text of each size, and how they grow."""
    print(title)
    before: tuple[int, float] | None = None
    for doubling in range(DOUBLINGS, -1, -1):
        text = make(largest >> doubling)
        seconds = seconds_of(text)
        slope = ""
        if before is not None:
            slope = (
                f"exponent {math.log(seconds / before[1]) / math.log(len(text) / before[0]):.2f}"
            )
        print(
            f"{len(text) / 1e3:8.0f} KB {seconds:7.2f} s {len(text) / 1e3 / seconds:6.0f} KB/s {peak_mb():6.0f} MB  {slope}"
        )
        before = len(text), seconds


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("files", nargs="*", type=Path)
    options.add_argument("--megabytes", type=float, default=5.0)
    given = options.parse_args()
    print(f"{processor_name()}, Python {platform.python_version()}; KB is 1e3 B")
    for path in given.files:
        text = path.read_text(encoding="utf-8")
        print(
            f"{path.name}: {len(text) / 1e3:.0f} KB, {seconds_of(text):.2f} s, {peak_mb():.0f} MB"
        )
    if not given.files:
        largest = round(given.megabytes * 1e6)
        grow("more kernels", many_kernels, largest)
        grow("one kernel, unrolled further", one_kernel, largest // 10)


if __name__ == "__main__":
    main()
