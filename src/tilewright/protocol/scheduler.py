"""What a tile scheduler adds to a kernel: a role, two barriers, a ring of answers, and `fetch` steps.

    single_tile      nothing: one tile a cluster, the grid is the tile map
    static, _blocked nothing: the next tile is arithmetic on %clusterid
    clc              rank 0 asks; hardware answers every CTA; everybody reads, then releases to rank 0
    dynamic_atomic   rank 0 draws from a counter in global memory and writes the draw into every CTA

Both dynamic ones keep one request in flight: request r goes out when tile r starts and answers with tile
r + 1, so no request can follow an observed decline, and the last answer is waited for by every CTA. A
declined answer is not released: nobody signals a CTA that may have left. Declined means stop asking; it
does not mean that the queue is empty.

Sources: PTX ISA, clusterlaunchcontrol.try_cancel and .query_cancel; CUDA Programming Guide, cluster
launch control. The count of readers a cluster is CUTLASS's clc_pipeline consumer_arv_count, a lane a warp
instead of 32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tilewright.errors import BadInput, UnknownName, Unsupported
from tilewright.protocol.model import (
    Barrier,
    Effect,
    Parts,
    Program,
    Ring,
    Role,
    Signal,
    Step,
    Sync,
    Transfer,
    arrive,
    arrive_count,
    expect_tx,
    mask_of,
    wait,
)

if TYPE_CHECKING:
    from tilewright.device import Device

SCHEDULERS = ("single_tile", "static", "static_blocked", "dynamic_atomic", "clc")

RESPONSE_BYTES = 16
"""A CLC response. Source: PTX ISA, clusterlaunchcontrol.try_cancel."""

DRAW_BYTES = 4
"""A tile number drawn from the counter."""

DEPTH_MAX = 8
"""Answer slots; CUTLASS uses 2, and 8 for grouped problems."""


class Readers(NamedTuple):
    """Who runs tiles, and who asks for them.

    Attributes:
        roles: roles that need the next tile.
        warp: warp of a scheduler role of its own; None where the first warp of the first reader asks.
        pace: role whose start of a tile lets the scheduler role ask once more.
    """

    roles: tuple[str, ...]
    warp: int | None = None
    pace: str = ""

    @property
    def asker(self) -> str:
        """The role that asks for tiles."""
        return self.roles[0] if self.warp is None else "scheduler"


def check_scheduler(scheduler: str, cluster_size: int, clc_depth: int, device: Device) -> None:
    """Refuse a scheduler that the device or the cluster cannot have.

    Raises:
        UnknownName, BadInput, Unsupported
    """
    if scheduler not in SCHEDULERS:
        raise UnknownName("scheduler", scheduler, SCHEDULERS)
    if not 1 <= clc_depth <= DEPTH_MAX:
        raise BadInput(
            f"clc_depth {clc_depth} is outside 1 to {DEPTH_MAX}",
            given=clc_depth,
            allowed=f"1 to {DEPTH_MAX}",
            nearest=str(min(max(clc_depth, 1), DEPTH_MAX)),
        )
    if scheduler == "clc" and not device.clc:
        raise Unsupported(
            f"{device.name} has no cluster launch control; dynamic_atomic steals work there",
            given=scheduler,
            allowed=", ".join(SCHEDULERS[:-1]),
            nearest="dynamic_atomic",
        )
    if scheduler == "clc" and cluster_size > 1 and not device.clc_multicast:
        raise Unsupported(
            f"{device.name} answers a CLC request in one CTA only; a cluster of {cluster_size} needs "
            "try_cancel with multicast::cluster::all",
            given=cluster_size,
            allowed="cluster size 1",
            nearest="dynamic_atomic",
        )


def add_scheduler(
    parts: Parts, scheduler: str, readers: Readers, cluster_size: int, depth: int, device: Device
) -> Parts:
    """The kernel's parts with those of its scheduler."""
    if scheduler == "clc":
        return _add_clc(parts, readers, cluster_size, depth)
    if scheduler == "dynamic_atomic":
        if device.clusters:
            return _add_dynamic(parts, readers, cluster_size, depth)
        return _add_dynamic_one_cta(parts, readers)
    return parts


