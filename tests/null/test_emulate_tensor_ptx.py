"""Tensor instructions one by one, in kernels as short as they get, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.emulate import Buffers, CheckFailed, NotModelled, launch
from tilewright.emulate.numbers import decode, encode
from tilewright.emulate.tensor_map import TensorMap

HEAD = """
.version 9.0
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel({parameters})
.reqntid {threads}, 1, 1
{{
    .reg .pred %p<8>;
    .reg .b32 %r<200>;
    .reg .b64 %d<32>;
    .shared .align 8 .b64 bar;
    .shared .align 4 .b32 tptr;
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, smem;
    mov.u32 %r2, bar;
"""


def kernel(body: str, *, parameters: str, threads: int = 32, target: str = "sm_100a") -> str:
    """A kernel around a body; `%r0` is the thread, `%r1` shared memory, `%r2` an mbarrier."""
    return (
        HEAD.format(target=target, parameters=parameters, threads=threads) + body + "    ret;\n}\n"
    )


INIT = """
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra READY;
    mbarrier.init.shared::cta.b64 [%r2], 1;
    fence.mbarrier_init.release.cluster;
READY:
    bar.sync 0;
"""
WAIT = """
WAIT:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r2], 0;
    @!%p1 bra WAIT;
"""
COPY_OUT = """
    ld.param.u64 %d1, [out];
    mul.wide.u32 %d2, %r0, {bytes};
    add.u64 %d1, %d1, %d2;
    mul.lo.u32 %r3, %r0, {bytes};
    add.u32 %r3, %r3, %r1;
"""


def moved_out(words: int) -> str:
    """Each thread copies so many words of shared memory to `out`."""
    lines = [
        f"    ld.shared.u32 %r4, [%r3+{at}];\n    st.global.u32 [%d1+{at}], %r4;\n"
        for at in range(0, 4 * words, 4)
    ]
    return COPY_OUT.format(bytes=4 * words) + "".join(lines)


MAP = ".param .align 64 .b8 map[128], .param .u64 out"
LOAD = """
    @%p0 bra WAIT;
    mov.b64 %d0, map;
    cvta.param.u64 %d0, %d0;
    mbarrier.arrive.expect_tx.relaxed.cluster.shared::cta.b64 _, [%r2], {bytes};
    {copy}
"""


@pytest.mark.parametrize("space", ["shared::cluster", "shared::cta"])
def test_a_box_with_a_cache_hint(space: str) -> None:
    array = np.arange(16 * 32, dtype=np.uint32).reshape(16, 32)
    out = np.zeros((8, 32), np.uint32)
    buffers = Buffers()
    copy = (
        f"mov.b64 %d5, 0;\n    cp.async.bulk.tensor.2d.{space}.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%r1], [%d0, {8, 5}], [%r2], %d5;"
    )
    text = kernel(INIT + LOAD.format(bytes=1024, copy=copy) + WAIT + moved_out(8), parameters=MAP)
    encoded = TensorMap.of(array, buffers.address_of(array), (8, 32)).encode()
    launch(text, grid=1, args=[encoded, out], smem_bytes=1024, buffers=buffers)
    np.testing.assert_array_equal(out[:, :24], array[5:13, 8:])
    assert not out[:, 24:].any()


def test_rows_gathered() -> None:
    array = np.arange(32 * 16, dtype=np.uint32).reshape(32, 16)
    out = np.zeros((4, 16), np.uint32)
    buffers = Buffers()
    copy = (
        "cp.async.bulk.tensor.2d.tile::gather4.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%r1], [%d0, {0, 7, 30, 2, 99}], [%r2];"
    )
    text = kernel(INIT + LOAD.format(bytes=256, copy=copy) + WAIT + moved_out(2), parameters=MAP)
    encoded = TensorMap.of(array, buffers.address_of(array), (1, 16)).encode()
    launch(text, grid=1, args=[encoded, out], smem_bytes=256, buffers=buffers)
    np.testing.assert_array_equal(out[:3], array[[7, 30, 2]])
    assert not out[3].any()  # beyond the tensor


STORE = """
    mul.lo.u32 %r3, %r0, 8;
    add.u32 %r3, %r3, %r1;
    ld.param.u64 %d1, [out];
    mul.wide.u32 %d2, %r0, 8;
    add.u64 %d1, %d1, %d2;
    ld.global.v2.b32 {%r4, %r5}, [%d1];
    st.shared.v2.b32 [%r3], {%r4, %r5};
    fence.proxy.async.shared::cta;
    bar.sync 0;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra DONE;
    mov.b64 %d0, map;
    cvta.param.u64 %d0, %d0;
    OPCODE.bulk_group [%d0, {0, 6}], [%r1];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
DONE:
"""


@pytest.mark.parametrize(
    ("operation", "name", "dtype"),
    [
        ("add", "f32", np.float32),
        ("max", "s32", np.int32),
        ("xor", "u32", np.uint32),
        ("", "u32", np.uint32),
    ],
)
def test_boxes_stored_and_reduced(operation: str, name: str, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    target = rng.integers(-50, 50, (8, 16)).astype(dtype)
    source = rng.integers(-50, 50, (4, 16)).astype(dtype)
    before = target.copy()
    buffers = Buffers()
    opcode = "cp.async.bulk.tensor.2d.global.shared::cta.tile"
    if operation:
        opcode = f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{operation}.tile"
    text = kernel(STORE.replace("OPCODE", opcode), parameters=MAP, target="sm_90a")
    tensor_map = TensorMap.of(target, buffers.address_of(target), (4, 16), dtype=name)
    launch(text, grid=1, args=[tensor_map.encode(), source], smem_bytes=256, buffers=buffers)
    functions: dict[str, Any] = {"add": np.add, "max": np.maximum, "xor": np.bitwise_xor}
    combine = functions.get(operation, lambda _old, new: new)
    np.testing.assert_array_equal(target[6:], combine(before[6:], source[:2]))
    np.testing.assert_array_equal(
        target[:6], before[:6]
    )  # what lies past the tensor is not written


TWICE = """
    mul.lo.u32 %r3, %r0, 8; add.u32 %r3, %r3, %r1;
    st.shared.v2.b32 [%r3], {VALUE, VALUE};
    fence.proxy.async.shared::cta; bar.sync 0;
    setp.gt.u32 %p0, %r0, 1; @%p0 bra DONE;
    mov.b64 %d0, map; cvta.param.u64 %d0, %d0; mul.lo.u32 %r4, %r0, 128; add.u32 %r4, %r4, %r1;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d0, {0, 0}], [%r4];
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
DONE:
"""


@pytest.mark.parametrize(("value", "severity"), [("7", "warning"), ("%r0", "error")])
def test_two_stores_of_one_box_race_and_matter_if_they_differ(value: str, severity: str) -> None:
    """Two lanes store a tile each to one place; CuTe DSL's epilogues have a whole warp store the same tile."""
    target, buffers = np.zeros((2, 16), np.uint32), Buffers()
    tensor_map = TensorMap.of(target, buffers.address_of(target), (2, 16), dtype="u32")
    text = kernel(TWICE.replace("VALUE", value), parameters=MAP, target="sm_90a")
    report = launch(
        text,
        grid=1,
        args=[tensor_map.encode(), np.zeros(1)],
        smem_bytes=256,
        buffers=buffers,
        check=False,
    )
    assert {(f.rule, f.severity) for f in report.findings} == {("TMA-15", severity)}


