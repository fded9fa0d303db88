"""Fences: of threads, of proxies, of mbarrier initialisations. PTX ISA, 9.7.13.4."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulate.clocks import ASYNC, HALF, NOTHING, SEEN, Clock, join_levels
from tilewright.emulate.instructions import instruction

if TYPE_CHECKING:
    from tilewright.emulate.clocks import Published
    from tilewright.emulate.decoder import Decoder
    from tilewright.emulate.instructions import Run
    from tilewright.emulate.registers import Where
    from tilewright.emulate.warp import Warp


@instruction("fence", "membar", visible=True)
def fence(op: Decoder) -> Run:
    """fence.acq_rel, fence.sc, membar: relaxed signals after it publish, relaxed waits before it count."""
    if op.has("proxy") and not op.one_of("alias", "tensormap::generic"):
        raise op.unknown()
    if op.has("sync_restrict::shared::cta") or op.has("sync_restrict::shared::cluster"):
        raise op.unknown()

    def run(warp: Warp, where: Where) -> None:
        warp.clocks.fence(where)

    return run


@instruction("fence.mbarrier_init", visible=True)
def fence_init(op: Decoder) -> Run:
    """Relaxed signals after it publish this thread's mbarrier initialisations."""
    del op

    def run(warp: Warp, where: Where) -> None:
        for lane in range(32) if where is True else np.flatnonzero(where).tolist():
            marks = {
                number: time
                for number, time in warp.clocks.outer[lane][SEEN].marks.items()
                if number < 0  # an initialisation: `init_mark`
            }
            only: Published = (Clock({}, marks), *NOTHING[1:])
            before = warp.clocks.released[lane]
            warp.clocks.released[lane] = only if before is None else join_levels(before, only)

    return run


@instruction("fence.proxy.async", visible=True)
def fence_proxy(op: Decoder) -> Run:
    """What this thread knows, copies and matrix instructions issued after it see as well."""
    del op

    def run(warp: Warp, where: Where) -> None:
        warp.clocks.raise_level(where, SEEN, HALF, ASYNC)

    return run


@instruction("fence.proxy.async::generic", visible=True)
def fence_proxy_half(op: Decoder) -> Run:
    """One direction: .release by those who used memory, .acquire by whoever issues the copy."""
    releases = op.has("release")

    def run(warp: Warp, where: Where) -> None:
        if releases:
            warp.clocks.raise_level(where, SEEN, HALF)
        else:
            warp.clocks.raise_level(where, HALF, ASYNC)

    return run
