"""cp.async.bulk.tensor: boxes of tensors between global and shared memory, by the maps of `tensor_map`.

A load reads at any time after it is issued, then writes and completes its bytes on the barrier of each target CTA
apart. With multicast only the offset of the barrier counts (seen on an H200); without `.cta_group::2` it is the
target's own barrier, with it that of the pair's member whose rank has the parity of the barrier's CTA. A store reads
shared memory, then changes global memory; its bulk group can be waited for at either.

Left out: im2col modes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tilewright.emulate.copy_groups import GroupCopy
from tilewright.emulate.events import AsyncEvent
from tilewright.emulate.faults import Fault
from tilewright.emulate.instructions import instruction
from tilewright.emulate.instructions.atomics import combine
from tilewright.emulate.instructions.cluster import complete_at
from tilewright.emulate.instructions.copies import groups_of, masked_ctas
from tilewright.emulate.instructions.loads import space_of
from tilewright.emulate.instructions.mbarriers import place_of_barrier
from tilewright.emulate.operations import Operation, new_event
from tilewright.emulate.registers import S32, U16, U32, U64
from tilewright.emulate.tensor_map import (
    MAP_ALIGNMENT,
    MAP_BYTES,
    UNIT_BYTES,
    TensorMap,
)
from tilewright.emulate.tensor_map_fields import replace_field
from tilewright.emulate.told import told
from tilewright.ptx.nodes import Vector

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tilewright.emulate.cluster import Cta
    from tilewright.emulate.decoder import Address, Decoder
    from tilewright.emulate.instructions import Run
    from tilewright.emulate.memory import Segment
    from tilewright.emulate.registers import Array, Where
    from tilewright.emulate.tensor_map import Transfer
    from tilewright.emulate.warp import Warp
    from tilewright.ptx.flow import Op
    from tilewright.ptx.nodes import Memory

MODES = ("im2col", "im2col_no_offs", "im2col::w", "im2col::w::128")
OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")

decode_map = lru_cache(maxsize=64)(TensorMap.decode)


class _Tensor(NamedTuple):
    """`[map, {coordinates}]` of an instruction."""

    address: Address
    coordinates: list[int]
    rows: bool

    @classmethod
    def of(cls, op: Decoder, operand: Memory) -> _Tensor:
        """As decoded."""
        if any(op.has(mode) for mode in MODES):
            raise op.unknown()
        vector = operand.parts[1]
        if not isinstance(vector, Vector):
            raise op.unknown(f"coordinates like this in `{op.op.name}`")
        coordinates = [op.source(each, S32) for each in vector.elements]
        rows = bool(op.one_of("tile::gather4", "tile::scatter4"))
        return cls(op.address(operand), coordinates, rows)

    def map(self, warp: Warp, lane: int, op: Op) -> TensorMap:
        """The map that a lane names."""
        address = int(warp.addresses(self.address, np.array([lane]))[0])
        return map_at(warp, lane, op, address)

    def transfer(
        self, tensor_map: TensorMap, warp: Warp, lane: int, shared: int, *, is_store: bool
    ) -> Transfer:
        """What a lane's copy moves."""
        at = [int(warp.rows[S32][row][lane]) for row in self.coordinates]
        if self.rows:
            return tensor_map.gather_rows(at, shared, is_store=is_store)
        return tensor_map.transfer(at, shared, is_store=is_store)