# --- tensor memory ----------------------------------------------------------------------------------------------------

ALLOCATE = """
    mov.u32 %r5, tptr;
    setp.ge.u32 %p2, %r0, 32;
    @%p2 bra ALLOCATED;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r5], 64;
    tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
ALLOCATED:
    tcgen05.fence::before_thread_sync;
    bar.sync 0;
    tcgen05.fence::after_thread_sync;
    ld.shared.u32 %r6, [%r5];
    shr.u32 %r7, %r0, 5;
    shl.b32 %r7, %r7, 21;
    add.u32 %r8, %r6, %r7;
"""
FREE = """
    tcgen05.fence::before_thread_sync;
    bar.sync 0;
    tcgen05.fence::after_thread_sync;
    @%p2 bra FREED;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r6, 64;
FREED:
"""
WORDS = ".param .u64 given, .param .u64 out"


def registers(count: int, first: int = 20) -> str:
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


def read_given(words: int) -> str:
    """Each thread's words of `given` to %r20 and on."""
    lines = [
        f"    ld.param.u64 %d3, [given];\n    mul.wide.u32 %d4, %r0, {4 * words};\n    add.u64 %d3, %d3, %d4;\n"
    ]
    lines += [f"    ld.global.u32 %r{20 + i}, [%d3+{4 * i}];\n" for i in range(words)]
    return "".join(lines)


