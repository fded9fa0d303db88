"""Launch the GEMM of kernel.cu: D[m, n] = alpha * A[m, k] B[n, k]^T + beta * C + bias, by groups.

    gemm = Gemm()            # picks a path for this GPU; says which in .path, why in .why
    d = gemm(a, b)           # torch, CuPy, DLPack, DeviceArray

Needs cuda-core, cuda-bindings and numpy; NVRTC unless `kernel.ARCH.cubin` lies beside this file. All
numbers come from launch.json. `python launcher.py` says what would run here.
"""

from __future__ import annotations

import struct
import sys
from typing import Any, NamedTuple

import numpy as np
from arrays import ALIGNMENT, DeviceArray, LaunchError, check_array, empty_like, size_of, view
from driver import TENSOR_MAP_BYTES
from paths import Json, Kernel, Launch, Place

EXTENT_MAX = 2**31 - 1  # the kernel counts with 32 bits; TMA takes 2^32
STRIDE_MAX = 2**40  # bytes: cuTensorMapEncodeTiled


class Shape(NamedTuple):
    """Extents of the problem; the ragged one is the sum over the groups."""

    m: int
    n: int
    k: int
    groups: int


def cluster_tile(path: Json) -> tuple[int, int]:
    """Rows and columns of the kernel's output that a cluster does."""
    rows, columns = (int(path["cta_tile"][i] * path["cluster_shape"][i]) for i in (0, 1))
    return rows, columns