def map_at(warp: Warp, lane: int, op: Op, address: int) -> TensorMap:
    """The tensor map at a generic address, which reads pass the race detector's order.

    Raises:
        Fault: no map, or in memory where TMA does not look.
    """
    if address % MAP_ALIGNMENT:
        raise Fault(
            "TMA-11", f"tensor map at {address:#x}, which is no multiple of {MAP_ALIGNMENT}"
        )
    halves = []
    for half in (address, address + MAP_BYTES // 2):
        places = warp.machine.accesses.places(
            warp, op, "", np.array([half], np.int64), MAP_BYTES // 2, np.array([lane])
        )
        place = next(iter(places))
        if place.segment.cta is not None or place.segment is warp.local_segment:
            raise Fault(
                "TMA-11",
                f"tensor map in {place.segment.name}; allowed: parameters, constants, global memory",
            )
        at = int(place.offsets[0])
        halves.append(place.segment.data[at : at + MAP_BYTES // 2].tobytes())
    return decode_map(b"".join(halves))


class _Box:
    """One copy that a lane issues: its elements in global and in shared memory."""

    def __init__(
        self,
        warp: Warp,
        lane: int,
        op: Op,
        tensor: _Tensor,
        shared: tuple[str, int],
        *,
        is_store: bool = False,
    ) -> None:
        self.warp, self.lane, self.op = warp, lane, op
        self.machine = warp.machine
        self.who = warp.thread_name(lane)
        space, address = shared
        with told(self.machine, op, self.who):
            self.map = tensor.map(warp, lane, op)
            self.moved = tensor.transfer(self.map, warp, lane, address, is_store=is_store)
        self.size = self.map.element_bytes
        lanes, ends = np.array([lane]), (address, address + self.moved.room_bytes - 1)
        places = [
            next(iter(self.machine.accesses.targets(warp, op, space, np.array([end]), 1, lanes)))
            for end in ends
        ]
        repeat = self.map.mode.repeat_bytes
        if address % repeat:
            self.machine.report(
                "TMA-02",
                f"{self.who}: shared address {address:#x} of a box with swizzle {self.map.swizzle} is no multiple of "
                f"{repeat}, so that its first row is not the pattern's",
                op,
            )
        self.owner = places[0].segment.cta
        self.offset = int(places[0].offsets[0])
        self.in_shared = self.moved.in_shared - (address - self.offset)
        self.tensor, self.start = self._tensor()

    def _tensor(self) -> tuple[Segment, int]:
        """The buffer that holds the tensor, and the offset of its first element."""
        inside = self.moved.in_global[self.moved.inside]
        address = self.map.address
        accesses = self.machine.accesses
        first = address + (int(inside.min()) if inside.size else 0)
        last = address + (int(inside.max()) + self.size - 1 if inside.size else 0)
        lanes = np.array([self.lane])
        segments = []
        for end in (first, last):
            at = np.array([end], np.int64)
            place = next(iter(accesses.targets(self.warp, self.op, "global", at, 1, lanes)))
            segments.append(place.segment)
        if segments[0] is not segments[1]:
            self.machine.stop(
                "OOB", f"{self.who}: the tensor of a map reaches beyond {segments[0].name}", self.op
            )
        return segments[0], address - segments[0].base

    def _shared_bytes(self) -> slice | NDArray[np.int64]:
        """The bytes of the box in shared memory: a run, but for padded rows and a swizzle that moves some out of it."""
        is_dense = self.moved.room_bytes == self.moved.size_bytes
        if is_dense and (not self.map.mode.bits or self.moved.size_bytes % 128 == 0):
            return slice(self.offset, self.offset + self.moved.size_bytes)
        return (self.in_shared[:, None] + np.arange(self.size)).ravel()

    def _global_bytes(self) -> NDArray[np.int64]:
        inside = self.moved.in_global[self.moved.inside] + self.start
        return (inside[:, None] + np.arange(self.size)).ravel()

    # --- loads --------------------------------------------------------------------------------------------------------

    def read_tensor(self, event: AsyncEvent) -> Array:
        """The elements, those outside filled."""
        accesses = self.machine.accesses
        if self.moved.inside.any():
            accesses.note_read(event, self.tensor, self._global_bytes())
        return self.map.load(self.tensor.view(self.size), self.moved, self.start)

    def write_shared(self, event: AsyncEvent, cta: Cta, elements: Array) -> None:
        """The elements into one CTA's shared memory."""
        view, places = cta.shared.view(self.size), self.in_shared // self.size
        silent = np.array_equal(view[places], elements)
        self.machine.accesses.note_write(event, cta.shared, self._shared_bytes(), silent=silent)
        view[places] = elements

    def load(self, space: str, barrier: int, ranks: int | None, *, pairs: bool) -> None:
        """Begin a load: one operation for each target."""
        warp, op = self.warp, self.op
        there = place_of_barrier(warp, op, space, barrier, self.lane)
        signal = int(there.offsets[0])
        what = "multicast tensor copy" if ranks is not None else "tensor copy"
        for cta in self._targets(ranks):
            signalled = self._signalled(cta, there.segment.cta, ranks, pairs=pairs)
            event = new_event(warp, self.lane, op, what)
            event.is_remote = cta is not warp.cta
            elements: list[Array] = []

            def read(event: AsyncEvent = event, elements: list[Array] = elements) -> None:
                elements.append(self.read_tensor(event))

            def write(
                event: AsyncEvent = event,
                elements: list[Array] = elements,
                cta: Cta = cta,
                signalled: Cta = signalled,
            ) -> None:
                self.write_shared(event, cta, elements[0])
                complete_at(event, signalled.shared, signal, self.moved.size_bytes)

            Operation(self.machine, event, [read, write], {cta: 0, signalled: 0}).start()

    def _targets(self, ranks: int | None) -> list[Cta]:
        if ranks is not None:
            return masked_ctas(self.warp, self.lane, self.op, ranks)
        if self.owner is None:
            self.machine.stop("TMA-01", f"{self.who}: the target is not shared memory", self.op)
        return [self.owner]

    def _signalled(
        self, cta: Cta, barrier_cta: Cta | None, ranks: int | None, *, pairs: bool
    ) -> Cta:
        """The CTA whose barrier the bytes of one target complete on."""
        rank = barrier_cta.rank if barrier_cta is not None else cta.rank
        if pairs:
            chosen = cta.rank & ~1 | rank & 1
            if ranks is None and chosen != rank:
                self.machine.stop(
                    "TMA-12",
                    f"{self.who}: the mbarrier is in CTA {rank}, which is neither the target nor its peer",
                    self.op,
                )
            return cta.cluster.ctas[chosen]
        if rank != (self.owner.rank if self.owner is not None else rank):
            message = f"{self.who}: the mbarrier is in CTA {rank}, the target in another, without .cta_group::2"
            if ranks is None:
                in_pair = rank ^ 1 == cta.rank
                self.machine.stop("TMA-12" if in_pair else "TMA-06", message, self.op)
            self.machine.report(
                "TMA-06",
                f"{message}: only its offset counts on an H200, and the manual does not say so",
                self.op,
                severity="warning",
            )
        return cta

    # --- stores -------------------------------------------------------------------------------------------------------

    def check_row_ends(self) -> None:
        """Warn of a store that reaches past the rows of the tensor."""
        if self.moved.beyond:
            self.machine.report(
                "OOB",
                f"{self.who}: {self.moved.beyond} elements are stored past the ends of rows of {self.map.dims[0]} elements "
                f"({self.map.dims[0] * self.size} bytes): an H200 clips the rows of a store at multiples of {UNIT_BYTES} bytes",
                self.op,
                severity="warning",
            )

    def store(self, function: Callable[[Array, Array], Array] | None) -> None:
        """Begin a store or a reduction, in the thread's bulk group."""
        if self.owner is not self.warp.cta:
            self.machine.stop(
                "TMA-15", f"{self.who} stores from shared memory of another CTA", self.op
            )
        reading = new_event(self.warp, self.lane, self.op, "tensor store")
        writing = AsyncEvent(
            self.op,
            self.warp,
            self.lane,
            reading.issued,
            "tensor store",
            strong=function is not None,
        )
        copy = GroupCopy(groups_of(self.warp, self.lane, "bulk"), reading, writing)
        elements: list[Array] = []

        def read() -> None:
            shared = self.warp.cta.shared
            self.machine.accesses.note_read(reading, shared, self._shared_bytes())
            elements.append(shared.view(self.size)[self.in_shared // self.size])
            self.warp.cta.arrived.append(reading)  # it must be waited for before the CTA leaves
            copy.has_read()

        def write() -> None:
            inside = self.moved.inside
            if inside.any():
                at = (self.moved.in_global[inside] + self.start) // self.size
                view, new = self.tensor.view(self.size), elements[0][inside]
                if function is not None:
                    new = function(view[at], new)
                self.machine.accesses.note_write(
                    writing,
                    self.tensor,
                    self._global_bytes(),
                    silent=np.array_equal(view[at], new),
                )
                view[at] = new
            copy.is_done()

        reader = Operation(self.machine, reading, [read], [self.warp.cta])
        writer = Operation(self.machine, writing, [write])
        reader.after_done.append(writer.start)
        reader.start()


@instruction("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor", visible=True)
def tensor_copy(op: Decoder) -> Run:
    """A load with a barrier, or a store or reduction in a bulk group."""
    if op.has("bulk_group"):
        return _store(op)
    to, signal = op.address(op.operands[0]), op.address(op.operands[2])
    tensor = _Tensor.of(op, op.operands[1])  # type: ignore[arg-type]
    space = op.spaces[0]
    mask = op.source(op.operands[3], U16) if op.has("multicast::cluster") else None
    pairs, place = op.has("cta_group::2"), op.op

    def run(warp: Warp, where: Where) -> None:
        for lane in warp.lanes(where).tolist():
            one = np.array([lane])
            box = _Box(warp, lane, place, tensor, (space, int(warp.addresses(to, one)[0])))
            ranks = int(warp.rows[U16][mask][lane]) if mask is not None else None
            box.load(space, int(warp.addresses(signal, one)[0]), ranks, pairs=pairs)

    return run


def _store(op: Decoder) -> Run:
    tensor = _Tensor.of(op, op.operands[0])  # type: ignore[arg-type]
    of = op.address(op.operands[1])
    name = op.one_of(*OPERATIONS)
    place = op.op

    def run(warp: Warp, where: Where) -> None:
        for lane in warp.lanes(where).tolist():
            at = int(warp.addresses(of, np.array([lane]))[0])
            box = _Box(warp, lane, place, tensor, ("shared", at), is_store=True)
            box.check_row_ends()
            dtype = box.map.dtype.removesuffix("_ftz").replace("tf32", "f32")
            box.store(combine(name, dtype) if name else None)

    return run


@instruction("cp.async.bulk.prefetch.tensor", "prefetch.tensormap")
def tensor_prefetch(op: Decoder) -> Run:
    """Changes nothing; the map must be one."""
    address = op.address(op.operands[0])
    place = op.op

    def run(warp: Warp, where: Where) -> None:
        for lane in warp.lanes(where).tolist():
            with told(warp.machine, place, warp.thread_name(lane)):
                map_at(warp, lane, place, int(warp.addresses(address, np.array([lane]))[0]))

    return run


# --- maps made by the kernel ------------------------------------------------------------------------------------------

_HALF = (8, MAP_BYTES // 16)
"""Elements of half a map: maps may lie at multiples of 64."""


def _load_map(warp: Warp, op: Op, space: str, address: int, lane: int) -> bytes:
    lanes = np.array([lane])
    halves = [
        warp.machine.accesses.load(warp, op, space, np.array([at], np.int64), _HALF, lanes)
        for at in (address, address + MAP_BYTES // 2)
    ]
    return np.concatenate(halves, axis=1).tobytes()


def _store_map(warp: Warp, op: Op, space: str, address: int, lane: int, encoded: bytes) -> None:
    words = np.frombuffer(encoded, np.uint64).reshape(2, 1, -1)
    for at, half in zip((address, address + MAP_BYTES // 2), words, strict=True):
        warp.machine.accesses.store(
            warp, op, space, np.array([at], np.int64), half, np.array([lane])
        )


@instruction("tensormap.replace", visible=True)
def tensormap_replace(op: Decoder) -> Run:
    """One field of a map that lies in shared or global memory."""
    field = op.modifiers[2]
    kind = U64 if op.type == "b64" else U32
    address = op.address(op.operands[0])
    ordinal = op.immediate(op.operands[1]) if len(op.operands) == 3 else 0
    value = op.source(op.operands[-1], kind)
    space, place = space_of(op), op.op

    def run(warp: Warp, where: Where) -> None:
        for lane in warp.lanes(where).tolist():
            at = int(warp.addresses(address, np.array([lane]))[0])
            before = _load_map(warp, place, space, at, lane)
            with told(warp.machine, place, warp.thread_name(lane)):
                changed = replace_field(before, field, int(warp.rows[kind][value][lane]), ordinal)
            _store_map(warp, place, space, at, lane, changed)

    return run


@instruction("tensormap.cp_fenceproxy", visible=True)
def tensormap_copy(op: Decoder) -> Run:
    """A warp's copy of a map from shared to global memory, with a fence."""
    to, of = op.address(op.operands[0]), op.address(op.operands[1])
    to_space, of_space = op.spaces[:2]
    place = op.op

    def run(warp: Warp, where: Where) -> None:
        lane = int(warp.lanes(where)[0])
        one = np.array([lane])
        source, target = (int(warp.addresses(each, one)[0]) for each in (of, to))
        encoded = _load_map(warp, place, of_space, source, lane)
        _store_map(warp, place, to_space, target, lane, encoded)
        warp.clocks.fence(where)

    return run
