"""Kernels of others that want slots: busy ones and ones with priority."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tilewright.sim.model import Disturbance


class Hold(NamedTuple):
    """A slot in foreign hands from `start_cycles` to `end_cycles` (None: for good)."""

    slot: int
    start_cycles: int
    end_cycles: int | None
    has_priority: bool


@dataclass(slots=True)
class Foreign:
    """One foreign kernel, and how many slots it still waits for."""

    arrival_cycles: int
    wanted: int
    has_priority: bool
    until_cycles: int | None = None
    duration_cycles: int = 0
    holds: list[Hold] = field(default_factory=list)

    def is_over(self, now: int) -> bool:
        """True when there is no reason left to take a slot."""
        return not self.wanted or (self.until_cycles is not None and now >= self.until_cycles)

    def hold(self, slot: int, now: int) -> Hold:
        """Take `slot` from `now` on."""
        end = now + self.duration_cycles if self.has_priority else self.until_cycles
        self.wanted -= 1
        held = Hold(slot, now, end, self.has_priority)
        self.holds.append(held)
        return held


def foreign_kernels(disturbance: Disturbance) -> list[Foreign]:
    """The foreign kernels of a disturbance by arrival; at equal times those with priority first."""
    kernels = [
        Foreign(p.at_cycles, p.slots, has_priority=True, duration_cycles=p.duration_cycles)
        for p in disturbance.priority
    ]
    kernels += [
        Foreign(b.start_cycles, b.slots, has_priority=False, until_cycles=b.end_cycles)
        for b in disturbance.busy
    ]
    return sorted(kernels, key=lambda k: (k.arrival_cycles, not k.has_priority))
