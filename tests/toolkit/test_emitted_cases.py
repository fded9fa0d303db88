"""Cases C5 to C8 from public bug reports, asked of what `emit` writes: its kernel.cu, compiled.

What a CTA does is read from the source with its rank put in for it, what a warp can still do after a decline
from the flow of the PTX. Expected numbers are those of the reports.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from built import barrier_counts, constants, operands, with_rank
from flow import Flow, Known, Step

from tilewright import Gemm, Options, TileList, load
from tilewright.emit import Around, emit, emit_tiles
from tilewright.run.compiler import compile_source

pytestmark = pytest.mark.toolkit

SQUARE = Gemm(m=8192, n=8192, k=8192)


class Folder(NamedTuple):
    """An emitted folder with a plan that leaves nothing open.

    Attributes:
        tile: of a CTA; none for a tile function of the user's.
        larger: the launch may prefer larger clusters.
    """

    device: str
    cluster: tuple[int, int]
    group: int
    scheduler: str
    tile: tuple[int, int] | None = (128, 64)
    larger: bool = False

    @property
    def arch(self) -> str:
        return {"b200": "sm_100a", "h200": "sm_90a"}[self.device]

    @property
    def size(self) -> int:
        return self.cluster[0] * self.cluster[1]

    @property
    def is_user_s(self) -> bool:
        return self.tile is None

    def __str__(self) -> str:
        what = "tile function" if self.tile is None else f"{self.tile[0]}x{self.tile[1]}"
        x, y = self.cluster
        pairs = " pairs" * (self.group == 2)
        return f"{self.device} {what}, {x}x{y}{pairs}, {self.scheduler}{', larger' * self.larger}"


@cache
def kernel_of(folder: Folder) -> str:
    """Its kernel.cu."""
    with TemporaryDirectory() as scratch:
        out = Path(scratch) / "out"
        if folder.tile is None:
            work = TileList(costs_us=(20.0,) * 500, cluster_shape=(folder.size, 1, 1))
            options = Options(scheduler=folder.scheduler)  # type: ignore[arg-type]
            around = Around(larger_clusters=folder.larger)
            emit_tiles(work, load(folder.device), out, options=options, around=around)
        else:
            options = Options(
                cluster_shape=(*folder.cluster, 1),
                cta_group=folder.group,
                tile=folder.tile,
                scheduler=folder.scheduler,  # type: ignore[arg-type]
                allow_swap=False,
            )
            done = emit(SQUARE, load(folder.device), out, options=options)
            config = done.paths[0].config  # type: ignore[attr-defined]
            assert config.scheduler == folder.scheduler
            assert config.tiling.cluster_shape == options.cluster_shape
        return (out / "kernel.cu").read_text()


@cache
def ptx_of(folder: Folder, rank: int | None = None) -> str:
    """As every CTA has it, or as CTA `rank` sees it."""
    source = kernel_of(folder)
    if rank is not None:
        source = with_rank(source, rank)
    return compile_source(source, "kernel.cu", folder.arch, use_cache=False).ptx


def barriers_of(ptx: str) -> list[int]:
    """Offsets of the mbarriers; the last three are schedule_arrived, _finished and _throttle, one slot each."""
    return sorted(
        known[match[1]]
        for text, known in constants(ptx)
        if (match := re.match(r"mbarrier\.init\S* \[(%\w+)\]", text))
    )


def values(flow: Flow, reached: dict[int, Known], *starts: str) -> list[tuple[int | None, ...]]:
    """Of each reached instruction that begins so: the operands after the first, addresses as offsets."""
    found = []
    for index in (index for index in flow.find(*starts) if index in reached):
        step, known = flow.steps[index], reached[index]
        found.append(
            tuple(
                step.address(i, known) if step.points(i) else step.value(operand, known)
                for i, operand in enumerate(step.instruction.operands)
                if i > 0
            )
        )
    return found


# --- C5 ---------------------------------------------------------------------------------------------------------------

CLC = [
    Folder("b200", (2, 1), 2, "clc", (128, 128)),
    Folder("b200", (2, 1), 1, "clc"),
    Folder("b200", (4, 1), 2, "clc"),
    Folder("b200", (2, 2), 1, "clc"),
    Folder("b200", (2, 1), 1, "clc", None),
    Folder("b200", (4, 1), 1, "clc", None),
]
ARRIVE, TRY_CANCEL = "mbarrier.arrive.expect_tx", "clusterlaunchcontrol.try_cancel"


@pytest.mark.parametrize("folder", CLC, ids=str)
def test_c5_every_cta_arms_its_own_barrier_and_rank_0_asks(folder: Folder) -> None:
    for rank in range(folder.size):
        flow = Flow(ptx_of(folder, rank))
        arrived = barriers_of(ptx_of(folder, rank))[-3]
        reached = flow.reach()
        armed = values(flow, reached, ARRIVE)
        assert armed.count((arrived, 16)) == 1, "16 bytes on the CTA's own barrier"
        arms = [
            i for i in flow.find(ARRIVE) if (arrived, 16) in values(flow, {i: reached[i]}, ARRIVE)
        ]
        assert all(flow.steps[i].has("shared::cta") for i in arms)
        asks = flow.find(TRY_CANCEL)
        assert len(asks) == (rank == 0)
        for ask in asks:
            assert flow.steps[ask].has("multicast::cluster::all")
            assert values(flow, reached, TRY_CANCEL) == [(arrived,)], (
                "an answer comes to the same offset"
            )
            assert ask not in flow.reach(stop=arms), "no way to the request leads around the arming"
        waits = values(flow, reached, "mbarrier.try_wait")
        assert any(wait[0] == arrived for wait in waits), "and the CTA waits on its own"


def test_c5_counted_tiles_come_to_barriers_that_rank_0_arms() -> None:
    """The same kind without cluster launch control: one CTA draws, and arms each receiver for its four bytes."""
    folder = Folder("h200", (2, 2), 1, "dynamic_atomic")
    for rank in range(folder.size):
        flow = Flow(ptx_of(folder, rank))
        remote = [i for i in flow.find(ARRIVE) if flow.steps[i].has("shared::cluster")]
        sent = flow.find("st.async")
        assert len(remote) == len(sent) == (rank == 0)
        if rank == 0:
            reached = flow.reach()
            assert [each[-1] for each in values(flow, {i: reached[i] for i in remote}, ARRIVE)] == [
                4
            ]
            assert sent[0] not in flow.reach(stop=remote)


# --- C6 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cluster", [(4, 1), (2, 2)], ids=str)
def test_c6_each_pair_commits_to_itself(cluster: tuple[int, int]) -> None:
    folder = Folder("b200", cluster, 2, "static")
    for rank, mask in ((0, 0x3), (1, None), (2, 0xC), (3, None)):
        ptx = ptx_of(folder, rank)
        masks = operands(ptx, "tcgen05.commit.cta_group::2.mbarrier::arrive::one")
        if mask is None:
            assert "tcgen05.commit" not in ptx
        else:
            release, told = masks
            assert told == mask, "the accumulator's"
            assert release == 0xF, "the stage's: both CTAs of this pair and whoever loads for them"


@pytest.mark.parametrize("cluster", [(8, 1), (2, 4), (4, 2)], ids=str)
def test_c6_whatever_the_cluster(cluster: tuple[int, int]) -> None:
    folder = Folder("b200", cluster, 2, "static", (128, 128))
    for rank in range(0, folder.size, 2):
        masks = operands(ptx_of(folder, rank), "tcgen05.commit.cta_group::2.mbarrier::arrive::one")
        assert masks[-1] == 0x3 << (rank & ~1)


# --- C7 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cluster", [(2, 1), (4, 1), (2, 2), (8, 1), (4, 2), (2, 4)], ids=str)
def test_c7_bytes_of_a_are_the_pair_s_whatever_the_cluster(cluster: tuple[int, int]) -> None:
    """A stage expects A and B at once. B of a pair is 128 bytes a column of the tile; what is left is A."""
    for columns in (64, 128):
        folder = Folder("b200", cluster, 2, "static", (128, columns))
        for rank in {0, 1, folder.size - 2, folder.size - 1}:
            expected = operands(ptx_of(folder, rank), ARRIVE)
            if rank % 2:
                assert not expected, "the leader of the pair expects, for both"
            else:
                assert [bytes_ - 128 * columns for bytes_ in expected] == [32_768]


# --- C8 ---------------------------------------------------------------------------------------------------------------

LEAVING = [
    *CLC,
    Folder("b200", (2, 1), 2, "static"),
    Folder("b200", (2, 2), 1, "dynamic_atomic"),
    Folder("b200", (4, 2), 2, "dynamic_atomic"),
    Folder("h200", (2, 1), 1, "dynamic_atomic"),
    Folder("h200", (2, 2), 1, "static"),
    Folder("h200", (4, 1), 1, "single_tile"),
    Folder("h200", (2, 1), 1, "dynamic_atomic", None),
    Folder("b200", (2, 1), 1, "clc", None, larger=True),
    Folder("b200", (2, 1), 1, "dynamic_atomic", None, larger=True),
]


def signals_a_peer(step: Step) -> bool:
    """Whether it arrives at, writes to or multiplies in another CTA."""
    if any(each.startswith("multicast::cluster") for each in step.instruction.opcode.modifiers):
        return True
    if step.opens("cp.async.bulk", "tcgen05.mma", "tcgen05.commit"):
        return step.has("cta_group::2")  # else to this CTA, whatever the space is called
    return step.opens("mbarrier", "st", "ld", "red", "atom") and step.has("shared::cluster")


@pytest.mark.parametrize("folder", LEAVING, ids=str)
def test_c8_nobody_signals_a_peer_that_may_have_left(folder: Folder) -> None:
    """Every way out leads through a barrier of the cluster after which no peer is touched."""
    flow = Flow(ptx_of(folder))
    signals = {index for index, step in enumerate(flow.steps) if signals_a_peer(step)}
    assert signals or folder.is_user_s
    meetings = flow.find("barrier.cluster.wait")
    last = [each for each in meetings if len(set(meetings) & set(flow.reach(each))) == 1]
    assert last
    assert not set(flow.find("ret", "exit")) & set(flow.reach(stop=last)), (
        "there is no other way out"
    )
    for each in last:
        after = sorted(signals & set(flow.reach(each)))
        assert not after, [flow.steps[index].instruction.text for index in after]


@pytest.mark.parametrize(
    "folder", [each for each in LEAVING if each.scheduler in {"clc", "dynamic_atomic"}], ids=str
)
def test_c8_a_declined_answer_is_not_released(folder: Folder) -> None:
    """After the terminal answer a warp signals no peer at all; a granted one is released to rank 0."""
    for rank in (0, folder.size - 1):
        ptx = ptx_of(folder, rank)
        flow = Flow(ptx)
        arrived, finished, _ = barriers_of(ptx)[-3:]
        answers = find_answers(flow, arrived)
        assert answers
        for start, declined, granted in answers:
            reached = flow.reach(start, declined)
            signals = sorted(index for index in reached if signals_a_peer(flow.steps[index]))
            assert not signals, [flow.steps[index].instruction.text for index in signals]
            assert not releases(flow, reached, finished)
            assert releases(flow, flow.reach(start, granted), finished)


def find_answers(flow: Flow, arrived: int) -> list[tuple[int, Known, Known]]:
    """Each place where an answer has been read: the next instruction, and what is known of a decline and a grant.

    A warp has waited on schedule_arrived. Then clc asks the answer itself; a drawn tile is compared with the
    number of tiles: here one tile, and numbers 1 and 0 drawn.
    """
    reached = flow.reach()
    found: list[tuple[int, Known, Known]] = []
    for wait in flow.find("mbarrier.try_wait"):
        if wait not in reached or flow.steps[wait].address(1, reached[wait]) != arrived:
            continue
        queries = flow.find("clusterlaunchcontrol.query_cancel.is_canceled", "ld.shared.u32")
        read = next(index for index in queries if index > wait)
        answer, known = flow.steps[read].register(0), reached[read]
        if not flow.steps[read].opens("ld"):
            found.append((read + 1, known | {answer: 0}, known | {answer: 1}))
            continue
        after = (flow.steps[index] for index in flow.find("setp") if index > read)
        num_tiles = next(step.register(2) for step in after if step.register(1) == answer)
        known = known | {num_tiles: 1}
        found.append((read + 1, known | {answer: 1}, known | {answer: 0}))
    return found


def releases(flow: Flow, reached: dict[int, Known], finished: int) -> bool:
    """Whether an arrival on schedule_finished, the CTA's or rank 0's, can be reached."""
    for index in flow.find("mbarrier.arrive.relaxed", "mbarrier.arrive.release"):
        if index not in reached:
            continue
        step, known = flow.steps[index], reached[index]
        if step.has("shared::cluster"):  # the address is mapa's, one instruction before
            step = flow.steps[index - 1]
            if step.value(step.instruction.operands[1], known) == finished:
                return True
        elif step.address(1, known) == finished:
            return True
    return False


def test_counts_say_which_barriers_are_the_scheduler_s() -> None:
    """What `barriers_of` takes for schedule_arrived, _finished and _throttle."""
    ptx = ptx_of(Folder("b200", (4, 1), 2, "clc"))
    readers = 4 * (1 + 4 + 1) + 2  # a TMA, four epilogue, one asking warp a CTA; an MMA warp a pair
    assert barrier_counts(ptx)[-3:] == [1, readers, 1]
