"""TMA: boxes of one to five dimensions, edges, strides, swizzles, multicast, stores and reductions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from micro.case import CLUSTER_SYNC, INIT, Case, TensorBox, once, wait

if TYPE_CHECKING:
    from collections.abc import Sequence

    from micro.case import Array, Expected

THREADS = 128
SHARED = ".shared .align 1024 .b8 s[{}]; .shared .align 8 .b64 bar[4];\n.reg .b32 s0, b0; mov.u32 s0, s; mov.u32 b0, bar;\n"
SIZES = {"uint8": 1, "uint16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "tfloat32": 4}  # fmt: skip
START = once(f"mbarrier.init.shared::cta.b64 [b0], 1; {INIT}") + "bar.sync 0;\n"


def box_bytes(box: TensorBox) -> int:
    """Of shared memory that one copy fills; the first step is ignored, says cuTensorMapEncodeTiled."""
    steps = (1, *box.steps[1:]) if box.steps else (1,) * len(box.box)
    return (
        int(np.prod([-(-b // s) for b, s in zip(box.box, steps, strict=True)])) * SIZES[box.dtype]
    )


def room_bytes(box: TensorBox) -> int:
    """Of shared memory that a box lies in: rows shorter than the swizzle's span are padded to it."""
    row_bytes = box.box[0] * SIZES[box.dtype]
    span_bytes = 0 if box.swizzle == "none" else int(box.swizzle.removesuffix("B"))
    return box_bytes(box) // row_bytes * max(row_bytes, span_bytes)


def dense(
    dtype: str, dims: tuple[int, ...], box: tuple[int, ...], *, pad: int = 0, **options: object
) -> TensorBox:
    """The map of input 0, its rows padded by `pad` bytes."""
    strides, size = [], dims[0] * SIZES[dtype] + pad
    for extent in dims[1:]:
        strides.append(size)
        size *= extent
    return TensorBox(0, dtype, dims, tuple(strides), box, **options)  # type: ignore[arg-type]


def _bytes(box: TensorBox) -> int:
    if len(box.dims) == 1:
        return box.dims[0] * SIZES[box.dtype]
    return box.strides_bytes[-1] * box.dims[-1]


_SPECIAL_32 = [0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC01234, 0x7F800001, 0x7F7FFFFF, 0x7F7FF000, 0x80000001, 0x00001000, 0x00000FFF, 0x007FFFFF]  # fmt: skip


