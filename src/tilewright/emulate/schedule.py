"""Who acts next: a strategy decides, and what it decided is kept for a replay.

    round_robin   everybody in turn
    random        anybody
    pct           priorities drawn at first, lowered at a few steps: finds rare orders (Burckhardt et al., 2010)
    delay         one CTA acts only when nobody else can
    replay        the decisions of an earlier run as far as they go, then everybody in turn

A decision is a number below the number of choices: which agent acts, whether a bounded wait gives up at once,
which pending cluster a request takes. 0 is always the plain choice.
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
    """Decides; the base takes everybody in turn.

    Attributes:
        picks: the decisions so far.
        choices: how many there were to choose from, one a decision.
        random: for what is left open besides the order.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.random = random.Random(seed)  # noqa: S311  (a schedule, no secret)
        self.picks: list[int] = []
        self.choices: list[int] = []

    def pick(self, agents: Sequence[Agent]) -> int:
        """The place of the agent that acts next."""
        if len(agents) == 1:
            return 0
        return self._keep(self._choose(agents), len(agents))

    def gives_up(self) -> bool:
        """Whether a bounded wait that could block returns false at once."""
        return bool(self._keep(self._gives_up(), 2))

    def pending(self, clusters: int) -> int:
        """Which of the pending clusters a request takes."""
        return self._keep(self._pending(clusters), clusters) if clusters > 1 else 0

    def _keep(self, decision: int, choices: int) -> int:
        self.picks.append(decision)
        self.choices.append(choices)
        return decision

    def _choose(self, agents: Sequence[Agent]) -> int:
        del agents
        return 0

    def _gives_up(self) -> int:
        return 0

    def _pending(self, clusters: int) -> int:
        del clusters
        return 0


class RandomStrategy(Strategy):
    """Anybody, with equal chance; one bounded wait of four gives up."""

    def _choose(self, agents: Sequence[Agent]) -> int:
        return self.random.randrange(len(agents))

    def _gives_up(self) -> int:
        return int(self.random.random() < 0.25)

    def _pending(self, clusters: int) -> int:
        return self.random.randrange(clusters)


class PctStrategy(RandomStrategy):
    """Strict priorities by agent, lowered at `depth` steps of about `length`."""

    def __init__(self, seed: int, depth: int = 3, length: int = 2000) -> None:
        super().__init__(seed)
        self._priorities: dict[Name, float] = {}
        self._changes = {self.random.randrange(length) for _ in range(depth)}
        self._lowest = 0.0

    def _choose(self, agents: Sequence[Agent]) -> int:
        for agent in agents:
            if agent.name not in self._priorities:
                self._priorities[agent.name] = self.random.random()
        best = max(range(len(agents)), key=lambda i: self._priorities[agents[i].name])
        if len(self.picks) in self._changes:
            self._lowest -= 1.0
            self._priorities[agents[best].name] = self._lowest
        return best


class DelayStrategy(RandomStrategy):
    """One CTA of each cluster comes last; the others in random order."""

    def __init__(self, seed: int, rank: int) -> None:
        super().__init__(seed)
        self.rank = rank

    def _choose(self, agents: Sequence[Agent]) -> int:
        others = [i for i, agent in enumerate(agents) if agent.name[1] != self.rank]
        return self.random.choice(others or range(len(agents)))


class ReplayStrategy(Strategy):
    """The decisions of an earlier run as far as they go."""

    def __init__(self, picks: Sequence[int], seed: int = 0) -> None:
        super().__init__(seed)
        self._given = list(picks)

    def _keep(self, decision: int, choices: int) -> int:
        place = len(self.picks)
        if place < len(self._given):
            decision = min(self._given[place], choices - 1)
        return super()._keep(decision, choices)


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
