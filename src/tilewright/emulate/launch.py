"""Launch a kernel on numpy arrays: `launch(ptx, grid=…, block=…, args=[…])`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.emulate.coverage import coverage_of
from tilewright.emulate.errors import Violation
from tilewright.emulate.launch_arguments import pack
from tilewright.emulate.machine import Machine, Options, Triple
from tilewright.emulate.memory import Buffers
from tilewright.emulate.program import Program, choose_kernel
from tilewright.emulate.report import CheckFailed, Outcome, Report
from tilewright.emulate.schedule import strategy_for
from tilewright.errors import BadInput
from tilewright.ptx import parse_ptx, parse_ptx_file
from tilewright.ptx.flow import constant
from tilewright.ptx.nodes import Module

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tilewright.emulate.schedule import Strategy
    from tilewright.ptx.nodes import Function


@dataclass(frozen=True)
class Launch:
    """One kernel with a grid and arguments, ready to be run again and again.

    Attributes:
        program: the kernel, decoded.
        grid, cluster, block: CTAs of the grid, CTAs of a cluster, threads of a CTA, along x, y, z.
        arguments: bytes of the parameters.
        buffers: the arrays that they point at.
        smem_bytes: dynamic shared memory.
    """

    program: Program
    grid: Triple
    cluster: Triple
    block: Triple
    arguments: bytes
    buffers: Buffers
    smem_bytes: int = 0

    def strategy(self, seed: int) -> Strategy:
        """The strategy that a seed stands for."""
        ranks, threads = math.prod(self.cluster), math.prod(self.block)
        return strategy_for(seed, ranks, -(-threads // 32))

    def run(self, strategy: Strategy, options: Options | None = None) -> Outcome:
        """One schedule, on the arrays as they are."""
        chosen = options or Options()
        machine = Machine(
            self.program,
            self.grid,
            self.cluster,
            self.block,
            self.arguments,
            self.buffers.fresh(),
            self.smem_bytes,
            strategy,
            chosen,
        )
        ended = True
        with np.errstate(all="ignore"):
            try:
                machine.run()
            except Violation as broken:
                ended = False
                if broken.finding not in machine.findings:
                    machine.findings.append(broken.finding)
        machine.history.end = machine.executed
        return Outcome(
            seed=strategy.seed,
            picks=tuple(strategy.picks),
            findings=tuple(machine.findings),
            ended=ended,
            instructions=machine.executed,
            steps=machine.steps,
            coverage=coverage_of(
                self.program.coverage, self.program.block_starts, machine.covered, machine.waits
            ),
            trace=machine.story,
            history=machine.history,
            resident=chosen.resident,
            decline_at=tuple(sorted(chosen.decline_at)),
        )


def prepare(
    module: Module | str | Path,
    *,
    kernel: str | None = None,
    grid: int | Sequence[int],
    block: int | Sequence[int] | None = None,
    cluster: int | Sequence[int] | None = None,
    args: Sequence[Any] = (),
    smem_bytes: int = 0,
    buffers: Buffers | None = None,
) -> Launch:
    """Decode a kernel and lay out its arguments.

    Args:
        module: parsed PTX, its text, or the path of a .ptx file.
        kernel: name of the entry; needed when there are several.
        grid: CTAs along x, y, z.
        block: threads of a CTA; what the kernel requires (.reqntid, else .maxntid) unless given.
        cluster: CTAs of a cluster; what the kernel requires (.reqnctapercluster) unless given.
        args: one a parameter: an array (its address is passed), a number, or bytes for a struct.
        buffers: arrays that structs point at, from `Buffers.address_of`.
    Raises:
        BadInput: a launch that CUDA would refuse.
        NotModelled: an instruction that the emulator does not have.
    """
    tree = _parsed(module)
    function = choose_kernel(tree, kernel)
    shape = _shape(function, "cluster", cluster, (".reqnctapercluster",), default=(1, 1, 1))
    threads = _shape(function, "block", block, (".reqntid", ".maxntid"))
    ctas = _triple("grid", grid)
    _check_shapes(function, ctas, shape, threads)
    program = Program(tree, kernel)
    memory = buffers if buffers is not None else Buffers()
    arguments = pack(program.layout, args, memory)
    return Launch(program, ctas, shape, threads, arguments, memory, smem_bytes)


def launch(
    module: Module | str | Path,
    *,
    kernel: str | None = None,
    grid: int | Sequence[int],
    block: int | Sequence[int] | None = None,
    cluster: int | Sequence[int] | None = None,
    args: Sequence[Any] = (),
    smem_bytes: int = 0,
    buffers: Buffers | None = None,
    resident: int | None = None,
    seed: int = 0,
    decline_at: Iterable[int] = (),
    races: bool = True,
    check: bool = True,
) -> Report:
    """Run a kernel once on numpy arrays, in place.

    Args:
        resident: clusters that run at once; the rest is pending. None: all.
        seed: of the schedule. 0 lets everybody act in turn.
        decline_at: requests that cluster launch control declines early, counted from 0.
        races: hold accesses against one another; without it a run is faster.
        check: raise when something is found.
    Raises:
        CheckFailed: something was found and `check` is set.
        BadInput, NotModelled: as `prepare`.
    """
    ready = prepare(
        module,
        kernel=kernel,
        grid=grid,
        block=block,
        cluster=cluster,
        args=args,
        smem_bytes=smem_bytes,
        buffers=buffers,
    )
    options = Options(resident=resident, decline_at=frozenset(decline_at), races=races)
    outcome = ready.run(ready.strategy(seed), options)
    report = Report(ready.program.name, [outcome])
    if check and report.verdict == "fail":
        raise CheckFailed(report)
    return report


def _parsed(module: Module | str | Path) -> Module:
    if isinstance(module, Module):
        return module
    if isinstance(module, Path) or "\n" not in module:
        return parse_ptx_file(Path(module))
    return parse_ptx(module)


def _triple(name: str, given: int | Sequence[int]) -> Triple:
    values = [given] if isinstance(given, int) else list(given)
    if not 1 <= len(values) <= 3 or any(v < 1 for v in values):
        raise BadInput(
            f"{name} {given} is not one to three positive numbers", given=given, allowed="(x, y, z)"
        )
    x, y, z = ([*values, 1, 1])[:3]
    return x, y, z


def _shape(
    function: Function,
    name: str,
    given: int | Sequence[int] | None,
    directives: tuple[str, ...],
    default: Triple | None = None,
) -> Triple:
    """What the caller says, else what the kernel does."""
    said = next((d for d in map(function.directive, directives) if d is not None), None)
    required = None
    if said is not None:
        values = [constant(a) or 1 for a in said.arguments]
        required = _triple(name, values)
    if given is None:
        found = required or default
        if found is None:
            raise BadInput(f"{function.name} does not say its {name}; pass {name}=")
        return found
    wanted = _triple(name, given)
    if (
        required is not None
        and said is not None
        and said.name.startswith(".req")
        and wanted != required
    ):
        raise BadInput(
            f"{name} {wanted} is not the {said.name} {required} of {function.name}",
            given=wanted,
            allowed=str(required),
            nearest=str(required),
        )
    return wanted


def _check_shapes(function: Function, grid: Triple, cluster: Triple, block: Triple) -> None:
    size = cluster[0] * cluster[1] * cluster[2]
    if size > 16:
        raise BadInput(f"a cluster of {size} CTAs", given=cluster, allowed="up to 16")
    if block[0] * block[1] * block[2] > 1024:
        raise BadInput(f"a block of {block} threads", given=block, allowed="up to 1024")
    for axis, ctas, each in zip("xyz", grid, cluster, strict=True):
        if ctas % each:
            raise BadInput(
                f"grid.{axis} {ctas} of {function.name} is not a multiple of the cluster's {each}",
                given=ctas,
                allowed=f"multiples of {each}",
                nearest=str(-(-ctas // each) * each),
            )
