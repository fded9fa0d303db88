"""Run the PTX of a kernel on a CPU, under any order that the hardware may choose.

    from tilewright import emulate
    emulate.launch("kernel.ptx", grid=8, cluster=2, args=[a, b, n])     # numpy arrays, in place

How it is built, from the text of a kernel to a finding:

    program, layout, decoder   PTX decoded once: registers become rows of banks, each instruction a function
    instructions/              what each opcode does; its docstring is the convention for adding one
    warp, execute              32 lanes as numpy vectors; groups of lanes that part and meet
    machine, schedule          who can act, and the strategy that picks; deadlock when nobody can
    cluster, named_barrier     CTAs, their start and end; bar and barrier.cluster
    mbarrier, operations,      phases; what runs by itself and in parts: copies, arrivals, answers
      copy_groups
    memory, access             segments, windows, bounds
    clocks, events, shadow,    happens-before over threads and proxies; who touched which byte; which rule
      races
    numbers, swizzle,          tensor cores and TMA as functions of arrays, with no machine: formats and rounding,
      tensor_map, descriptors,   boxes of tensor maps, operands in shared memory, products, tensor memory
      fragments, mma_sync,
      wgmma, tmem, tcgen05
    tensor_memory,             a CTA's tensor memory in the machine: cells, allocations, what is ordered
      tensor_pairs
    launch, report             arguments; outcomes

Everything is deterministic: a seed gives the same run again. `audit` reads the same tree and knows nothing of
this package, nor does this package of it.
"""

from __future__ import annotations

from tilewright.emulate.errors import NotModelled
from tilewright.emulate.launch import Launch, launch, prepare
from tilewright.emulate.machine import Options
from tilewright.emulate.memory import Buffers
from tilewright.emulate.report import CheckFailed, Outcome, Report

__all__ = [
    "Buffers",
    "CheckFailed",
    "Launch",
    "NotModelled",
    "Options",
    "Outcome",
    "Report",
    "launch",
    "prepare",
]