def _add_clc(parts: Parts, readers: Readers, size: int, depth: int) -> Parts:
    ranks = tuple(range(size))
    everywhere = ".multicast::cluster::all" if size > 1 else ""
    request = Step(
        "request",
        "clc_full",
        writes=("clc",),
        ranks=(0,),
        text="fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster; "
        f"clusterlaunchcontrol.try_cancel.async.mbarrier::complete_tx::bytes{everywhere}.b128",
    )
    read = Step(
        "read",
        reads=("clc",),
        text="ld.shared.b128; query_cancel.is_canceled; only if granted: get_first_ctaid + "
        "%cluster_ctaid; fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster; "
        "__syncwarp",
    )
    fetch = (wait("clc_full"), read, _release("clc"))
    ask = (wait("clc_empty", (0,)), expect_tx("clc_full"), request)
    does = "one lane asks for the next cluster (rank 0) and arms its own CTA's barrier (all ranks)"
    scheduler = Role("scheduler", (), ranks, does, Program(first=ask, fetch=fetch))
    roles = _scheduled(parts.roles, readers, fetch, scheduler, "clc")
    full = Barrier(
        "clc_full",
        depth,
        "full",
        {rank: rank for rank in ranks},
        "every CTA of the mask" if size > 1 else "own CTA",
        (Signal(readers.asker, "expect_tx", "thread", {rank: 1 << rank for rank in ranks}),),
        "reading the response, in every CTA its own copy",
        "every CTA arms 16 bytes on its own barrier; wait with acquire.cluster, looped",
        ("CLC-03", "CLC-04", "CLC-05", "CLC-06", "CLC-10", "CLC-11", "CLC-18"),
        (Transfer(readers.asker, "CLC response", RESPONSE_BYTES, {0: mask_of(ranks)}),),
    )
    rules = ("CLC-09", "CLC-13", "CLC-14", "CLC-15", "CLU-12")
    names = dict.fromkeys((*readers.roles, readers.asker))
    empty = _released_by(tuple(names), roles, "clc", depth, rules)
    return _extended(parts, roles, (full, empty), readers)


def _add_dynamic(parts: Parts, readers: Readers, size: int, depth: int) -> Parts:
    ranks = tuple(range(size))
    alone = size == 1
    hand_over = "st.shared" if alone else "a lane a CTA: st.async.shared::cluster (mapa)"
    draw = Step(
        "write" if alone else "request",
        "" if alone else "work_full",
        writes=("work",),
        ranks=(0,),
        text=f"atom.inc.relaxed.gpu (counter); {hand_over} of the tile",
    )
    publish = arrive("work_full", (0,), "mbarrier.arrive.release.cta by the same lane")
    read = Step(
        "read", reads=("work",), text="ld.shared; __syncwarp; a tile past the end is a decline"
    )
    fetch = (wait("work_full"), read, _release("work"))
    announce = (draw, publish) if alone else (expect_tx("work_full", (0,)), draw)
    ask = (wait("work_empty", (0,)), *announce)
    does = "draws the next tile and hands it to every CTA of the cluster"
    scheduler = Role("scheduler", (), (0,), does, Program(first=ask))
    roles = _scheduled(parts.roles, readers, fetch, scheduler, "work")
    everyone = {0: mask_of(ranks)}
    full = Barrier(
        "work_full",
        depth,
        "full",
        {rank: rank for rank in ranks},
        "every CTA of the mask" if size > 1 else "own CTA",
        (Signal(readers.asker, "arrive" if alone else "expect_tx", "thread", everyone),),
        "reading the tile number, in every CTA its own copy",
        "st.shared, then the arrival by the same lane"
        if alone
        else "rank 0 arms four bytes in every CTA, then st.async by the same lane; wait with acquire.cluster",
        ("MBAR-03", "MBAR-04", "MBAR-08") + (() if alone else ("CLU-01", "CLU-08")),
        () if alone else (Transfer(readers.asker, "tile number", DRAW_BYTES, everyone),),
    )
    rules = ("MBAR-03", "MBAR-08", "CLU-12")
    empty = _released_by(readers.roles, roles, "work", depth, rules)
    return _extended(parts, roles, (full, empty), readers)


