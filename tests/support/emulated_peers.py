"""Other people's kernels with the arguments of their own launchers, ready for the emulator.

quack's come from its compiled host code (`toolkit/peers/launched.py`); Triton's and Gluon's launcher passes what
they were called with, tensor maps with their shape and strides, and scratch memory.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from host_tensor_map import address_in, read_host_map
from tilewright.emulate import Buffers, Options, prepare
from tilewright.emulate.explore import vary
from tilewright.emulate.numbers import decode, encode
from tilewright.emulate.tensor_map import MAP_BYTES, TensorMap

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tilewright.emulate import Launch, Outcome

DOC = Path(__file__).parents[2] / "docs" / "emulate_peers.md"
POISON = {"bf16": 0x7FC1, "f16": 0x7E01, "f32": 0x7FC0_0001, "s32": -1, "s64": -1}
STORAGE = {"bf16": np.uint16, "f16": np.uint16, "f32": np.uint32, "s32": np.int32, "s64": np.int64}
OF_TORCH = {"bfloat16": "bf16", "float32": "f32", "int32": "s32", "int64": "s64"}


class Tensor:
    """An array of global memory: bits of a type that numpy may not have. Poisoned until it is set."""

    def __init__(self, dtype: str, *shape: int) -> None:
        self.dtype = dtype
        self.bits = np.full(shape, POISON[dtype], STORAGE[dtype])

    def set(self, values: Any) -> Tensor:
        """Rounded to the type; returns itself."""
        shaped = np.broadcast_to(values, self.bits.shape)
        floats = self.dtype not in {"s32", "s64"}
        self.bits[:] = encode(shaped.astype(np.float32), self.dtype) if floats else shaped
        return self

    @property
    def values(self) -> Any:
        """float64, or the integers."""
        if self.dtype in {"s32", "s64"}:
            return self.bits
        return decode(self.bits, self.dtype).astype(np.float64)


@dataclass(frozen=True)
class Wanted:
    """What a tensor must hold at the end; both bounds 0: these very values, rounded to its type."""

    tensor: Tensor
    values: Any
    rtol: float = 0.0
    atol: float = 0.0
    found: Callable[[Any], Any] = lambda values: values

    def check(self) -> None:
        """Raises AssertionError with the elements that differ."""
        found = self.found(self.tensor.values)
        wanted = self.values
        if not self.rtol and not self.atol:
            shape = self.tensor.bits.shape
            wanted = Tensor(self.tensor.dtype, *shape).set(wanted).values
        np.testing.assert_allclose(found, wanted, rtol=self.rtol, atol=self.atol)


RESIDENT_CLUSTERS = 2
"""Of kernels with cluster launch control, which have more clusters than that."""


@dataclass(frozen=True)
class Peer:
    """A kernel with its launch.

    Attributes:
        tensors: that it was given, in order.
        wanted: what it must compute.
    """

    launch: Launch
    tensors: Sequence[Tensor]
    wanted: Sequence[Wanted]

    def run(self, seed: int, *, elects_first: bool = False) -> Outcome:
        """One schedule; where the kernel asks for work, the seed also says which requests are declined early."""
        ranks, clusters = math.prod(self.launch.cluster), math.prod(self.launch.grid)
        resident, declined = None, frozenset[int]()
        steps = self.launch.program.steps
        if any(step.op.node.opcode.root == "clusterlaunchcontrol" for step in steps):
            resident, declined = vary(seed, clusters // ranks, RESIDENT_CLUSTERS, None)
        options = Options(
            resident=resident,
            decline_at=declined,
            elects_first=elects_first,
            findings_max=1_000_000,
        )
        return self.launch.run(self.launch.strategy(seed), options)

    def check(self) -> None:
        """Raises AssertionError with the elements that differ."""
        for each in self.wanted:
            each.check()


def read_peer(folder: Path, name: str) -> tuple[str, Any]:
    """PTX and launch of a kernel of `compile_peers`; the launch is None where it could not be recorded."""
    launch = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return (folder / f"{name}.ptx").read_text(encoding="utf-8"), launch


# --- CuTe DSL ----------------------------------------------------------------------------------------


def recorded(
    folder: Path, name: str, fill: Callable[[dict[str, Tensor]], Sequence[Wanted]]
) -> Peer:
    """A kernel whose launch was recorded.

    Args:
        fill: sets the inputs among the tensors of the launch, and says what comes out.
    """
    ptx, facts = read_peer(folder, name)
    given = facts["tensors"]
    tensors = {key: Tensor(OF_TORCH[each["dtype"]], *each["shape"]) for key, each in given.items()}
    wanted = fill(tensors)
    buffers = Buffers()
    moved = {
        each["address"]: buffers.address_of(tensors[key].bits, key) for key, each in given.items()
    }
    launch = prepare(
        ptx,
        grid=facts["grid"],
        block=facts["block"],
        cluster=facts["cluster"],
        args=[relocated(bytes.fromhex(each), moved) for each in facts["parameters"]],
        smem_bytes=facts["smem_bytes"],
        buffers=buffers,
    )
    return Peer(launch, tuple(tensors.values()), wanted)


def relocated(parameter: bytes, moved: dict[int, int]) -> bytes:
    """A parameter with the addresses that the emulator gave the tensors instead of the host's."""
    if len(parameter) == MAP_BYTES:
        return read_host_map(parameter, moved[address_in(parameter)]).encode()
    changed = bytearray(parameter)
    for at in range(0, len(parameter) - 7, 8):
        word = int.from_bytes(parameter[at : at + 8], "little")
        changed[at : at + 8] = moved.get(word, word).to_bytes(8, "little")
    return bytes(changed)