def count_tiles(path: Json, shape: Shape, counts: list[int] | None = None) -> int:
    """Cluster tiles; the most there may be when `counts` of a ragged problem are known on the GPU only."""
    rows, columns = cluster_tile(path)
    m, n = (shape.n, shape.m) if path["swap_ab"] else (shape.m, shape.n)
    if path["ragged"] in {"none", "k"}:
        return -(-m // rows) * -(-n // columns) * shape.groups
    step, across = (rows, -(-n // columns)) if path["ragged"] == "m" else (columns, -(-m // rows))
    if counts is not None:
        return across * sum(-(-count // step) for count in counts)
    return across * ((shape.m + min(shape.groups, shape.m) * (step - 1)) // step)


def check_strides(path: Json, shape: Shape, types: dict[str, str]) -> None:
    """Refuse rows that TMA, or the portable kernel's 16-byte copies, cannot take.

    Raises:
        LaunchError: with the padding that works.
    """
    rows = {"a": (shape.m, shape.k), "b": (shape.n, shape.k)}
    if path["store_by_tma"]:
        rows["d"] = (shape.m, shape.n)
    for name, (count, columns) in rows.items():
        size = size_of(types[name])
        if columns * size % ALIGNMENT:
            padded = -(-columns * size // ALIGNMENT) * ALIGNMENT // size
            raise LaunchError(
                f"{name.upper()} has rows of {columns * size} bytes; this kernel takes multiples of {ALIGNMENT}: "
                f"pad rows to {padded} elements"
            )
        if count * columns * size >= STRIDE_MAX:
            raise LaunchError(
                f"{name.upper()} has {count * columns * size} bytes a group; TMA takes less than 2^40"
            )


def tensor_maps(
    path: Json, shape: Shape, pointers: dict[str, int], types: dict[str, str]
) -> list[Json]:
    """What cuTensorMapEncodeTiled is told for a, b and D of the kernel; nothing for one that is not read."""
    maps: list[Json] = []
    for name in ("a", "b", "d"):
        given = path["maps"].get(name)
        if given is None:
            maps.append({})
            continue
        operand = {"a": "b", "b": "a", "d": "d"}[name] if path["swap_ab"] else name
        rows = shape.n if operand == "b" else shape.m
        columns = shape.n if operand == "d" else shape.k
        # a problem ragged along k may have no k at all: its tiles are zeros and the map is not used
        row_bytes = columns * size_of(types[operand]) or ALIGNMENT
        dims = [max(columns, 1), rows, shape.groups if given["groups"] else 1]
        strides = [row_bytes, rows * row_bytes]
        maps.append(
            {"dtype": types[operand], "pointer": pointers[operand] or pointers["d"], "dims": dims}
            | {"strides": strides, "box": given["box"], "swizzle_bytes": given["swizzle_bytes"]}
        )
    return maps


def pack_arguments(
    path: Json, shape: Shape, maps: list[bytes], pointers: dict[str, int], alpha: float, beta: float
) -> bytes:
    """`GemmArguments` of kernel.cu."""
    swap, ragged = path["swap_ab"], path["ragged"]
    m, n = (shape.n, shape.m) if swap else (shape.m, shape.n)
    a, b = (pointers["b"], pointers["a"]) if swap else (pointers["a"], pointers["b"])
    tail = struct.pack(
        "<5Q2q4i2f2Q4q",
        *(pointers.get(name, 0) for name in ("d", "c", "bias", "counts", "work_counter")),
        shape.n,  # row and group stride of D
        0 if ragged in {"m", "n"} else shape.m * shape.n,
        *(m, n, shape.k, shape.groups, alpha, beta, a, b),
        *(shape.k, shape.k),  # row strides of the kernel's a and b
        0 if ragged in {"m", "k"} else m * shape.k,
        0 if ragged in {"n", "k"} else n * shape.k,
    )
    packed = b"".join(maps) + tail
    return packed + bytes(-len(packed) % 64)


def find_shape(
    constants: Json, a: tuple[int, ...], b: tuple[int, ...], groups: int | None
) -> Shape:
    """Extents from the shapes of A and B.

    Args:
        groups: of a ragged problem.
    """
    ragged = constants["problem"]["ragged"]
    batched = ragged == "none" and len(a) == 3
    ranks = {"none": (3, 3) if batched else (2, 2), "m": (2, 3), "k": (2, 2)}[ragged]
    if (len(a), len(b)) != ranks:
        raise LaunchError(
            f"A has {len(a)} axes and B {len(b)}; "
            + {
                "none": "[m, k] and [n, k] are needed, or [batch, m, k] and [batch, n, k]",
                "m": "[sum of counts, k] and [groups, n, k] are needed",
                "k": "[m, sum of counts] and [n, sum of counts] are needed",
            }[ragged]
        )
    count = a[0] if batched else 1 if ragged == "none" else int(groups or 0)
    shape = Shape(a[-2], b[-2], a[-1], count)
    for what, extent in shape._asdict().items():
        if extent > EXTENT_MAX:
            raise LaunchError(f"{what} is {extent}; the kernel counts to {EXTENT_MAX}")
    if ragged != "k" and not shape.k and shape.m and shape.n:
        raise LaunchError("k is 0: there is nothing to multiply")
    if count > constants["max_groups"] and ragged != "none":
        most = constants["max_groups"]
        raise LaunchError(
            f"{count} groups; the kernel was compiled for {most}. Emit again with as many counts"
        )
    return shape


def array_shapes(shape: Shape, ragged: str, *, batched: bool) -> dict[str, tuple[int, ...]]:
    """Shapes of A, B and D."""
    m, n, k, groups = shape
    lead = (groups,)
    return {
        "a": (*lead * batched, m, k),
        "b": (*lead * (batched or ragged == "m"), n, k),
        "d": (*lead * (batched or ragged == "k"), m, n),
    }


class Gemm(Kernel):
    """The GEMM on one GPU."""

    def place(self, shape: Shape, counts: list[int] | None = None) -> Place:
        """What a launch of this shape would be."""
        return self.place_tiles(count_tiles(self.numbers, shape, counts))

    def bind(
        self, a: Any, b: Any, out: Any = None, *, c: Any = None, bias: Any = None, counts: Any = None,
        alpha: float = 1.0, beta: float = 0.0, stream: int = 0,
    ) -> Launch:  # fmt: skip
        """Check everything and prepare the launch.

        Args:
            a, b: [m, k] and [n, k], with a leading batch axis if there is one. Ragged along m: [rows, k] and
                [groups, n, k]; along k: [m, columns] and [n, columns].
            out: D; allocated unless given.
            counts: of a ragged problem: a list, which is checked and copied, or an int32 array on the GPU,
                which costs neither.
        """
        problem = self.constants["problem"]
        seen = {"a": view("A", a), "b": view("B", b)}
        on_host, counts, groups = self._counts(counts, problem["ragged"])
        shape = find_shape(self.constants, seen["a"].shape, seen["b"].shape, groups)
        shapes = array_shapes(shape, problem["ragged"], batched=len(seen["a"].shape) == 3)
        types = {"a": problem["dtype"], "b": problem["dtype"], "d": problem["out_dtype"]}
        if on_host is not None:
            check_counts(self.numbers, shape, on_host, problem["ragged"])
        where = self.place(shape, on_host)
        if out is None:
            out = empty_like(self.cuda, a, shapes["d"], types["d"])
        seen["d"] = view("D", out)
        pointers = {
            name: check_array(
                name.upper(), seen[name], shapes[name], types[name], self.cuda.device_id
            )
            for name in seen
        }
        pointers |= self._added(c, bias, counts, shapes["d"], shape)
        argument = b""
        if where.tiles:
            if self.numbers["scheduler"] == "dynamic_atomic":
                pointers["work_counter"] = self.counter(stream)
            check_strides(self.numbers, shape, types)
            maps = [bytes(TENSOR_MAP_BYTES)] * 3
            if self.numbers["uses_tma"]:
                told = tensor_maps(self.numbers, shape, pointers, types)
                maps = [self.cuda.encode(**each) if each else maps[0] for each in told]
            argument = pack_arguments(self.numbers, shape, maps, pointers, alpha, beta)
        return Launch(self, where, argument, out, (a, b, c, bias, counts))

    def __call__(self, a: Any, b: Any, out: Any = None, *, stream: int = 0, **given: Any) -> Any:
        """`bind`, launched once on `stream` (a CUstream as an integer): D."""
        return self.bind(a, b, out, stream=stream, **given)(stream)

    def _added(
        self, c: Any, bias: Any, counts: Any, of_d: tuple[int, ...], shape: Shape
    ) -> dict[str, int]:
        """Addresses of what the epilogue adds and of the counts, as far as this kernel has them."""
        pointers = {}
        for name, array, wanted, dtype in (
            ("c", c, of_d, self.constants["problem"]["out_dtype"]),
            ("bias", bias, (shape.n,), "fp32"),
        ):
            has = self.constants[f"has_{name}"]
            if has != (array is not None):
                verb = "reads" if has else "was emitted without"
                raise LaunchError(
                    f"this kernel {verb} {name}: pass it, or emit again with or without --{name}"
                )
            if has:
                seen = view(name, array)
                pointers[name] = check_array(name, seen, wanted, dtype, self.cuda.device_id)
        if counts is not None:
            seen, wanted = view("counts", counts), (shape.groups,)
            pointers["counts"] = check_array("counts", seen, wanted, "int32", self.cuda.device_id)
        return pointers

    def _counts(self, counts: Any, ragged: str) -> tuple[list[int] | None, Any, int | None]:
        """Counts on the host where they are there, on the GPU, and how many."""
        if (counts is None) != (ragged == "none"):
            raise LaunchError(
                "this kernel's groups need counts"
                if counts is None
                else "this kernel has no groups"
            )
        if counts is None:
            return None, None, None
        if isinstance(counts, list | tuple | np.ndarray):
            on_host = [int(count) for count in counts]
            array = DeviceArray.of(self.cuda, np.asarray(on_host, np.int32), "int32")
            return on_host, array, len(on_host)
        return None, counts, view("counts", counts).shape[0]


def check_counts(path: Json, shape: Shape, counts: list[int], ragged: str) -> None:
    """Counts that add up to the ragged extent; along k in whole instructions, which else reach into the next."""
    total, step = (shape.m, 1) if ragged == "m" else (shape.k, path["k_step"])
    if sum(counts) != total or min(counts, default=0) < 0:
        raise LaunchError(f"counts add up to {sum(counts)}; the arrays hold {total} along {ragged}")
    for group, count in enumerate(counts):
        if count % step:
            raise LaunchError(
                f"counts[{group}] = {count}; along k one instruction takes {step}: pad to that"
            )


def main() -> int:
    """Say what would run here."""
    try:
        gemm = Gemm()
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    problem = gemm.constants["problem"]
    shape = Shape(*(problem[name] for name in ("m", "n", "k", "groups")))
    print(gemm.describe(gemm.place(shape, problem["counts"] or None)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
