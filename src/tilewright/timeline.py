"""Who did which tile when: one record for simulated, measured and emulated runs, so that views draw all alike.

Times are whole nanoseconds from the start of the run. An emulated run has no nanoseconds: its clock counts the warp
instructions that all warps together have executed, and each stands as one; `Timeline.unit` says so. It tells who
came before whom, not how long anything takes. A *slot* is room for one resident cluster, as in `sim`: the workers
that run in it come one after another, and a view gives them one row. A *worker* is one launched cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tilewright.emulate.history import Ask, History, Stay
    from tilewright.sim import Run

Source = Literal["simulated", "measured", "emulated"]
DECLINED = -1
"""Tile of a request that was declined."""

UNANSWERED = -2
"""Tile of a request that nobody had answered when the run was over."""


class TileSpan(NamedTuple):
    """One tile (a piece of one for `stream_k`) in the hands of one CTA, or of a cluster as a whole.

    Attributes:
        slot: row of the views.
        rank: CTA of the cluster; 0 where the cluster is seen as one.
        sm: %smid; None where no hardware was there.
    """

    tile: int
    worker: int
    slot: int
    start_ns: int
    end_ns: int
    rank: int = 0
    sm: int | None = None


class Request(NamedTuple):
    """One request for work (CLC's try_cancel) and its response.

    Attributes:
        tile: what was granted, or `DECLINED`, or `UNANSWERED`.
    """

    worker: int
    slot: int
    ask_ns: int
    answer_ns: int
    tile: int


class Residence(NamedTuple):
    """A worker in its slot."""

    worker: int
    slot: int
    start_ns: int
    end_ns: int


class Held(NamedTuple):
    """A slot in foreign hands; `end_ns` is None when for good."""

    slot: int
    start_ns: int
    end_ns: int | None


@dataclass(frozen=True)
class Timeline:
    """One run.

    Attributes:
        scheduler: who handed the tiles out.
        slots: rows.
        spans: in any order; those of one slot and rank do not overlap in a simulation, and may in a
            measurement whose warps end at different times.
        ctas_per_slot: CTAs that work while a slot is busy.
        sms_per_slot: SMs that a busy slot has to itself; None where slots share SMs or nobody knows.
    """

    source: Source
    scheduler: str
    slots: int
    spans: tuple[TileSpan, ...]
    requests: tuple[Request, ...] = ()
    residences: tuple[Residence, ...] = ()
    holds: tuple[Held, ...] = ()
    ctas_per_slot: int = 1
    sms_per_slot: int | None = None

    @property
    def unit(self) -> str:
        """What one of its times stands for."""
        return "warp instruction" if self.source == "emulated" else "ns"

    @property
    def start_ns(self) -> int:
        """When the first tile began; 0 when there is none."""
        return min((span.start_ns for span in self.spans), default=0)

    @property
    def end_ns(self) -> int:
        """When the last tile ended; 0 when there is none."""
        return max((span.end_ns for span in self.spans), default=0)

    @property
    def busy_ns(self) -> int:
        """Sum of the spans."""
        return sum(span.end_ns - span.start_ns for span in self.spans)


def of_run(
    run: Run,
    clock_mhz: float,
    *,
    response_cycles: int = 0,
    ctas_per_slot: int = 1,
    sms_per_slot: int | None = None,
    first_tile: int = 0,
) -> Timeline:
    """A simulated run. Its requests and the workers of `single_tile` are there when it was recorded.

    Args:
        clock_mhz: cycles a microsecond.
        response_cycles: from a request to its response.
        first_tile: number of the run's tile 0, where those before it were not simulated.
    """
    scale = 1000.0 / clock_mhz

    def ns(cycles: int) -> int:
        return round(cycles * scale)

    def all_ns(cycles: NDArray[np.int64]) -> list[int]:
        found: list[int] = np.rint(cycles * scale).astype(np.int64).tolist()
        return found

    spans = map(
        TileSpan,
        (run.tile + first_tile).tolist(),
        run.worker.tolist(),
        run.slot.tolist(),
        all_ns(run.start_cycles),
        all_ns(run.end_cycles),
    )
    left = {each.worker: each.time_cycles for each in run.exits}
    return Timeline(
        source="simulated",
        scheduler=run.scheduler,
        slots=run.slots,
        spans=tuple(spans),
        requests=tuple(
            Request(
                each.worker,
                each.slot,
                ns(each.time_cycles),
                ns(each.time_cycles + response_cycles),
                each.item if each.item == DECLINED else each.item + first_tile,
            )
            for each in run.requests
        ),
        residences=tuple(
            Residence(
                each.worker,
                each.slot,
                ns(each.time_cycles),
                ns(left.get(each.worker, run.last_end_cycles)),
            )
            for each in run.launches
        ),
        holds=tuple(
            Held(
                each.slot,
                ns(each.start_cycles),
                None if each.end_cycles is None else ns(each.end_cycles),
            )
            for each in run.holds
        ),
        ctas_per_slot=ctas_per_slot,
        sms_per_slot=sms_per_slot,
    )


def of_times(
    times: NDArray[np.void],
    scheduler: str,
    requests: NDArray[np.void] | None = None,
    *,
    source: Source = "measured",
    sms_per_slot: int | None = None,
) -> Timeline:
    """A run on a GPU or on the emulator, from what a kernel kept.

    A worker is the cluster whose CTAs were at the tile. Workers of one SM (that of rank 0) that do not overlap are
    one slot; slots count in the order of their first workers, as the simulator's do.

    Args:
        times: fields start_ns, end_ns, sm, cta; (tiles, cluster size). Tiles that nobody did are zeros.
        requests: fields ask_ns, answer_ns; (tiles,). Zeros where no request brought the tile; declined ones are not
            kept.
        source: whose %globaltimer it was.
    """
    size = times.shape[1]
    done = np.flatnonzero((times["end_ns"] > 0).all(axis=1))
    found = times[done]
    asks = (
        np.zeros(len(times), [("ask_ns", "<u8"), ("answer_ns", "<u8")])
        if requests is None
        else requests
    )
    asks = asks[done]
    made = np.flatnonzero(asks["ask_ns"])
    began = [*found["start_ns"].ravel().tolist(), *asks["ask_ns"][made].tolist()]
    first = min(began, default=0)
    worker = (found["cta"][:, 0] // size).astype(np.int64)
    slot = _slots(worker, found)
    spans = tuple(
        TileSpan(
            int(tile),
            int(worker[row]),
            int(slot[row]),
            int(found["start_ns"][row, rank]) - first,
            int(found["end_ns"][row, rank]) - first,
            rank,
            int(found["sm"][row, rank]),
        )
        for row, tile in enumerate(done)
        for rank in range(size)
    )
    return Timeline(
        source=source,
        scheduler=scheduler,
        slots=int(slot.max(initial=-1)) + 1,
        spans=spans,
        requests=tuple(
            Request(
                int(worker[row]),
                int(slot[row]),
                int(asks["ask_ns"][row]) - first,
                int(asks["answer_ns"][row]) - first,
                int(done[row]),
            )
            for row in made
        ),
        ctas_per_slot=size,
        sms_per_slot=sms_per_slot,
    )


def _slots(worker: NDArray[np.int64], found: NDArray[np.void]) -> NDArray[np.int64]:
    """The slot of each row's worker."""
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    place: dict[int, int] = {}
    rows = zip(
        worker.tolist(),
        found["start_ns"][:, 0].tolist(),
        found["end_ns"][:, 0].tolist(),
        found["sm"][:, 0].tolist(),
        strict=True,
    )
    for who, start, end, sm in rows:
        begins[who] = min(begins.get(who, start), start)
        ends[who] = max(ends.get(who, end), end)
        place[who] = sm
    free_at: dict[int, list[tuple[int, int]]] = {}  # by SM: (end of its last worker, first worker)
    heads: dict[int, int] = {}
    for who in sorted(begins, key=lambda w: (begins[w], w)):
        slots = free_at.setdefault(place[who], [])
        ready = next((i for i, (end, _) in enumerate(slots) if end <= begins[who]), None)
        if ready is None:
            slots.append((ends[who], who))
            heads[who] = who
        else:
            heads[who] = slots[ready][1]
            slots[ready] = (ends[who], heads[who])
    numbers = {head: number for number, head in enumerate(sorted(set(heads.values())))}
    return np.array([numbers[heads[who]] for who in worker.tolist()], dtype=np.int64)


def of_history(history: History) -> Timeline:
    """An emulated run of any kernel, from what the emulator itself knows.

    Work is what clusters of the grid stand for: a cluster's own, from its first CTA's begin on, and that of each one
    which it cancelled, from when the last of its warps asked for that one's coordinates. It lasts until the next
    begins, or the cluster leaves. What a kernel hands out by itself (a counter in memory, a stride) is not seen: such a
    worker has one slice. The tile's number is the cluster's, x fastest.
    """
    return Timeline(
        source="emulated",
        scheduler="clc" if history.asks else "hardware dispatch",
        slots=max((stay.slot + 1 for stay in history.stays), default=0),
        spans=tuple(span for stay in history.stays for span in _spans_of(stay, history.end)),
        requests=tuple(
            Request(
                ask.cluster,
                ask.slot,
                ask.asked,
                history.end if ask.answered is None else ask.answered,
                _granted(ask),
            )
            for ask in history.asks
        ),
        residences=tuple(
            Residence(
                stay.cluster,
                stay.slot,
                stay.placed,
                history.end if stay.left is None else stay.left,
            )
            for stay in history.stays
        ),
        ctas_per_slot=history.cluster_size,
    )


def _granted(ask: Ask) -> int:
    if ask.granted is None:
        return DECLINED if ask.declined else UNANSWERED
    return ask.granted


def _spans_of(stay: Stay, end: int) -> Iterator[TileSpan]:
    """A worker's tiles, one after another."""
    if stay.began is None:
        return
    begins = [(stay.began, stay.cluster), *sorted((at, tile) for tile, at in stay.turns.items())]
    ends = [at for at, _ in begins[1:]] + [end if stay.left is None else stay.left]
    for (start, tile), until in zip(begins, ends, strict=True):
        yield TileSpan(tile, stay.cluster, stay.slot, start, until)
