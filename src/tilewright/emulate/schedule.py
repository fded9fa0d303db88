"""Who acts next: a strategy decides, and what it decided is kept for a replay.

    round_robin   everybody in turn
    random        anybody
    pct           priorities drawn at first, lowered at a few steps: finds rare orders (Burckhardt et al., 2010)
    delay         one CTA of each cluster, one warp of each CTA, or what runs by itself acts only when nobody else can:
                  whoever waits for it really has to
                  (neither starves whom a loop that looks at memory waits for: `only_look`)
    replay        the decisions of an earlier run as far as they go, then everybody in turn

A decision is a number below the number of choices: which agent acts, whether a bounded wait gives up at once,
which pending cluster a request takes. 0 is always the plain choice.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from tilewright.errors import UnknownName

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

Name: TypeAlias = "tuple[int, int, int, int]"
Touched: TypeAlias = "set[tuple[Hashable, bool]]"
"""What a step looks at and changes: keys, and whether it changes them."""


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

    footprint: Touched | None = None
    """Of the step that runs, where that is wanted."""

    def end(self) -> None:
        """The agent that was picked has acted."""

    def only_look(self, *, over: bool = False) -> None:
        """Whoever is picked has changed nothing for long, as a loop that waits for what others store; then that is over.

        Warps of a GPU get their turn, so a strategy that leaves some out lets them come.
        """

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
    """Anybody, with equal chance; every other bounded wait that would block gives up."""

    def _choose(self, agents: Sequence[Agent]) -> int:
        return self.random.randrange(len(agents))

    def _gives_up(self) -> int:
        return int(self.random.random() < 0.5)

    def _pending(self, clusters: int) -> int:
        return self.random.randrange(clusters)


class PctStrategy(RandomStrategy):
    """Strict priorities by agent, lowered at `depth` steps of about `length`."""

    def __init__(self, seed: int, depth: int = 3, length: int = 2000) -> None:
        super().__init__(seed)
        self._priorities: dict[Name, float] = {}
        self._changes = {self.random.randrange(length) for _ in range(depth)}
        self._lowest = 0.0
        self._last: Name | None = None
        self._all_come = False

    def only_look(self, *, over: bool = False) -> None:
        """Whoever looked comes last from now on, and everybody by chance until somebody changes something."""
        self._all_come = not over
        if not over and self._last is not None:
            self._lower(self._last)

    def _lower(self, name: Name) -> None:
        self._lowest -= 1.0
        self._priorities[name] = self._lowest

    def _choose(self, agents: Sequence[Agent]) -> int:
        if self._all_come:
            return self.random.randrange(len(agents))
        for agent in agents:
            if agent.name not in self._priorities:
                self._priorities[agent.name] = self.random.random()
        best = max(range(len(agents)), key=lambda i: self._priorities[agents[i].name])
        self._last = agents[best].name
        if len(self.picks) in self._changes:
            self._lower(self._last)
        return best


class DelayStrategy(RandomStrategy):
    """Some come last; the others in random order.

    Args:
        place, value: who: place 1 of their names, the rank, or 2, the warp, is this.
    """

    def __init__(self, seed: int, place: int, value: int) -> None:
        super().__init__(seed)
        self.place: int | None = place
        self.value = value

    def only_look(self, *, over: bool = False) -> None:
        """The others wait for those: they come like any."""
        if not over:
            self.place = None

    def _choose(self, agents: Sequence[Agent]) -> int:
        place, value = self.place, self.value
        others = [i for i, each in enumerate(agents) if place is None or each.name[place] != value]
        return self.random.choice(others or range(len(agents)))


OPERATIONS = 1 << 20
"""In place of a rank, in the names of what runs by itself."""


def late_comers(ranks: int, warps: int) -> list[tuple[int, int]]:
    """Whom a delaying strategy may let come last: place and value in their names."""
    ctas = [(1, rank) for rank in range(ranks) if ranks > 1]
    return [*ctas, (1, OPERATIONS), *((2, warp) for warp in range(warps) if warps > 1)]


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


class Redundant(Exception):
    """The order that is being run differs from an earlier one only in steps that do not touch one another."""


@dataclass
class Node:
    """One decision of an exhaustive walk.

    Attributes:
        names: of the agents that can act; empty for a decision of another kind.
        chosen: the place that is being walked.
        sleeping: agents that need not act here: what they do was walked elsewhere in the same order.
        done: agents walked from here, and what their step touched; None where it did not end.
    """

    names: tuple[Name, ...]
    choices: int
    chosen: int
    sleeping: dict[Name, Touched]
    done: dict[Name, Touched | None]

    def next(self) -> bool:
        """Go on to the next choice, if there is one."""
        for place in range(self.chosen + 1, self.choices):
            name = self.names[place] if self.names else None
            if name is None or (name not in self.sleeping and name not in self.done):
                self.chosen = place
                return True
        return False


class ExhaustiveStrategy(Strategy):
    """One of all orders; `stack` holds the decisions, which `following` moves to the next order.

    Orders that differ only in steps which touch nothing in common are walked once: sleep sets (Godefroid,
    Partial-Order Methods, 1996). Bounded waits do not give up.
    """

    def __init__(self, stack: list[Node], *, reduces: bool = True) -> None:
        super().__init__(0)
        self.stack = stack
        self._reduces = reduces
        self._asleep: dict[Name, Touched] = {}
        self._node: Node | None = None
        self._acting: Name | None = None

    def gives_up(self) -> bool:
        """Never."""
        return False

    def pick(self, agents: Sequence[Agent]) -> int:
        """The choice of the stack, or the first agent that is not asleep.

        Raises:
            Redundant: all are asleep.
        """
        names = tuple(agent.name for agent in agents)
        self._node = None
        if len(agents) == 1:
            place = 0
            if names[0] in self._asleep:
                raise Redundant
        else:
            place = self._decide(names, len(names))
            self._node = self.stack[len(self.picks) - 1]
        self._acting = names[place]
        self.footprint = set() if self._reduces else None
        return place

    def pending(self, clusters: int) -> int:
        """Each of them in turn."""
        return self._decide((), clusters) if clusters > 1 else 0

    def _decide(self, names: tuple[Name, ...], choices: int) -> int:
        depth = len(self.picks)
        if depth == len(self.stack):
            awake = [i for i in range(choices) if not names or names[i] not in self._asleep]
            if not awake:
                raise Redundant
            self.stack.append(Node(names, choices, awake[0], dict(self._asleep), {}))
        node = self.stack[depth]
        if names:
            node.done.setdefault(names[node.chosen], None)
        return self._keep(node.chosen, choices)

    def end(self) -> None:
        """Who slept stays asleep if the step touched nothing of theirs; so do those walked before."""
        touched, acting = self.footprint, self._acting
        if touched is None or acting is None:
            return
        asleep = dict(self._asleep)
        if self._node is not None:
            before = {n: t for n, t in self._node.done.items() if t is not None and n != acting}
            asleep |= before
            self._node.done[acting] = touched
        self._asleep = {
            name: theirs
            for name, theirs in asleep.items()
            if name != acting and not _conflict(theirs, touched)
        }


def following(stack: list[Node]) -> bool:
    """Move a stack to the next order, depth first: whether there is one."""
    while stack:
        if stack[-1].next():
            return True
        stack.pop()
    return False


def _conflict(a: Touched, b: Touched) -> bool:
    """Whether one changes what the other looks at or changes."""
    return any((key, True) in b or (writes and (key, False) in b) for key, writes in a)


STRATEGIES = ("round_robin", "random", "pct", "delay")


def strategy_for(seed: int, ranks: int, warps: int, name: str | None = None) -> Strategy:
    """The strategy that a seed stands for: 0 is in turn, the others go round the kinds.

    Args:
        ranks, warps: CTAs of a cluster, warps of a CTA.
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
    late = late_comers(ranks, warps)
    return DelayStrategy(seed, *late[seed // 4 % len(late)])
