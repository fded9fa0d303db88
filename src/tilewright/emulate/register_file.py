"""The registers that setmaxnreg moves between the warps of a CTA: a pool per CTA, empty at launch.

The count at launch is known if `.maxnreg` says it, or `.maxntid` (`.reqntid`) with `.minnctapersm`: the file shared
out among that many threads. Without, ptxas ignores the instruction, and nobody waits. Left out: that registers which
.inc has added hold nothing yet.

Source: PTX ISA, setmaxnreg; 64 K registers an SM: CUDA C++ Programming Guide, technical specifications.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.emulate.clocks import SEEN
from tilewright.emulate.warp import Condition, Wait
from tilewright.ptx.flow import constant

if TYPE_CHECKING:
    from tilewright.emulate.cluster import Cta
    from tilewright.emulate.program import Program
    from tilewright.emulate.warp import Warp
    from tilewright.ptx.flow import Op

REGISTERS_OF_SM = 65_536
REGISTERS_LEAST, REGISTERS_MOST = 24, 256
"""Of a thread, as they are allocated."""

STEP = 8
WARPS_OF_WARPGROUP = 4
WARPGROUP = 32 * WARPS_OF_WARPGROUP


@dataclass(frozen=True, slots=True)
class Change:
    """One setmaxnreg that a warp has executed."""

    op: Op
    raises: bool
    registers: int

    def __str__(self) -> str:
        return f"setmaxnreg.{'inc' if self.raises else 'dec'} to {self.registers}"


@dataclass(eq=False, slots=True)
class Request:
    """A warp at setmaxnreg.inc."""

    warp: int
    wants: int
    granted: bool = False


class RegisterFile(Condition):
    """Registers of one CTA, counted a thread; the 32 threads of a warp have the same.

    Attributes:
        held: by each warp; None where nobody knows.
        free: given back and not yet taken.
        changes: what each warp has executed, in order.
    """

    def __init__(self, cta: Cta) -> None:
        super().__init__()
        self.cta = cta
        at_launch = registers_at_launch(cta.machine.program, cta.machine.threads)
        self.is_known = at_launch is not None
        self.held: list[int | None] = [at_launch] * len(cta.warps)
        self.free = 0
        self.changes: list[list[Change]] = [[] for _ in cta.warps]
        self.requests: list[Request] = []

    def change(self, warp: Warp, change: Change) -> Wait | None:
        """A warp executes setmaxnreg: why it has to wait, if it has to."""
        self._check_direction(warp, change)
        self._check_warpgroup(warp, change)
        self.changes[warp.index].append(change)
        warp.clocks.learn(
            warp.group.where, self._key(warp.index), len(self.changes[warp.index]), (SEEN,)
        )
        had = self.held[warp.index]
        if not self.is_known or had is None or not change.raises:
            self.held[warp.index] = change.registers
            self.free += max(0, (had or 0) - change.registers)
            self._settle()
            return None
        request = Request(warp.index, change.registers - had)
        self.requests.append(request)
        self._settle()

        def story() -> str:
            return f"{change}: wants {request.wants} more a thread, {self.free} are free"

        return Wait(self, lambda: request.granted, story, lambda: None)

    def _settle(self) -> None:
        for request in list(self.requests):
            if request.wants <= self.free:
                self.free -= request.wants
                self.held[request.warp] = (self.held[request.warp] or 0) + request.wants
                request.granted = True
                self.requests.remove(request)
        self.cta.machine.note(("registers", self.cta.who), writes=True)
        self.cta.machine.changed()
        self.cta.machine.wake(self)

    def _key(self, warp: int) -> tuple[object, ...]:
        return ("setmaxnreg", self.cta.cluster.index, self.cta.rank, warp)

    # --- the contract -----------------------------------------------------------------------------

    def _check_direction(self, warp: Warp, change: Change) -> None:
        if not REGISTERS_LEAST <= change.registers <= REGISTERS_MOST or change.registers % STEP:
            allowed = f"{REGISTERS_LEAST} to {REGISTERS_MOST} in steps of {STEP}"
            self.cta.machine.stop("REG-01", f"{warp.who}: {change}; it takes {allowed}", change.op)
        had = self.held[warp.index]
        if (
            had is not None
            and change.registers != had
            and change.raises == (change.registers < had)
        ):
            way = "up" if change.raises else "down"
            self._report(
                f"{warp.who}: {change} from {had} registers, it goes {way} only", change.op
            )

    def _check_warpgroup(self, warp: Warp, change: Change) -> None:
        """All warps execute the same one, and have met since the one before."""
        place = len(self.changes[warp.index])
        for other in self._warpgroup(warp.index):
            theirs = self.changes[other]
            if len(theirs) > place and str(theirs[place]) != str(change):
                self._report(
                    f"{warp.who}: {change}, but {theirs[place]} in warp {other} of the same warpgroup",
                    change.op,
                    theirs[place].op,
                )
            if place and not warp.clocks.knows_mark(0, self._key(other), place):
                self._report(
                    f"{warp.who}: {change} before it has met warp {other} of its warpgroup since the last one",
                    change.op,
                )

    def check_exit(self) -> None:
        """All warps of a warpgroup have executed as many."""
        for warp, changes in enumerate(self.changes):
            short = [w for w in self._warpgroup(warp) if len(self.changes[w]) < len(changes)]
            if short:
                last = changes[len(self.changes[short[0]])]
                self._report(
                    f"{self.cta.who}: {last} in warp {warp}, never in warp {short[0]} of the same warpgroup",
                    last.op,
                )

    def _warpgroup(self, warp: int) -> list[int]:
        """The other warps of a warpgroup."""
        first = warp // WARPS_OF_WARPGROUP * WARPS_OF_WARPGROUP
        members = range(first, min(first + WARPS_OF_WARPGROUP, len(self.changes)))
        return [each for each in members if each != warp]

    def _report(self, message: str, op: Op, other: Op | None = None) -> None:
        self.cta.machine.report("REG-02", message, op, other, "the other one" if other else "")


def registers_at_launch(program: Program, threads: int) -> int | None:
    """Registers a thread that the kernel begins with; None where ptxas cannot tell and ignores setmaxnreg.

    The most that fit, but no more than the largest setmaxnreg.inc asks for. Source: ptxas 13
    (tests/toolkit/test_registers_at_launch.py).
    """
    directive = program.function.directive
    given, ctas = directive(".maxnreg"), directive(".minnctapersm")
    if given is not None:
        most = constant(given.arguments[0]) or REGISTERS_MOST
    elif ctas is not None and (directive(".reqntid") or directive(".maxntid")):
        whole = -(-threads // WARPGROUP) * WARPGROUP * (constant(ctas.arguments[0]) or 1)
        most = min(REGISTERS_OF_SM // whole // STEP * STEP, REGISTERS_MOST)
    else:
        return None
    ops = (step.op for step in program.steps if step.op.is_a("setmaxnreg"))
    raised = [constant(op.node.operands[0]) or 0 for op in ops if op.has("inc")]
    return min(most, max(raised, default=most))


def register_file(cta: Cta) -> RegisterFile:
    """The CTA's, made at its first setmaxnreg."""
    found = cta.extras.get("register file")
    if not isinstance(found, RegisterFile):
        found = cta.extras["register file"] = RegisterFile(cta)
        if "register files checked at exit" not in cta.machine.extras:
            cta.machine.extras["register files checked at exit"] = True
            cta.machine.exit_checks.append(_check_exit)
    return found


def _check_exit(cta: Cta) -> None:
    found = cta.extras.get("register file")
    if isinstance(found, RegisterFile):
        found.check_exit()
