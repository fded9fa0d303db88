"""A draft: all that a plan needs to know about one kind of problem, before it is written out.

`matmul`, `attention_plan` and `tiles_plan` each make one; `plan` turns any of them into a `Plan`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilewright.candidates import NOT_BUSY, Busy
from tilewright.timeline import of_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tilewright.bound import BoundCandidate, Roofline
    from tilewright.decide import Decision, Flip
    from tilewright.device import Device
    from tilewright.evidence import Evidence
    from tilewright.mma import Shape
    from tilewright.plan_model import Check, OptionRow
    from tilewright.protocol import Protocol
    from tilewright.residency import CtaResources, Residency
    from tilewright.sim import Scheduler
    from tilewright.tile_map import TileMap
    from tilewright.timeline import Timeline
    from tilewright.work import Outcome, Work


@dataclass(frozen=True, slots=True)
class Options:
    """What the user fixes.

    Attributes:
        cluster_shape, cta_group, tile: only tilings that have exactly this; `tile` is (m, n) of a CTA.
        busy: SMs that foreign kernels hold or a budget takes away.
        allow_swap: a transposed product may be planned.
        clc_depth: requests that a CLC worker keeps ahead.
        scheduler: plan for this one instead of choosing.
    """

    cluster_shape: tuple[int, int, int] | None = None
    cta_group: int | None = None
    tile: tuple[int, int] | None = None
    busy: Busy = NOT_BUSY
    allow_swap: bool = True
    clc_depth: int = 1
    scheduler: Scheduler | None = None


@dataclass(frozen=True)
class Draft:
    """One problem on one device, decided.

    Attributes:
        work: tiles and slots of the chosen option.
        main_cycles: main-loop cycles of all tiles.
        resources: of one CTA of the chosen kernel.
        tile_map, traffic: tables ready to print.
        tiles: the map itself, where the problem is a matrix product.
        used_facts: device facts used -> for what.
        experiments: commands that compare the chosen option with the next best.
    """

    decision: Decision
    work: Work
    main_cycles: float
    resources: CtaResources
    residency: Residency
    cluster_shape: tuple[int, int, int]
    cta_group: int
    tile: Shape | None
    pair_tile: Shape | None
    num_stages: int | None
    raster: str | None
    swap_ab: bool
    bound: list[BoundCandidate]
    roofline: Roofline | None
    flips: list[Flip]
    options: list[OptionRow]
    traffic: dict[str, Any]
    tile_map: dict[str, Any]
    protocol: Protocol
    used_facts: Mapping[str, str]
    derived: list[Evidence]
    experiments: list[Check]
    notes: list[str] = field(default_factory=list)
    tiles: TileMap | None = None

    def outcomes(self, schedulers: Iterable[Scheduler]) -> dict[Scheduler, Outcome]:
        """Schedulers on the chosen tiles as given; those that the decision simulated are not run again."""
        options = (self.decision.chosen, *self.decision.rejected)
        known = {
            option.scheduler: option.outcome
            for option in options
            if option.name == self.decision.chosen.name and option.order == "given"
        }
        return {name: known.get(name) or self.work.run(name) for name in schedulers}

    def timelines(
        self, schedulers: Iterable[Scheduler], device: Device, most_tiles: int = 50_000
    ) -> list[Timeline]:
        """Runs to draw: the chosen one first, then the others; beyond `most_tiles` the chosen one alone."""
        chosen = self.decision.chosen
        names = [chosen.scheduler]
        if self.work.num_tiles <= most_tiles:
            names += [name for name in schedulers if name != chosen.scheduler]
        size, each = self.residency.cluster_size, self.residency.ctas_per_sm
        found = []
        for name in names:
            order = chosen.order if name == chosen.scheduler else "given"
            run = self.work.run(name, order=order, record=True).run
            found.append(
                of_run(
                    run,
                    device.sm_clock_mhz,
                    response_cycles=self.work.overheads.response_cycles(name),
                    ctas_per_slot=size,
                    sms_per_slot=size if each == 1 else None,
                    first_tile=self.work.num_tiles - len(run.costs_cycles),
                )
            )
        return found
