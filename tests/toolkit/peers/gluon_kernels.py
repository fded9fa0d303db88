"""Kernels in Gluon, Triton's lower language, where barriers, TMA and cluster launch control are written by hand."""

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    clc,
    fence_async_shared,
    mbarrier,
    tcgen05_commit,
    tcgen05_mma,
    tma,
)
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait
from written import of_triton, write


@gluon.jit
def clc_copy(x, y, n, B: gl.constexpr, CGA: gl.constexpr):
    """A work loop on cluster launch control; every CTA of the cluster copies its part of a tile."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0], cga_layout=CGA)
    full = mbarrier.allocate_mbarrier()
    response = gl.allocate_shared_memory(
        gl.int64, [2], gl.SwizzledSharedLayout(1, 1, 1, [0], cga_layout=CGA)
    )
    mbarrier.init(full, count=1)
    tile = gl.program_id(0)
    work = gl.to_tensor(True)
    phase = 0
    while work:
        mbarrier.expect(full, 16)
        clc.try_cancel(response, full)
        place = tile * B + gl.arange(0, B, LAYOUT)
        gl.store(y + place, gl.load(x + place, mask=place < n), mask=place < n)
        mbarrier.wait(full, phase)
        phase ^= 1
        answer = clc.load_result(response)
        work = answer.is_canceled()
        tile = answer.program_id(0)


@gluon.jit
def copy_tile(x, y, n, tile, B: gl.constexpr):
    LAYOUT: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    place = tile * B + gl.arange(0, B, LAYOUT)
    gl.store(y + place, gl.load(x + place, mask=place < n), mask=place < n)


@gluon.jit
def clc_ring(x, y, n, B: gl.constexpr, STAGES: gl.constexpr):
    """STAGES requests in flight; each granted one is worked on, and its slot asked for again until one is declined."""
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    response = gl.allocate_shared_memory(
        gl.int64, [STAGES, 2], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.expect(full.index(i), 16)
        clc.try_cancel(response.index(i), full.index(i))
    copy_tile(x, y, n, gl.program_id(0), B)
    i = 0
    in_flight = STAGES
    asking = gl.to_tensor(True)
    while in_flight > 0:
        at = i % STAGES
        mbarrier.wait(full.index(at), i // STAGES & 1)
        answer = clc.load_result(response.index(at))
        in_flight -= 1
        asking = asking & answer.is_canceled()
        if answer.is_canceled():
            copy_tile(x, y, n, answer.program_id(0), B)
            if asking:
                mbarrier.expect(full.index(at), 16)
                clc.try_cancel(response.index(at), full.index(at))
                in_flight += 1
        i += 1


@gluon.jit
def tma_copy(a, c, STAGES: gl.constexpr):
    """A strip of tiles in by TMA, one barrier a tile, and out again."""
    tiles = gl.allocate_shared_memory(a.dtype, [STAGES] + a.block_shape, a.layout)
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
    row = gl.program_id(0) * a.block_shape[0]
    for i in gl.static_range(STAGES):
        mbarrier.expect(full.index(i), a.nbytes_per_cta)
        tma.async_load(a, [row, i * a.block_shape[1]], full.index(i), tiles.index(i))
    for i in gl.static_range(STAGES):
        mbarrier.wait(full.index(i), 0)
        tma.async_store(c, [row, i * a.block_shape[1]], tiles.index(i))
    tma.store_wait(0)


@gluon.jit
def multicast_copy(a, c):
    """One tile to every CTA of the cluster by one multicast copy."""
    tile = gl.allocate_shared_memory(a.dtype, a.block_shape, a.layout)
    full = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    row = gl.program_id(0) * a.block_shape[0]
    mbarrier.expect(full, a.nbytes_per_cta)
    tma.async_load(a, [row, 0], full, tile, multicast=True)
    mbarrier.wait(full, 0)
    mbarrier.invalidate(full)
    tma.async_store(c, [row, 0], tile)
    tma.store_wait(0)


@gluon.jit
def wgmma(a, b, c, K, STAGES: gl.constexpr, WARPS: gl.constexpr):
    """Hopper: a pipeline of TMA loads, and an MMA of one warpgroup that is waited for a tile later."""
    BM: gl.constexpr = c.block_shape[0]
    BN: gl.constexpr = c.block_shape[1]
    BK: gl.constexpr = a.block_shape[1]
    of_a = gl.allocate_shared_memory(a.dtype, [STAGES, BM, BK], a.layout)
    of_b = gl.allocate_shared_memory(b.dtype, [STAGES, BN, BK], b.layout)
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
    row = gl.program_id(0) * BM
    column = gl.program_id(1) * BN
    for i in gl.static_range(STAGES - 1):
        mbarrier.expect(full.index(i), a.nbytes_per_cta + b.nbytes_per_cta)
        tma.async_load(a, [row, i * BK], full.index(i), of_a.index(i))
        tma.async_load(b, [column, i * BK], full.index(i), of_b.index(i))
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BN, 16])
    sums = gl.zeros((BM, BN), gl.float32, LAYOUT)
    for step in range(K // BK):
        at = step % STAGES
        mbarrier.wait(full.index(at), step // STAGES & 1)
        sums = warpgroup_mma(of_a.index(at), of_b.index(at).permute((1, 0)), sums, is_async=True)
        sums = warpgroup_mma_wait(num_outstanding=0, deps=[sums])
        ahead = step + STAGES - 1
        if ahead * BK < K:
            into = ahead % STAGES
            mbarrier.expect(full.index(into), a.nbytes_per_cta + b.nbytes_per_cta)
            tma.async_load(a, [row, ahead * BK], full.index(into), of_a.index(into))
            tma.async_load(b, [column, ahead * BK], full.index(into), of_b.index(into))
    of_c = gl.allocate_shared_memory(c.dtype, c.block_shape, c.layout)
    of_c.store(sums.to(c.dtype))
    fence_async_shared()
    tma.async_store(c, [row, column], of_c)
    tma.store_wait(0)


@gluon.jit
def tcgen05(a, b, c, K):
    """Blackwell: an MMA into tensor memory for each tile of K, its commit waited for before the next load."""
    BM: gl.constexpr = c.block_shape[0]
    BN: gl.constexpr = c.block_shape[1]
    BK: gl.constexpr = a.block_shape[1]
    of_a = gl.allocate_shared_memory(a.dtype, a.block_shape, a.layout)
    of_b = gl.allocate_shared_memory(b.dtype, b.block_shape, b.layout)
    full = mbarrier.allocate_mbarrier()
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.init(done, count=1)
    row = gl.program_id(0) * BM
    column = gl.program_id(1) * BN
    sums = allocate_tensor_memory(gl.float32, [BM, BN], TensorMemoryLayout([BM, BN], col_stride=1))
    phase = 0
    add = False
    for k in range(0, K, BK):
        mbarrier.expect(full, a.nbytes_per_cta + b.nbytes_per_cta)
        tma.async_load(a, [row, k], full, of_a)
        tma.async_load(b, [column, k], full, of_b)
        mbarrier.wait(full, phase)
        tcgen05_mma(of_a, of_b.permute((1, 0)), sums, use_acc=add)
        tcgen05_commit(done)
        mbarrier.wait(done, phase)
        phase ^= 1
        add = True
    of_c = gl.allocate_shared_memory(c.dtype, c.block_shape, c.layout)
    of_c.store(sums.load().to(c.dtype))
    fence_async_shared()
    tma.async_store(c, [row, column], of_c)
    tma.store_wait(0)


@gluon.jit
def tcgen05_pair(a, b, c):
    """Blackwell: one MMA of a pair of CTAs."""
    BM: gl.constexpr = a.block_shape[0]
    BN: gl.constexpr = b.block_shape[1]
    CGA: gl.constexpr = c.layout.cga_layout
    of_a = gl.allocate_shared_memory(a.dtype, a.block_shape, a.layout)
    of_b = gl.allocate_shared_memory(b.dtype, b.block_shape, b.layout)
    full = mbarrier.allocate_mbarrier(two_ctas=True)
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.init(done, count=1)
    mbarrier.expect(full, a.nbytes_per_cta + b.nbytes_per_cta)
    tma.async_load(a, [0, 0], full, of_a)
    tma.async_load(b, [0, 0], full, of_b)
    mbarrier.wait(full, 0, deps=[of_a, of_b])
    mbarrier.invalidate(full)
    LAYOUT: gl.constexpr = TensorMemoryLayout(
        block=(BM // 2, BN), col_stride=1, cga_layout=CGA, two_ctas=True
    )
    sums = allocate_tensor_memory(gl.float32, [BM, BN], LAYOUT)
    tcgen05_mma(of_a, of_b, sums, use_acc=False, mbarriers=[done])
    mbarrier.wait(done, 0, deps=[of_a, of_b])
    mbarrier.invalidate(done)
    of_c = gl.allocate_shared_memory(c.dtype, c.block_shape, c.layout)
    of_c.store(sums.load().to(c.dtype))
    fence_async_shared()
    tma.async_store(c, [0, 0], of_c)
    tma.store_wait(0)


def tile(rows, columns, cga=None):
    more = {"cga_layout": cga} if cga else {}
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], gl.float16, **more)
    return f"tensordesc<fp16[{rows}, {columns}],{layout!r}>"


def emit(name, kernel, signature, constants, sm, ctas=1, **options):
    constexprs = dict.fromkeys(constants, "constexpr")
    source = GluonASTSource(fn=kernel, signature=signature | constexprs, constexprs=constants)
    target = GPUTarget("cuda", sm, 32)
    write(
        f"gluon_{name}_sm_{sm}_c{ctas}",
        lambda: of_triton(
            triton.compile(source, target=target, options={"num_ctas": ctas} | options)
        ),
    )


COPY = {"x": "*fp32", "y": "*fp32", "n": "i32"}
for ctas in (1, 2, 4):
    doublings = ctas.bit_length() - 1
    emit("clc_copy", clc_copy, COPY, {"B": 512, "CGA": [[0]] * doublings}, 100, ctas)
    split = tile(128, 64, [[1, 0], [2, 0]][:doublings])
    whole = tile(128, 64, [[0, 0]] * doublings)
    for sm in (90, 100):
        emit("tma_copy", tma_copy, {"a": split, "c": split}, {"STAGES": 3}, sm, ctas)
        if ctas > 1:
            emit("multicast_copy", multicast_copy, {"a": whole, "c": whole}, {}, sm, ctas)
emit("clc_ring", clc_ring, COPY, {"B": 512, "STAGES": 2}, 100)
GEMM = {"a": tile(128, 64), "b": tile(128, 64), "c": tile(128, 128), "K": "i32"}
emit("wgmma", wgmma, GEMM, {"STAGES": 3, "WARPS": 4}, 90)
emit("tcgen05", tcgen05, GEMM, {}, 100)
PAIR = {"a": tile(256, 64, [[1, 0]]), "b": tile(64, 128, [[0, 1]]), "c": tile(256, 128, [[1, 0]])}
emit("tcgen05_pair", tcgen05_pair, PAIR, {}, 100, 2)