def _tensor(box: TensorBox):  # type: ignore[no-untyped-def]  # noqa: ANN202
    """Random bytes; floats are finite numbers, so that no NaN's bits matter."""

    def inputs(rng: np.random.Generator) -> list[np.ndarray]:
        size = _bytes(box)
        if (
            box.dtype == "tfloat32"
        ):  # halfway cases of the 10 bits that are kept, infinities, NaNs, subnormals
            bits = rng.standard_normal(size // 4).astype(np.float32).view(np.uint32)
            bits[1::4] = bits[1::4] & 0xFFFFE000 | 0x1000
            bits[3::16] = np.resize(np.array(_SPECIAL_32, np.uint32), len(bits[3::16]))
            return [bits]
        if box.dtype == "float32":
            return [rng.standard_normal(size // 4).astype(np.float32)]
        if box.dtype == "float64":
            return [rng.standard_normal(size // 8)]
        if box.dtype in {"float16", "bfloat16"}:
            return [
                rng.integers(0, 0x7C00 if box.dtype == "float16" else 0x7F80, size // 2, np.uint16)
            ]
        return [rng.integers(0, 256, size, np.uint8)]

    return inputs


def _at(coordinates: Sequence[int]) -> str:
    return "{" + ", ".join(str(c) for c in coordinates) + "}"


def load_case(name: str, box: TensorBox, places: Sequence[Sequence[int]], fault: str = "") -> Case:
    """A box at each of the places, one after the other into one buffer whose bytes are the output."""
    nbytes, room, rank = box_bytes(box), room_bytes(box), len(box.dims)
    zeros = "" if room == nbytes else clear(room) + "fence.proxy.async;\n"
    parts = [SHARED.format(-(-room // 1024) * 1024), zeros, START]
    for i, place in enumerate(places):
        parts.append(
            once(
                f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [b0], {nbytes};"
                f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes [s0], [MAP0, {_at(place)}], [b0];"
            )
            + wait("b0", i & 1)
            + copy_out(room, i * room)
            + "bar.sync 0;\n"
        )
    plain = box.swizzle == "none" and not box.nan_fill and box.dtype != "tfloat32" and not fault
    return Case(
        name, "\n".join(parts), ((len(places) * room,), "u1"), _tensor(box), threads=THREADS, maps=(box,), expected=_boxes(box, places) if plain else None, fault=fault
    )  # fmt: skip


def _boxes(box: TensorBox, places: Sequence[Sequence[int]]) -> Expected:
    return lambda inputs: np.concatenate([_boxed(box, inputs[0], place) for place in places])


def _boxed(box: TensorBox, data: Array, place: Sequence[int]) -> Array:
    """Bytes of the box at a place, an element at a time; zeros where it is outside the tensor."""
    size = SIZES[box.dtype]
    shape, strides = box.dims[::-1], (*box.strides_bytes[::-1], size)
    tensor = np.lib.stride_tricks.as_strided(data.reshape(-1).view(f"u{size}"), shape, strides)
    steps = (1, *box.steps[1:]) if box.steps else (1,) * len(shape)
    extents = [-(-extent // step) for extent, step in zip(box.box, steps, strict=True)]
    found = np.zeros(extents[::-1], tensor.dtype)
    for index in np.ndindex(found.shape):
        at = tuple(
            i * step + start for i, step, start in zip(index, steps[::-1], place[::-1], strict=True)
        )
        if all(0 <= i < extent for i, extent in zip(at, shape, strict=True)):
            found[index] = tensor[at]
    return found.reshape(-1).view(np.uint8)


def copy_out(nbytes: int, start: int, register: str = "s0") -> str:
    """OUT[start:] = shared[:nbytes], 4 bytes a thread and round."""
    return f"""{{ .reg .b32 i, v, a; .reg .b64 o; .reg .pred end; mul.lo.u32 i, t, 4;
    MORE: setp.ge.u32 end, i, {nbytes}; @end bra OVER; add.u32 a, {register}, i; ld.shared.u32 v, [a]; cvt.u64.u32 o, i; add.u64 o, o, OUT; st.global.u32 [o+{start}], v;
    add.u32 i, i, {4 * THREADS}; bra MORE; OVER: }}\n"""


def clear(nbytes: int) -> str:
    """shared[:nbytes] = 0."""
    return f"""{{ .reg .b32 i, a; .reg .pred end; mul.lo.u32 i, t, 4;
    MORE: setp.ge.u32 end, i, {nbytes}; @end bra OVER; add.u32 a, s0, i; st.shared.u32 [a], 0; add.u32 i, i, {4 * THREADS}; bra MORE; OVER: }}\n"""


def copy_in(nbytes: int, map_input: str = "IN0") -> str:
    """shared[:nbytes] = input bytes."""
    return f"""{{ .reg .b32 i, v, a; .reg .b64 o; .reg .pred end; mul.lo.u32 i, t, 4;
    MORE: setp.ge.u32 end, i, {nbytes}; @end bra OVER; cvt.u64.u32 o, i; add.u64 o, o, {map_input}; ld.global.u32 v, [o]; add.u32 a, s0, i; st.shared.u32 [a], v;
    add.u32 i, i, {4 * THREADS}; bra MORE; OVER: }}\n"""


_LOADS = [
    load_case("tma_1d", dense("uint32", (100,), (64,)), [(0,), (36,), (88,), (-12,), (200,), (-64,)]),
    load_case("tma_2d_edges", dense("bfloat16", (70, 50), (32, 16), pad=20), [(0, 0), (48, 40), (-8, -3), (64, 45), (-24, 49), (80, 0), (8, -16), (16, 5)]),
    load_case("tma_3d", dense("uint8", (48, 9, 7), (32, 4, 3)), [(0, 0, 0), (32, 7, 5), (-16, -1, -2), (16, 3, 2)]),
    load_case("tma_4d", dense("float32", (12, 5, 4, 3), (8, 2, 3, 2)), [(0, 0, 0, 0), (8, 4, 2, 2), (-4, -1, -1, -1)]),
    load_case("tma_5d", dense("uint16", (16, 4, 3, 3, 3), (16, 3, 2, 2, 2)), [(0, 0, 0, 0, 0), (8, 2, 2, 2, 2), (-8, -1, -1, -1, -1)]),
    load_case("tma_64_bits", dense("uint64", (20, 10), (6, 5)), [(0, 0), (18, 8), (-2, -3)]),
    load_case("tma_f64", dense("float64", (20, 10), (6, 5)), [(2, 2), (18, 8)]),
    load_case("tma_steps", dense("uint32", (40, 30), (32, 12), steps=(2, 3)), [(0, 0), (4, 4), (20, 25), (-4, -2)]),
    load_case("tma_steps_odd", dense("uint16", (64, 20), (48, 7), steps=(1, 2)), [(0, 0), (32, 15), (-8, -3)]),
    load_case("tma_steps_1", dense("float32", (64, 20), (32, 8), steps=(1, 4)), [(0, 0), (40, 13), (-4, -3)]),
    load_case("tma_nan_f16", dense("float16", (40, 20), (32, 8), nan_fill=True), [(0, 0), (24, 15), (-8, -4)]),
    load_case("tma_nan_bf16", dense("bfloat16", (40, 20), (32, 8), nan_fill=True), [(24, 15), (-8, -3)]),
    load_case("tma_nan_f32", dense("float32", (40, 20), (32, 8), nan_fill=True), [(20, 15), (-4, -3)]),
    load_case("tma_tf32", dense("tfloat32", (40, 20), (32, 8)), [(0, 0), (20, 15)]),
    load_case("tma_tf32_nan", dense("tfloat32", (40, 20), (32, 8), nan_fill=True), [(20, 15)]),
    *(
        load_case(f"tma_swizzle_{mode}", dense(dtype, dims, box, swizzle=mode), places)
        for mode, dtype, dims, box, places in (
            ("32B", "bfloat16", (48, 40), (16, 32), [(0, 0), (40, 20), (-8, -5)]),
            ("64B", "float32", (48, 40), (16, 32), [(0, 0), (40, 20), (-4, -5)]),
            ("128B", "bfloat16", (96, 40), (64, 32), [(0, 0), (56, 20), (-8, -5)]),
        )
    ),
    load_case("tma_swizzle_bytes", dense("uint8", (160, 24), (128, 16), swizzle="128B"), [(0, 0), (96, 12), (-16, -4)]),
    load_case("tma_swizzle_narrow", dense("uint8", (96, 24), (48, 16), swizzle="64B"), [(0, 0), (48, 12)]),
    load_case("tma_swizzle_narrow_3d", dense("float32", (32, 6, 5), (8, 4, 3), swizzle="128B"), [(0, 0, 0), (8, 3, 3), (28, -1, -1)]),
    load_case("tma_swizzle_3d", dense("float32", (32, 6, 5), (32, 4, 3), swizzle="128B"), [(0, 0, 0), (8, 3, 3), (-8, -1, -1)]),
]  # fmt: skip

_UNALIGNED = [
    load_case(f"tma_unaligned_{name}", box, [place], fault="ALIGN")
    for name, box, place in (
        ("bytes", dense("uint8", (48, 9), (16, 4)), (1, 0)),
        ("inside", dense("bfloat16", (64, 16), (32, 8)), (4, 2)),
        ("below", dense("bfloat16", (64, 16), (32, 8)), (-3, -2)),
        ("outside", dense("bfloat16", (64, 16), (32, 8)), (81, 0)),
        ("words", dense("uint32", (100,), (64,)), (90,)),
        ("64_bits", dense("uint64", (20, 10), (6, 5)), (17, 8)),
        ("128B", dense("bfloat16", (96, 40), (64, 32), swizzle="128B"), (60, 20)),
    )
]


def store_case(
    name: str,
    box: TensorBox,
    places: Sequence[Sequence[int]],
    opcode: str,
    words: str = "",
    fault: str = "",
) -> Case:
    """The box from shared memory to each of the places of the output, which begins as zeros."""
    nbytes, rank = room_bytes(box), len(box.dims)
    size = box.strides_bytes[-1] * box.dims[-1] if rank > 1 else box.dims[0] * SIZES[box.dtype]

    def inputs(rng: np.random.Generator) -> list[np.ndarray]:
        if box.dtype == "float32":
            return [rng.integers(-9, 9, nbytes // 4).astype(np.float32)]
        if box.dtype == "float16":
            return [rng.integers(-9, 9, nbytes // 2).astype(np.float16)]
        if box.dtype == "bfloat16":
            return [
                (rng.integers(-9, 9, nbytes // 2).astype(np.float32).view(np.uint32) >> 16).astype(
                    np.uint16
                )
            ]
        return [rng.integers(0, 256, nbytes, np.uint8)]

    copies = "".join(
        f"{opcode}.{rank}d.global.shared::cta{words}.bulk_group [MAP0, {_at(place)}], [s0]; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
        for place in places
    )
    body = (
        SHARED.format(-(-nbytes // 1024) * 1024)
        + copy_in(nbytes)
        + "fence.proxy.async; bar.sync 0;\n"
        + once(copies)
    )
    out = TensorBox(-1, box.dtype, box.dims, box.strides_bytes, box.box, box.steps, box.swizzle)
    return Case(name, body, ((size,), "u1"), inputs, threads=THREADS, maps=(out,), fault=fault)


_STORE, _REDUCE = "cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor"
_STORES = [
    store_case("tma_store_1d", dense("uint32", (100,), (64,)), [(68,)], _STORE),
    store_case("tma_store_1d_below", dense("uint32", (100,), (64,)), [(-12,)], _STORE, fault="TMA-15"),
    store_case("tma_store_2d", dense("bfloat16", (70, 50), (32, 16), pad=20), [(0, 0), (48, 40), (80, 60)], _STORE),
    store_case("tma_store_below", dense("bfloat16", (70, 50), (32, 16), pad=20), [(-8, 0)], _STORE, fault="TMA-15"),
    store_case("tma_store_above", dense("bfloat16", (70, 50), (32, 16), pad=20), [(0, -3)], _STORE, fault="TMA-15"),
    store_case("tma_store_bytes", dense("uint8", (37, 12), (32, 8), pad=11), [(16, 0)], _STORE),
    store_case("tma_store_words", dense("float32", (5, 12), (8, 8), pad=28), [(0, 2)], _STORE),
    store_case("tma_store_narrow", dense("uint8", (96, 24), (48, 16), swizzle="64B"), [(48, 4)], _STORE),
    store_case("tma_store_4d", dense("float32", (12, 5, 4, 3), (8, 2, 3, 2)), [(8, 4, 2, 2)], _STORE),
    store_case("tma_store_4d_below", dense("float32", (12, 5, 4, 3), (8, 2, 3, 2)), [(0, 0, -1, 0)], _STORE, fault="TMA-15"),
    store_case("tma_store_128B", dense("bfloat16", (96, 40), (64, 16), swizzle="128B"), [(0, 0), (56, 30)], _STORE),
    store_case("tma_store_32B", dense("uint8", (64, 40), (32, 16), swizzle="32B"), [(16, 3), (48, 30)], _STORE),
    store_case("tma_store_steps", dense("uint32", (40, 30), (32, 12), steps=(2, 3)), [(4, 1), (32, 25)], _STORE),
    store_case("tma_store_tf32", dense("tfloat32", (24, 12), (16, 8)), [(0, 0)], _STORE),
    store_case("tma_store_unaligned", dense("float32", (24, 12), (16, 8)), [(6, 2)], _STORE, fault="ALIGN"),
    *(
        store_case(f"tma_reduce_{kind}_{dtype}", dense(dtype, (24, 12), (16, 8)), [(0, 0), (16, 6)], _REDUCE, f".{kind}")
        for kind, dtype in (
            *(("add", "uint32"), ("min", "int32"), ("max", "uint32"), ("and", "uint32"), ("or", "uint32"), ("xor", "uint32")),
            *(("inc", "uint32"), ("dec", "uint32"), ("add", "float32"), ("add", "float16"), ("add", "bfloat16"), ("min", "float16"), ("max", "bfloat16")),
            *(("add", "uint64"), ("max", "int64")),
        )
    ),
    store_case("tma_reduce_row_end", dense("uint32", (21, 12), (16, 8), pad=12), [(16, 6)], _REDUCE, ".add"),
    store_case("tma_reduce_below", dense("uint32", (24, 12), (16, 8)), [(-4, -2)], _REDUCE, ".add", fault="TMA-15"),
]  # fmt: skip


def multicast_case(name: str, size: int, masks: Sequence[int]) -> Case:
    """Rank r multicasts rows 8 r to 8 r + 7 to the CTAs of its mask; every CTA shows all that it received."""
    box = dense("uint32", (16, 8 * size), (16, 8))
    nbytes = box_bytes(box)
    received = [
        [source for source in range(size) if masks[source] >> rank & 1] for rank in range(size)
    ]
    expect = "".join(
        f"setp.eq.u32 %p1, rank, {rank}; @%p1 mov.u32 %r2, {nbytes * len(sources)}; "
        for rank, sources in enumerate(received)
    )
    sends = "".join(
        f"setp.eq.u32 %p1, rank, {rank}; @%p1 mov.u32 %r3, {mask}; @%p1 mov.u32 %r4, {8 * rank};"
        for rank, mask in enumerate(masks)
    )
    out = "".join(
        f"setp.ne.u32 %p1, rank, {rank}; @%p1 bra R{rank};\n"
        + "".join(
            f"add.u32 %r5, s0, {nbytes * source};\n{copy_out(nbytes, nbytes * (rank * size + source), '%r5')}"
            for source in sources
        )
        + f"R{rank}:\n"
        for rank, sources in enumerate(received)
    )
    body = f"""{SHARED.format(nbytes * size)} {once(f"mbarrier.init.shared::cta.b64 [b0], 1; {INIT}")} mov.u32 %r2, 0; mov.u32 %r3, 0; mov.u32 %r4, 0; {expect} {sends}
    {once("mbarrier.arrive.expect_tx.shared::cta.b64 _, [b0], %r2;")} {CLUSTER_SYNC}
    mad.lo.u32 %r6, rank, {nbytes}, s0; cvt.u16.u32 %h1, %r3;
    {once("setp.eq.u32 %p2, %r3, 0; @!%p2 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r6], [MAP0, {0, %r4}], [b0], %h1;")}
    {wait("b0", 0)} {out} {CLUSTER_SYNC}"""
    return Case(
        name,
        body,
        ((size * size * nbytes,), "u1"),
        _tensor(box),
        ctas=size,
        cluster=size,
        threads=THREADS,
        maps=(box,),
    )


_MULTICAST = [
    multicast_case("multicast_pair", 2, [0b11, 0b01]),
    multicast_case("multicast_masks", 4, [0b1111, 0b0101, 0b1010, 0b0001]),
    multicast_case("multicast_row_and_column", 4, [0b0011, 0b1100, 0b0110, 0b1001]),
    multicast_case("multicast_eight", 8, [0xFF, 0x0F, 0xF0, 0xAA, 0x55, 0x01, 0x80, 0]),
]

CASES = [*_LOADS, *_UNALIGNED, *_STORES, *_MULTICAST]
