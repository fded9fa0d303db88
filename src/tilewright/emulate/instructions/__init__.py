"""What each instruction does: one decode function an opcode, found by the longest name that fits.

    @instruction("mbarrier.init", visible=True)
    def mbarrier_init(op: Decoder) -> Run:
        address, count = op.address(op.operands[0]), op.source(op.operands[1], U32)

        def run(warp: Warp, where: Where) -> Outcome:
            ...

        return run

The decode function runs once for each instruction of the kernel; what it returns runs each time, with the
`Warp` (registers in `warp.rows[kind][row]`, `warp.cta`, `warp.group`) and `where`, the lanes that take part:
True for all 32 or 32 bools, never none. It returns None to go on, the number of a step to jump there, a `Wait`
to block, or `GONE` when its group of lanes is no more.

A name's dots are the opcode's words in order, so "cp.async.bulk.tensor" wins over "cp.async.bulk" for what
begins so; words that vary in place (`.cta_group::2`) are asked of `op.has(...)`.

`visible=True`: others can tell when it happens (memory that is shared, barriers, copies). The scheduler may
switch to someone else before such an instruction and nowhere else. `.aligned` instructions are met by the
whole warp before they run; `mask=i` says that operand i is a member mask, whose lanes are met. A module of
instructions is named in `MODULES`.

**What runs by itself.** A handler never does an asynchronous access itself. It checks its operands, makes an
event for each access that can be told apart (`new_event(warp, lane, op, "tensor copy")`: what the issuer knew
is in it) and starts an operation whose parts the scheduler lets happen one by one, at any time:

    event = new_event(warp, lane, op.op, "tensor copy")
    parts = [lambda: data.append(accesses.async_read(event, segment, at)), write_first_half, write_rest_and_signal]
    Operation(warp.machine, event, parts, touches=[cta]).start()

`touches` are the CTAs that may not leave before it is over. Memory goes through `machine.accesses`:
`load` and `store` for lanes, `async_read(event, segment, at)` and `async_write(event, segment, at, data)` for
operations, `at` a slice or an array of byte offsets in the segment (`cta.shared`, or that of a `Place`).
An operation that must wait for another is started from that one's `after_done`; of its own order (mma after
mma) the later event says so in `follows`. An event is over once it has a mark that others can come to know:

    complete_at(event, cta.shared, offset, nbytes)   bytes on an mbarrier (cluster.py): marks the event itself
    barrier.arrive(1, op, who, clock)                an arrival; `event.marks.append((barrier.key, phase))` before it
    CopyGroups, GroupCopy                            groups that the issuer waits for (copies.py)
    warp.clocks.learn(where, key, time, (SEEN,))     what a wait instruction makes its lanes know

`warp.clocks.raise_level(where, SEEN, BEFORE)` and `(where, BEFORE, TENSOR)` are the tcgen05 fences; a phase's
mark is at BEFORE already, since a commit implies the first. State of an instruction family lies in
`cta.extras` and `machine.extras`; `machine.exit_checks` are called with each CTA that leaves,
`machine.end_checks` at the end. What the kernel does wrong: `machine.stop(rule, message, op.op, other)` ends
the schedule, `machine.report(...)` goes on. What is not modelled: `raise op.unknown("…")` while decoding.
An argument object with `as_kernel_argument(buffers) -> bytes` (a tensor map) is packed into its parameter.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilewright.emulate.decoder import Decoder
    from tilewright.emulate.registers import Where
    from tilewright.emulate.warp import Warp
    from tilewright.ptx.nodes import Opcode

GONE = "gone"
"""Returned by an instruction after which its group of lanes does not go on."""

Outcome: TypeAlias = Any
"""None, the number of the next step, a `Wait`, or GONE."""

Run: TypeAlias = "Callable[[Warp, Where], Outcome]"
Decode: TypeAlias = "Callable[[Decoder], Run]"

Meeting: TypeAlias = "int | str"
"""Lanes that meet before an instruction: "warp", or the row of a member mask."""

MODULES = (
    "integer",
    "bits",
    "floating",
    "special_functions",
    "convert",
    "moves",
    "control",
    "loads",
    "atomics",
    "lanes",
    "fences",
    "barriers",
    "mbarriers",
    "cluster",
    "copies",
    "launch_control",
    "tma",
    "mma",
    "wgmma",
    "tcgen05",
    "tcgen05_mma",
)
"""Modules of this package that register instructions."""


@dataclass(frozen=True)
class Known:
    """An instruction that can be emulated."""

    decode: Decode
    visible: bool
    mask: int | None


_TABLE: dict[tuple[str, ...], Known] = {}


def instruction(
    *names: str, visible: bool = False, mask: int | None = None
) -> Callable[[Decode], Decode]:
    """Register a decode function for every opcode that begins with one of `names`."""

    def register(decode: Decode) -> Decode:
        for name in names:
            _TABLE[tuple(name.split("."))] = Known(decode, visible, mask)
        return decode

    return register


@cache
def load_instructions() -> frozenset[str]:
    """Import every module of instructions; the names that they register."""
    for module in MODULES:
        importlib.import_module(f"{__name__}.{module}")
    return frozenset(".".join(words) for words in _TABLE)


def find_instruction(opcode: Opcode) -> Known | None:
    """The longest registered name that the opcode begins with."""
    load_instructions()
    words = (opcode.root, *opcode.modifiers)
    for length in range(len(words), 0, -1):
        found = _TABLE.get(words[:length])
        if found is not None:
            return found
    return None
