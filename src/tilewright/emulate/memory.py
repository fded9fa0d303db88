"""Memory: segments of bytes, windows of addresses, and where the bytes of an access lie.

Global memory is made of numpy arrays, each with an address of its own and nothing between them, so that an
access beyond the end of one is found. A shared address is rank << 24 | offset: the window of one CTA is part
of its cluster's. Generic addresses add the base of a window (`layout`).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tilewright.emulate.layout import (
    CONST_WINDOW,
    LOCAL_WINDOW,
    MODULE_BASE,
    PARAM_WINDOW,
    RANK_SHIFT,
    SHARED_WINDOW,
)
from tilewright.emulate.shadow import Shadow
from tilewright.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from tilewright.emulate.clocks import Published
    from tilewright.emulate.cluster import Cta
    from tilewright.emulate.mbarrier import Mbarrier
    from tilewright.emulate.registers import Array
    from tilewright.emulate.warp import Warp

PREREQUISITE = ("prerequisite",)
"""The mark that griddepcontrol.wait makes known."""

BUFFER_BASE = 0x7F00_0000_0000
BUFFER_ALIGN = 1 << 12
RANK_MASK = (1 << RANK_SHIFT) - 1


class Segment:
    """A run of bytes with addresses of its own.

    Attributes:
        name: for messages.
        base: address of the first byte in its space.
        data: the bytes.
        cta: the CTA whose shared memory it is; None otherwise.
        start: offsets below it are not the kernel's (shared memory of the system).
        published: what strong stores and atomics left for whoever reads them with acquire, by offset.
        watched: whether others can reach it, so that accesses may race.
        barriers: live mbarrier objects by offset.
    """

    def __init__(
        self,
        name: str,
        base: int,
        data: Array,
        cta: Cta | None = None,
        start: int = 0,
        *,
        watched: bool = True,
    ) -> None:
        self.name = name
        self.base = base
        self.data = data
        self.nbytes = data.size
        self.cta = cta
        self.start = start
        self.watched = watched
        self.published: dict[int, Published] = {}
        self.barriers: dict[int, Mbarrier] = {}
        self.under_barrier: Array | None = None
        self._views: dict[int, Array] = {1: data}
        self._shadow: Shadow | None = None

    @property
    def shadow(self) -> Shadow:
        """Who touched what, made when it is first asked for."""
        if self._shadow is None:
            self._shadow = Shadow(self.nbytes)
        return self._shadow

    def view(self, itemsize: int) -> Array:
        """The bytes as unsigned numbers of 1, 2, 4 or 8."""
        found = self._views.get(itemsize)
        if found is None:
            whole = self.data[: self.nbytes // itemsize * itemsize]
            found = self._views[itemsize] = whole.view(f"u{itemsize}")
        return found

    def describe(self, offset: int) -> str:
        """For messages: "out+0x40"."""
        if self.cta is not None:
            return f"shared memory of {self.cta.who} at {offset:#x}"
        return f"{self.name}+{offset:#x}"


class Buffers:
    """Global memory: numpy arrays under addresses that a kernel can be handed.

    Arrays are used in place. Each begins at a multiple of 4096, with a gap behind it.
    """

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self._bases: list[int] = []
        self._known: dict[int, int] = {}
        self._kept: list[Array] = []
        self._next = BUFFER_BASE

    def address_of(self, array: Array, name: str = "") -> int:
        """The address of an array's first byte; the same array keeps its address.

        Raises:
            BadInput: the array is not contiguous.
        """
        known = self._known.get(id(array))
        if known is not None:
            return known
        if not array.flags.c_contiguous:
            raise BadInput(f"{name or 'a buffer'} is not C-contiguous", given=array.strides)
        base = self._next
        data = array.reshape(-1).view(np.uint8)
        self.segments.append(Segment(name or f"buffer {len(self.segments)}", base, data))
        self._bases.append(base)
        self._known[id(array)] = base
        self._kept.append(array)
        self._next = base + (array.nbytes + 2 * BUFFER_ALIGN - 1) // BUFFER_ALIGN * BUFFER_ALIGN
        return base

    def find(self, address: int) -> Segment | None:
        """The buffer that begins at or last before an address."""
        place = bisect_right(self._bases, address)
        return self.segments[place - 1] if place else None

    def arrays(self) -> list[Array]:
        """The arrays in the order in which they were given an address."""
        return self._kept

    def fresh(self) -> Buffers:
        """The same memory with no history, for another run."""
        other = Buffers()
        other._known, other._kept, other._bases = self._known, self._kept, self._bases
        other._next = self._next
        other.segments = [Segment(s.name, s.base, s.data) for s in self.segments]
        return other


class Place(NamedTuple):
    """Lanes of an access that fall into one segment.

    Attributes:
        offsets: in the segment, a lane each.
        lanes: numbers of the lanes.
    """

    segment: Segment
    offsets: Array
    lanes: Array


class NoSuchAddress(Exception):
    """An address that names nothing: what is wrong with it, and the lane."""

    def __init__(self, what: str, lane: int, rule: str = "OOB") -> None:
        super().__init__(what)
        self.lane = lane
        self.rule = rule


class Spaces:
    """The address spaces that a CTA sees."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.machine = cta.machine

    def places(
        self, space: str, addresses: Array, nbytes: int, lanes: Array, warp: Warp
    ) -> Iterator[Place]:
        """The bytes [address, address + nbytes) of each lane, by segment.

        Args:
            space: as an opcode names it; "" for generic addresses.

        Raises:
            NoSuchAddress: out of bounds, misaligned, or in no window.
        """
        if nbytes > 1 and (addresses & (nbytes - 1)).any():
            lane = int(np.flatnonzero(addresses & (nbytes - 1))[0])
            what = f"address {int(addresses[lane]):#x} is not a multiple of {nbytes}"
            raise NoSuchAddress(what, int(lanes[lane]), "ALIGN")
        if space == "":
            yield from self._generic(addresses, nbytes, lanes, warp)
            return
        if space == "local":
            yield _local_place(warp, addresses, nbytes, lanes)
            return
        keys = self._keys(space, addresses)
        first = int(keys[0])
        if (keys == first).all():
            yield self._place(space, first, addresses, nbytes, lanes)
            return
        for key in np.unique(keys).tolist():
            chosen = keys == key
            yield self._place(space, key, addresses[chosen], nbytes, lanes[chosen])

    def _generic(self, addresses: Array, nbytes: int, lanes: Array, warp: Warp) -> Iterator[Place]:
        windows = np.minimum(addresses >> 40, MODULE_BASE >> 40)
        for window in np.unique(windows).tolist():
            chosen = windows == window
            space = _WINDOWS.get(window, "global")
            base = window << 40 if window in _WINDOWS else 0
            yield from self.places(space, addresses[chosen] - base, nbytes, lanes[chosen], warp)

    def _keys(self, space: str, addresses: Array) -> Array:
        """What tells segments apart: the rank, or the buffer's place in the list."""
        if space.startswith("shared"):
            return addresses >> RANK_SHIFT
        if space == "global":
            return np.searchsorted(self.machine.global_bases, addresses, side="right") - 1
        return np.zeros(addresses.shape, np.int64)

    def _place(self, space: str, key: int, addresses: Array, nbytes: int, lanes: Array) -> Place:
        segment = self.segment(space, key, int(addresses[0]), int(lanes[0]))
        offsets = addresses & RANK_MASK if segment.cta is not None else addresses - segment.base
        wrong = (offsets < segment.start) | (offsets + nbytes > segment.nbytes)
        if wrong.any():
            worst = int(np.argmax(wrong))
            raise NoSuchAddress(
                f"{nbytes} bytes at {segment.describe(int(offsets[worst]))} are outside its "
                f"{segment.nbytes - segment.start} bytes",
                int(lanes[worst]),
            )
        return Place(segment, offsets, lanes)

    def segment(self, space: str, key: int, address: int, lane: int) -> Segment:
        """The segment of a space; `key` as `_keys` gives it."""
        if space.startswith("shared"):
            ctas = self.cta.cluster.ctas
            if not 0 <= key < len(ctas):
                what = f"shared address {address:#x} names rank {key} of a cluster of {len(ctas)}"
                raise NoSuchAddress(what, lane, "CLU-06")
            return ctas[key].shared
        if space == "global":
            if key < 0:
                raise NoSuchAddress(f"address {address:#x} is in no buffer", lane)
            return self.machine.global_segments[key]
        if space == "const":
            return self.machine.constants
        if space.startswith("param"):
            return self.machine.parameters
        raise NoSuchAddress(f"address {address:#x} is in no window that can be reached here", lane)


def _local_place(warp: Warp, addresses: Array, nbytes: int, lanes: Array) -> Place:
    """A thread's own memory: each lane has a row of the warp's."""
    row_bytes = warp.local.shape[1]
    wrong = (addresses < 0) | (addresses + nbytes > row_bytes)
    if wrong.any():
        worst = int(np.argmax(wrong))
        what = f"{nbytes} bytes at local address {int(addresses[worst]):#x} are outside {row_bytes}"
        raise NoSuchAddress(what, int(lanes[worst]))
    return Place(warp.local_segment, addresses + lanes * row_bytes, lanes)


_WINDOWS: dict[Hashable, str] = {
    SHARED_WINDOW >> 40: "shared",
    LOCAL_WINDOW >> 40: "local",
    CONST_WINDOW >> 40: "const",
    PARAM_WINDOW >> 40: "param",
}