def _release(prefix: str) -> Step:
    return arrive(
        f"{prefix}_empty",
        text="if granted, one lane a warp: mbarrier.arrive at rank 0",
    )


def _released_by(
    names: tuple[str, ...],
    roles: tuple[Role, ...],
    prefix: str,
    depth: int,
    rules: tuple[str, ...],
) -> Barrier:
    """The empty barrier of rank 0: every warp that reads an answer, in every CTA, arrives once."""
    ranks_by_name = {role.name: role.ranks for role in roles}
    everyone = sorted({rank for name in names for rank in ranks_by_name[name]})
    order: Literal["relaxed"] | None = "relaxed" if len(everyone) > 1 else None
    return Barrier(
        f"{prefix}_empty",
        depth,
        "empty",
        dict.fromkeys(everyone, 0),
        "rank 0 of the cluster",
        tuple(
            Signal(name, "arrive", "warp", dict.fromkeys(ranks_by_name[name], 1), order)
            for name in names
        ),
        "overwriting the answer in this slot of every CTA",
        "after __syncwarp, one lane at rank 0; not for a declined answer"
        + ("; relaxed.cluster: the value read decides about the arrival" if order else ""),
        rules,
    )


def _add_dynamic_one_cta(parts: Parts, readers: Readers) -> Parts:
    """Without clusters one CTA needs no mbarrier: the draw goes through shared memory."""
    broadcast = Step(
        "sync",
        "tile_draw",
        text="thread 0: atom.add, st.shared; __syncthreads; ld.shared; __syncthreads",
    )
    roles = tuple(
        replace(role, program=replace(role.program, fetch=(broadcast,)))
        if role.name in readers.roles
        else role
        for role in parts.roles
    )
    threads = sum(role.threads for role in roles if role.name in readers.roles)
    sync = Sync(
        "tile_draw",
        "barrier 0 of the CTA (bar.sync 0)",
        threads,
        "worker",
        "bar.sync 0 twice a tile: before the draw is read, and before it is overwritten",
        "reading the draw; then overwriting it",
        Effect("race", "a warp reads the previous draw and does a tile twice"),
        Effect("deadlock", "the missing threads never come"),
        ("MBAR-04",),
    )
    return parts._replace(roles=roles, syncs=(*parts.syncs, sync))


def _scheduled(
    roles: tuple[Role, ...], readers: Readers, fetch: tuple[Step, ...], scheduler: Role, prefix: str
) -> tuple[Role, ...]:
    """Readers learn the next tile after each one; the asker asks when a tile begins."""
    asks = scheduler.program.first
    out = []
    for role in roles:
        program = role.program
        if role.name in readers.roles:
            program = replace(program, fetch=fetch)
        if role.name == readers.pace:
            go = arrive(f"{prefix}_throttle", (0,), "mbarrier.arrive: this tile has begun")
            program = replace(program, first=(go, *program.first))
        if role.name == readers.asker:
            mine = tuple(step._replace(once=True) for step in asks)
            program = replace(program, first=(*mine, *program.first))
        out.append(replace(role, program=program))
    if readers.warp is not None:
        first = (wait(f"{prefix}_throttle", (0,)), *asks)
        program = replace(scheduler.program, first=first)
        out.append(replace(scheduler, warps=(readers.warp,), program=program))
    return tuple(out)


def _extended(
    parts: Parts, roles: tuple[Role, ...], barriers: tuple[Barrier, ...], readers: Readers
) -> Parts:
    full, empty = barriers
    ring = _answers(full.name.removesuffix("_full"), full.depth)
    if readers.pace:
        barriers = (full, empty, _throttle(ring.name, readers.pace))
    return parts._replace(
        roles=roles, barriers=(*parts.barriers, *barriers), rings=(*parts.rings, ring)
    )


def _throttle(prefix: str, pace: str) -> Barrier:
    return Barrier(
        f"{prefix}_throttle",
        1,
        "full",
        {0: 0},
        "rank 0 of the cluster",
        (Signal(pace, "arrive", "thread", {0: 1}),),
        "asking for one more tile: a cluster never holds more than one that it has not begun",
        "local; the next arrival needs the answer to the request that this one permits",
        ("MBAR-07", "MBAR-12"),
    )