# --- Triton and Gluon --------------------------------------------------------------------------------

SWIZZLES = ("none", "32B", "64B", "128B")
"""As cuTensorMapEncodeTiled numbers them."""


@dataclass(frozen=True)
class Described:
    """A tensor that a kernel takes by descriptor."""

    tensor: Tensor


def called(
    folder: Path, name: str, grid: tuple[int, int], args: Sequence[Any], wanted: Sequence[Wanted]
) -> Peer:
    """A kernel of Triton or Gluon.

    Args:
        grid: programs along x, y.
        args: what is no constant of the kernel: tensors, numbers, `Described` tensors.
    """
    ptx, facts = read_peer(folder, name)
    buffers = Buffers()
    maps = iter(facts["tensordesc_meta"] or ())
    passed: list[Any] = []
    for each in args:
        if isinstance(each, Described):
            passed += described(each.tensor, next(maps), buffers)
        else:
            passed.append(each.bits if isinstance(each, Tensor) else each)
    programs, ctas = grid[0] * grid[1], facts["num_ctas"]
    scratch_bytes = facts["global_scratch_size"] * programs * ctas
    scratch = np.zeros(scratch_bytes, np.uint8) if scratch_bytes else 0
    launch = prepare(
        ptx,
        grid=(grid[0] * ctas, grid[1]),
        args=[*passed, scratch, 0],
        smem_bytes=facts["shared"],
        buffers=buffers,
    )
    tensors = [each.tensor if isinstance(each, Described) else each for each in args]
    return Peer(launch, [each for each in tensors if isinstance(each, Tensor)], wanted)


def described(tensor: Tensor, facts: dict[str, Any], buffers: Buffers) -> list[Any]:
    """A descriptor as parameters: the map, the shape, the strides in elements."""
    array = tensor.bits
    made = TensorMap.of(
        array,
        buffers.address_of(array),
        facts["block_size"],
        dtype=tensor.dtype,
        swizzle=SWIZZLES[facts["swizzle"]],
    )
    strides = [stride // array.itemsize for stride in array.strides]
    return [made.encode(), *array.shape, *strides]


# --- the document ------------------------------------------------------------------------------------


def listed(doc: str) -> list[str]:
    """The kernels of the document's table of what has run."""
    _, _, table = doc.partition(RAN_HEADER)
    return re.findall(r"^\| (\w+) \|", table.partition("\n\n")[0], re.MULTILINE)


RAN_HEADER = """\
| kernel | grid | cluster | tensors | uses |
|---|---|---|---|---|
"""

FEATURES = {
    "clusterlaunchcontrol.try_cancel": "CLC",
    "multicast::cluster::all": "to the cluster",
    "cp.async.bulk.tensor": "TMA",
    ".multicast::cluster.": "multicast",
    "tensormap.replace": "device-made maps",
    "cp.async.c": "cp.async",
    "tcgen05.mma": "tcgen05",
    "cta_group::2": "pair",
    "wgmma.mma_async": "wgmma",
    "st.async": "st.async",
    "ld.shared::cluster": "DSMEM loads",
    "setmaxnreg": "setmaxnreg",
    "atom.": "atomics",
    "griddepcontrol": "griddepcontrol",
}
"""What in a kernel's PTX is worth a word."""


def render_row(name: str, ptx: str, peer: Peer) -> str:
    """A line of the document's table."""
    grid, cluster = ("x".join(map(str, each)) for each in (peer.launch.grid, peer.launch.cluster))
    tensors = ", ".join(
        f"{each.dtype} {'x'.join(map(str, each.bits.shape))}" for each in peer.tensors
    )
    uses = ", ".join(word for part, word in FEATURES.items() if part in ptx)
    return f"| {name} | {grid} | {cluster} | {tensors} | {uses} |\n"