def write_out(words: int, first: int = 20) -> str:
    lines = [
        f"    ld.param.u64 %d1, [out];\n    mul.wide.u32 %d2, %r0, {4 * words};\n    add.u64 %d1, %d1, %d2;\n"
    ]
    lines += [f"    st.global.u32 [%d1+{4 * i}], %r{first + i};\n" for i in range(words)]
    return "".join(lines)


def test_packed_stores_and_loads_of_another_shape() -> None:
    given = np.random.default_rng(2).integers(0, 2**32, (128, 4), dtype=np.uint32)
    out = np.zeros((128, 4), np.uint32)
    body = (
        ALLOCATE
        + read_given(4)
        + f"    tcgen05.st.sync.aligned.32x32b.x4.unpack::16b.b32 [%r8], {registers(4)};\n"
        + "    tcgen05.wait::st.sync.aligned;\n"
        + f"    tcgen05.ld.sync.aligned.16x256b.x1.b32 {registers(4, 60)}, [%r8];\n"
        + "    tcgen05.wait::ld.sync.aligned;\n"
        + write_out(4, 60)
        + FREE
    )
    launch(kernel(body, parameters=WORDS, threads=128), grid=1, args=[given, out])
    # Two columns a register; then lane l has row l / 4 (and + 8), columns 2 (l % 4) and the next.
    cells = np.stack([given & 0xFFFF, given >> 16], axis=2).reshape(4, 32, 8)
    found = out.reshape(4, 8, 4, 2, 2)  # warp, row, part, rows 0-7 or 8-15, column
    expected = cells[:, :16].reshape(4, 2, 8, 4, 2).transpose(0, 2, 3, 1, 4)
    np.testing.assert_array_equal(found, expected)


def test_a_copy_and_a_product_with_a_in_tensor_memory() -> None:
    """A by tcgen05.cp (K-major rows of 32 bytes, no swizzle) into tensor memory, B in shared memory, one MMA."""
    rng = np.random.default_rng(3)
    a, b = (encode(rng.integers(-6, 7, (n, 16)).astype(np.float32) / 4, "bf16") for n in (128, 8))
    out = np.zeros((128, 8), np.float32)
    # Groups of 8 rows: 128 bytes of the first 16 of k, 128 of the second: LBO 128, SBO 256.
    laid = [m.reshape(-1, 8, 2, 8).transpose(0, 2, 1, 3).reshape(-1) for m in (a, b)]
    words = 9
    given = np.zeros(128 * words, np.uint32)
    given[: 136 * 8] = np.concatenate(laid).view(np.uint32)
    descriptor = 128 >> 4 << 16 | 256 >> 4 << 32 | 1 << 46
    instruction = 1 << 4 | 1 << 7 | 1 << 10 | 1 << 17 | 8 << 24
    fill = "".join(f"    st.shared.u32 [%r3+{4 * i}], %r{20 + i};\n" for i in range(words))
    body = (
        INIT
        + ALLOCATE
        + read_given(words)
        + f"    mul.lo.u32 %r3, %r0, {4 * words};\n    add.u32 %r3, %r3, %r1;\n"
        + fill
        + f"""
    fence.proxy.async.shared::cta;
    bar.sync 0;
    tcgen05.fence::after_thread_sync;
    @%p0 bra WAIT;
    shr.u32 %r9, %r1, 4;
    cvt.u64.u32 %d5, %r9;
    or.b64 %d6, %d5, {descriptor};
    add.u64 %d7, %d6, {128 * 32 >> 4};
    add.u32 %r10, %r6, 16;
    mov.b32 %r11, {instruction};
    mov.b32 %r12, 0;
    mov.b32 %r13, 0xFF;
    setp.ne.u32 %p3, %r0, %r0;
    tcgen05.cp.cta_group::1.128x256b [%r10], %d6;
    tcgen05.mma.cta_group::1.kind::f16 [%r6], [%r10], %d7, %r11, %p3;
    setp.eq.u32 %p4, %r0, %r0;
    tcgen05.mma.cta_group::1.kind::f16 [%r6], [%r10], %d7, %r11, {{%r13, %r12, %r12, %r12}}, %p4, 1;
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r2];
"""
        + WAIT
        + f"""
    tcgen05.fence::after_thread_sync;
    tcgen05.ld.sync.aligned.32x32b.x8.b32 {registers(8, 60)}, [%r8];
    tcgen05.wait::ld.sync.aligned;
"""
        + write_out(8, 60)
        + FREE
    )
    text = kernel(body, parameters=WORDS, threads=128)
    for seed in range(4):
        out[:] = np.nan
        launch(text, grid=1, args=[given, out], smem_bytes=8192, seed=seed)
        product = decode(a, "bf16") @ decode(b, "bf16").T
        # The second adds the product to half of the first, but leaves the first eight lanes alone.
        np.testing.assert_array_equal(out[:8], product[:8])
        np.testing.assert_array_equal(out[8:], 1.5 * product[8:])


