"""Decisions: which of the options, by how much, and what would flip it.

An option is a class of tiling under a scheduler. The simplest is one CTA, one tile a CTA. Anything more
must gain: an option is preferred to a simpler one only if it is faster by `WORTH`; the answer is the
simplest option within `WORTH` of the fastest. Where a step's gain is inside the model's error, both
sides of it are named as a pair to measure. Where a device value with a plausible range would turn a
step's gain into nothing, the value, the range and the experiment that settles it are named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from tilewright.candidates import WORTH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tilewright.sim import Order, Scheduler
    from tilewright.work import Outcome, Work

TILING_ERROR = 0.04
"""Error of a predicted ratio between two kernels. Kind: measured: the median over 104 published ratios is about 4 %
(docs/validation.md)."""

SCHEDULER_ERROR = 0.03
"""Error of a predicted ratio between two schedulers of the same tiles. Kind: measured on an H200, where the order
of schedulers that differ by more was right (docs/validation.md)."""

Answer = Literal[
    "leave-it-alone", "cluster-for-reuse", "pair-mma", "persistent-static", "persistent-dynamic"
]

_EFFORT: dict[str, int] = {
    "single_tile": 0,
    "static": 1,
    "static_blocked": 1,
    "dynamic_atomic": 2,
    "clc": 2,
}
_SORTING = 2
JITTERS = (0.02, 0.05, 0.1, 0.2)


@dataclass(frozen=True)
class Option:
    """A tiling class under a scheduler.

    Attributes:
        name: "single", "cluster", "pair" or what the kernel is called.
        cluster_size: CTAs a cluster.
        rank: how involved the tiling is; 0 is the simplest.
    """

    name: str
    cluster_size: int
    rank: int
    outcome: Outcome

    @property
    def us(self) -> float:
        """Predicted kernel time."""
        return self.outcome.kernel_us

    @property
    def scheduler(self) -> Scheduler:
        """Its scheduler."""
        return self.outcome.scheduler

    @property
    def order(self) -> Order:
        """In which tiles are handed out."""
        return self.outcome.order

    @property
    def schedule(self) -> str:
        """Scheduler and order in words."""
        return self.scheduler if self.order == "given" else f"{self.scheduler}, {self.order}"

    @property
    def effort(self) -> int:
        """How involved the schedule is. Sorting needs costs known beforehand: more than asking."""
        return _EFFORT[self.scheduler] + (_SORTING if self.order != "given" else 0)

    @property
    def simplicity(self) -> tuple[int, int, int]:
        """Smaller is simpler: cluster size before scheduler; a pair before a multicast pair of CTAs.

        At equal cluster size the pair is preferred: it stages half of B a CTA, which leaves room for
        more stages and halves what shared memory takes in.
        """
        return self.cluster_size, -self.rank, self.effort


class Step(NamedTuple):
    """One step from a simpler option to the chosen one.

    Attributes:
        gain: simpler time over chosen time, less one.
        error: error of such a ratio.
    """

    what: Literal["tiling", "scheduler"]
    simpler: Option
    chosen: Option
    gain: float
    error: float

    @property
    def inside_error(self) -> bool:
        """The gain does not stand out of the model's error."""
        return self.gain < self.error


class Flip(NamedTuple):
    """A value whose plausible range changes the answer.

    Attributes:
        low, high: the range; the answer changes at `at`.
        to: what the answer becomes.
        experiment: what settles it.
    """

    value: str
    kind: str
    low: float
    high: float
    at: float
    to: str
    experiment: str


@dataclass(frozen=True)
class Decision:
    """The chosen option and how it was chosen.

    Attributes:
        answers: those of the five that hold, the largest gain first.
        steps: what each piece of machinery gains over doing without it.
        rejected: options that were looked at, fastest first.
    """

    chosen: Option
    answers: tuple[Answer, ...]
    steps: tuple[Step, ...]
    rejected: tuple[Option, ...]

    @property
    def to_measure(self) -> tuple[Step, ...]:
        """Steps whose gain is inside the model's error."""
        return tuple(step for step in self.steps if step.inside_error)


def choose(options: Sequence[Option]) -> Decision:
    """The simplest option that is within `WORTH` of the fastest."""
    fastest = min(option.us for option in options)
    close = [option for option in options if option.us <= fastest * (1 + WORTH)]
    chosen = min(close, key=lambda option: option.simplicity)
    steps = tuple(_steps(chosen, options))
    return Decision(
        chosen=chosen,
        answers=_answers(chosen, steps),
        steps=steps,
        rejected=tuple(
            sorted((o for o in options if o is not chosen), key=lambda option: option.us)
        ),
    )


def _steps(chosen: Option, options: Sequence[Option]) -> list[Step]:
    """The chosen option against the best with a simpler tiling, and with a simpler scheduler."""
    steps = []
    plainer = [o for o in options if o.cluster_size < chosen.cluster_size]
    if plainer:
        best = min(plainer, key=lambda option: option.us)
        steps.append(Step("tiling", best, chosen, best.us / chosen.us - 1, TILING_ERROR))
    same = [o for o in options if o.name == chosen.name]
    simpler = [o for o in same if o.effort < chosen.effort]
    if simpler:
        best = min(simpler, key=lambda option: option.us)
        steps.append(Step("scheduler", best, chosen, best.us / chosen.us - 1, SCHEDULER_ERROR))
    return steps


def _answers(chosen: Option, steps: Sequence[Step]) -> tuple[Answer, ...]:
    """What holds of the chosen option, the largest gain first; what the user fixed comes last."""
    gains = {step.what: step.gain for step in steps}
    named: list[tuple[float, Answer]] = []
    if chosen.name in {"cluster", "pair"}:
        tiling: Answer = "pair-mma" if chosen.name == "pair" else "cluster-for-reuse"
        named.append((gains.get("tiling", 0.0), tiling))
    if chosen.scheduler != "single_tile":
        static = chosen.scheduler in {"static", "static_blocked"}
        schedule: Answer = "persistent-static" if static else "persistent-dynamic"
        named.append((gains.get("scheduler", 0.0), schedule))
    if not named:
        return ("leave-it-alone",)
    return tuple(answer for _, answer in sorted(named, key=lambda entry: -entry[0]))


def find_flips(
    step: Step,
    ranges: Mapping[str, tuple[str, float, float]],
    gain_at: Callable[[str, float], float],
    experiment: Callable[[str], str],
) -> list[Flip]:
    """Values whose plausible range would make a step not worth taking.

    Args:
        ranges: value name -> (kind, low, high).
        gain_at: the step's gain with one value set.
        experiment: what settles a value.
    """
    flips = []
    for name, (kind, low, high) in ranges.items():
        for at in (low, high):
            if gain_at(name, at) < WORTH:
                to = f"{step.simpler.name}, {step.simpler.schedule}"
                flips.append(Flip(name, kind, low, high, at, to, experiment(name)))
                break
    return flips


def jitter_that_flips(work: Work, chosen: Option, dynamic: Scheduler) -> float | None:
    """The smallest relative spread of tile times at which the dynamic scheduler gains `WORTH`.

    None when none of `JITTERS` does, or when the choice is dynamic already.
    """
    if chosen.scheduler == dynamic or not work.num_tiles:
        return None
    for spread in JITTERS:
        noisy = work.jittered(spread)
        static = noisy.run(chosen.scheduler, order=chosen.order)
        if static.kernel_us > noisy.run(dynamic).kernel_us * (1 + WORTH):
            return spread
    return None
