"""Time several launches side by side: one of each a round, L2 flushed before, in turning order.

Clocks and power drift over seconds by more than what is compared, so all candidates share every round; the
median over the rounds is reported and the spread beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from tilewright.run.bindings import call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tilewright.run.gpu import Gpu

WARM_UP_ROUNDS = 3
ROUNDS = 15
FLUSH_L2S = 4
"""Bytes written before each launch, in sizes of L2: what is left of the operands is gone, and the write
takes longer than the host takes to queue the launch."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one candidate, a sample a round."""

    samples_us: tuple[float, ...]

    @property
    def us(self) -> float:
        """The median."""
        return median(self.samples_us)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles over the median."""
        ordered = sorted(self.samples_us)
        quarter = len(ordered) // 4
        return (ordered[-1 - quarter] - ordered[quarter]) / 2 / self.us


def time_side_by_side(
    gpu: Gpu, launches: Mapping[str, Callable[[], None]], rounds: int = ROUNDS
) -> dict[str, Timing]:
    """Time each launch between two events, once a round.

    Args:
        launches: by name; each queues work on the default stream and returns.
    """
    driver = gpu.driver
    flush_bytes = FLUSH_L2S * gpu.attribute("l2_cache_size")
    flushed = gpu.allocate(flush_bytes)
    begin, end = call(driver.cuEventCreate, 0), call(driver.cuEventCreate, 0)
    samples: dict[str, list[float]] = {name: [] for name in launches}
    names = list(launches)
    for turn in range(WARM_UP_ROUNDS + rounds):
        first = turn % len(names) if names else 0
        for name in names[first:] + names[:first]:
            gpu.fill_later(flushed, flush_bytes, turn)
            call(driver.cuEventRecord, begin, 0)
            launches[name]()
            call(driver.cuEventRecord, end, 0)
            call(driver.cuEventSynchronize, end)
            if turn >= WARM_UP_ROUNDS:
                samples[name].append(float(call(driver.cuEventElapsedTime, begin, end)) * 1e3)
    for event in (begin, end):
        call(driver.cuEventDestroy, event)
    gpu.free(flushed)
    return {name: Timing(tuple(each)) for name, each in samples.items()}