def test_reads_of_columns_that_nobody_has() -> None:
    body = ALLOCATE + "    tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r20}, [%r8+64];\n" + FREE
    with pytest.raises(
        CheckFailed, match=r"TC-07: .*columns 64 to 64, of which 64 is not allocated"
    ):
        launch(kernel(body, parameters=WORDS, threads=128), grid=1, args=[np.zeros(1), np.zeros(1)])


def test_an_instruction_that_is_left_out_is_named_with_its_line() -> None:
    body = ALLOCATE + "    tcgen05.shift.cta_group::1.down [%r6];\n" + FREE
    text = kernel(body, parameters=WORDS, threads=128)
    line = text[: text.index("tcgen05.shift")].count("\n") + 1
    with pytest.raises(
        NotModelled, match=rf":{line}:\d+: `tcgen05.shift.cta_group::1.down` is not emulated"
    ):
        launch(text, grid=1, args=[np.zeros(1), np.zeros(1)])


# --- matrices of a warp -----------------------------------------------------------------------------------------------


def test_movmatrix_transposes() -> None:
    given = np.arange(64, dtype=np.uint16).view(np.uint32).reshape(32, 1)
    out = np.zeros((32, 1), np.uint32)
    body = (
        read_given(1) + "    movmatrix.sync.aligned.m8n8.trans.b16 %r21, %r20;\n" + write_out(1, 21)
    )
    launch(kernel(body, parameters=WORDS, target="sm_90"), grid=1, args=[given, out])
    expected = np.arange(64, dtype=np.uint16).reshape(8, 8).T
    np.testing.assert_array_equal(out.view(np.uint16).reshape(8, 8), expected)


def test_matrices_of_bytes_through_shared_memory() -> None:
    """ldmatrix.m16n16 and stmatrix.m16n8, both transposed: what one writes the other reads back in its own order."""
    given = np.random.default_rng(4).integers(0, 2**32, (32, 2), dtype=np.uint32)
    out = np.zeros((32, 2), np.uint32)
    body = (
        read_given(2)
        + """
    and.b32 %r3, %r0, 15;
    shl.b32 %r3, %r3, 4;
    add.u32 %r3, %r3, %r1;
    stmatrix.sync.aligned.m16n8.x2.trans.shared.b8 [%r3], {%r20, %r21};
    bar.warp.sync -1;
    ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r22, %r23}, [%r3];
"""
        + write_out(2, 22)
    )
    launch(kernel(body, parameters=WORDS), grid=1, args=[given, out], smem_bytes=256)
    written, read = given.view(np.uint8).reshape(32, 2, 4), out.view(np.uint8).reshape(32, 2, 4)
    matrix = np.zeros((16, 16), np.uint8)  # column by column, as the addresses are given
    lane, number, byte = np.ogrid[:32, :2, :4]
    matrix[8 * number + 2 * (lane % 4) + byte % 2, lane // 4 + 8 * (byte // 2)] = written
    found = matrix[4 * (lane % 4) + 2 * number + byte % 2, lane // 4 + 8 * (byte // 2)]
    np.testing.assert_array_equal(read, found)