def _answers(name: str, depth: int) -> Ring:
    return Ring(
        name=name,
        depth=depth,
        space="smem",
        size=RESPONSE_BYTES,
        full=f"{name}_full",
        empty=f"{name}_empty",
        readable=f"after an acquire.cluster wait on {name}_full",
        overwritable=f"after every reader of every CTA has arrived on {name}_empty of rank 0",
        write_guard=f"{name}_empty",
        read_guard=f"{name}_full",
    )


def clc_table(parts: Parts, cluster_size: int, depth: int) -> dict[str, Any]:
    """The request loop, step by step, with the rule each step keeps."""
    barriers = {barrier.name: barrier for barrier in parts.barriers}
    readers = arrive_count(barriers["clc_empty"], parts.roles)
    asker = barriers["clc_full"].signals[0].role
    instruction = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
    if cluster_size > 1:
        instruction += ".multicast::cluster::all"
    steps = (
        ("first tile: the launch coordinates, no request", ("CLC-21",)),
        ("rank 0: only once this tile has begun (clc_throttle, or program order)", ("MBAR-07",)),
        (
            "rank 0: wait clc_empty of the slot, first parity 1: all readers of all CTAs are done",
            ("CLC-14", "CLC-15"),
        ),
        (
            f"every CTA: mbarrier.arrive.expect_tx {RESPONSE_BYTES} on its own clc_full",
            ("CLC-03", "CLC-04"),
        ),
        (
            "rank 0: fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster",
            ("CLC-09",),
        ),
        (
            f"rank 0, one elected lane: {instruction}.b128 [response], [clc_full]; own addresses",
            ("CLC-02", "CLC-11", "CLC-18"),
        ),
        ("every reader: loop on try_wait.parity.acquire.cluster of its own clc_full", ("CLC-06",)),
        (
            "every reader: one 128-bit ld.shared, then query_cancel.is_canceled",
            ("CLC-01", "CLC-07"),
        ),
        (
            "granted only: get_first_ctaid, plus %cluster_ctaid in each dimension",
            ("CLC-07", "CLC-12", "CLC-20"),
        ),
        (
            (
                "granted only: fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster, "
                "__syncwarp, one lane arrives at rank 0's clc_empty; then do the tile"
            ),
            ("CLC-09", "CLC-15", "CLC-17"),
        ),
        (
            "declined: no request and no arrival any more; the coordinates are not read; no sentinel",
            ("CLC-07", "CLC-08", "CLC-13"),
        ),
        (
            (
                "exit: nothing is in flight (every CTA waited for the declined response), drain the rings, "
                "barrier.cluster, return"
            ),
            ("CLC-16", "CLU-02"),
        ),
    )
    return {
        "depth": depth,
        "response_bytes": RESPONSE_BYTES,
        "response_alignment_bytes": RESPONSE_BYTES,
        "instruction": instruction + ".b128",
        "requests_in_flight": 1,
        "expect_tx_bytes_each_cta": RESPONSE_BYTES,
        "issuer": f"one lane of role {asker} in rank 0",
        "readers_release_count": readers,
        "steps": [{"step": text, "rules": list(rules)} for text, rules in steps],
        "declined": "stop asking; not proof that the queue is empty: pending clusters launch by themselves",
        "grid": "the whole tile map: a cluster for every tile, laid along x",
    }


def dynamic_table(parts: Parts, depth: int) -> dict[str, Any]:
    """The counter, its broadcast and its reset."""
    barriers = {barrier.name: barrier for barrier in parts.barriers}
    empty = barriers.get("work_empty")
    return {
        "depth": depth if empty else 1,
        "readers_release_count": arrive_count(empty, parts.roles) if empty else 0,
        "counter": "one 32-bit word in global memory, 0 before the first launch",
        "draw": "value v = atom.add(counter, 1) by rank 0; tile = grid_clusters + v; granted if < num_tiles",
        "first_tile": "%clusterid: no draw",
        "reset": "every cluster draws exactly one value too many, so the draw that returns num_tiles - 1 is "
        "the last of all: that cluster stores 0. No second launch, no memset",
        "needs": "grid_clusters <= num_tiles, and launches that share the counter in one stream",
    }
