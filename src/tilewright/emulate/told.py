"""Faults of the pure tensor modules as what the machine reports: with the instruction and who executed it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from tilewright.emulate.errors import NotModelled
from tilewright.emulate.faults import Fault, NotEmulated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tilewright.emulate.decoder import Decoder
    from tilewright.emulate.machine import Machine
    from tilewright.ptx.flow import Op

Form = TypeVar("Form")


def decoded(op: Decoder, form: Callable[[], Form]) -> Form:
    """What an opcode's words mean.

    Raises:
        NotModelled: they mean what is not emulated.
    """
    try:
        return form()
    except NotEmulated as missing:
        raise NotModelled(missing.what, op.span) from None


@contextmanager
def told(machine: Machine, op: Op, who: str) -> Iterator[None]:
    """While an instruction runs: a fault ends the schedule as a finding at it.

    Raises:
        Violation, NotModelled
    """
    try:
        yield
    except Fault as fault:
        machine.stop(fault.rule, f"{who}: {fault}", op)
    except NotEmulated as missing:
        raise NotModelled(missing.what, op.span) from None
