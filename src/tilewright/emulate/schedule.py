"""Who acts next: a strategy picks one of the agents that can, and what it picked is kept for a replay.

round_robin   everybody in turn
random        anybody
pct           priorities drawn at first, lowered at a few steps: finds rare orders (Burckhardt et al., 2010)
delay         one CTA acts only when nobody else can
replay        the picks of an earlier run, then everybody in turn
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Protocol, TypeAlias

from tilewright.errors import UnknownName

if TYPE_CHECKING:
    from collections.abc import Sequence

Name: TypeAlias = "tuple[int, int, int, int]"


class Agent(Protocol):
    """A group of lanes, an operation or a CTA that may begin."""

    @property
    def name(self) -> Name:
        """(cluster, rank, warp, lane), or what sorts beside it."""


class Strategy:
    """Picks agents; the base takes everybody in turn.

    Attributes:
        picks: places in the list of agents that were picked so far.
        random: for what is left open besides the order.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.random = random.Random(seed)  # noqa: S311  (a schedule, no secret)
        self.picks: list[int] = []

    def pick(self, agents: Sequence[Agent]) -> int:
        """The place of the agent that acts next."""
        place = self._choose(agents) if len(agents) > 1 else 0
        self.picks.append(place)
        return place

    def gives_up(self) -> bool:
        """Whether a bounded wait that could block returns false at once."""
        return False

    def _choose(self, agents: Sequence[Agent]) -> int:
        del agents
        return 0


class RandomStrategy(Strategy):
    """Anybody, with equal chance."""

    def gives_up(self) -> bool:
        """One bounded wait of four."""
        return self.random.random() < 0.25

    def _choose(self, agents: Sequence[Agent]) -> int:
        return self.random.randrange(len(agents))


class PctStrategy(Strategy):
    """Strict priorities by agent, lowered at `depth` steps of about `length`."""

    def __init__(self, seed: int, depth: int = 3, length: int = 2000) -> None:
        super().__init__(seed)
        self._priorities: dict[Name, float] = {}
        self._changes = {self.random.randrange(length) for _ in range(depth)}
        self._lowest = 0.0

    def gives_up(self) -> bool:
        """One bounded wait of eight, so that whoever has priority does not wait for ever."""
        return self.random.random() < 0.125

    def _choose(self, agents: Sequence[Agent]) -> int:
        for agent in agents:
            if agent.name not in self._priorities:
                self._priorities[agent.name] = self.random.random()
        best = max(range(len(agents)), key=lambda i: self._priorities[agents[i].name])
        if len(self.picks) in self._changes:
            self._lowest -= 1.0
            self._priorities[agents[best].name] = self._lowest
        return best


class DelayStrategy(Strategy):
    """One CTA, and whatever it has issued, comes last; the others in random order."""

    def __init__(self, seed: int, rank: int) -> None:
        super().__init__(seed)
        self.rank = rank

    def _choose(self, agents: Sequence[Agent]) -> int:
        others = [i for i, agent in enumerate(agents) if agent.name[1] != self.rank]
        return self.random.choice(others or range(len(agents)))


class ReplayStrategy(Strategy):
    """The picks of an earlier run as far as they go."""

    def __init__(self, picks: Sequence[int], seed: int = 0) -> None:
        super().__init__(seed)
        self._given = list(picks)

    def _choose(self, agents: Sequence[Agent]) -> int:
        step = len(self.picks)
        return min(self._given[step], len(agents) - 1) if step < len(self._given) else 0


STRATEGIES = ("round_robin", "random", "pct", "delay")


def strategy_for(seed: int, ranks: int, name: str | None = None) -> Strategy:
    """The strategy that a seed stands for: 0 is in turn, the others go round the kinds.

    Raises:
        UnknownName: no such strategy.
    """
    if name is None:
        name = "round_robin" if seed == 0 else ("random", "pct", "random", "delay")[seed % 4]
    if name not in STRATEGIES:
        raise UnknownName("strategy", name, STRATEGIES)
    if name == "round_robin":
        return Strategy(seed)
    if name == "random":
        return RandomStrategy(seed)
    if name == "pct":
        return PctStrategy(seed)
    return DelayStrategy(seed, (seed // 4) % ranks)
