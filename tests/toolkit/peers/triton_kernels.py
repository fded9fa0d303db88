"""Kernels in Triton, as its users write them, compiled for Hopper and Blackwell with no GPU."""

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from written import of_triton, write


@triton.jit
def matmul(
    a,
    b,
    c,
    M,
    N,
    K,
    stride_a,
    stride_b,
    stride_c,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    of_a = a + rows[:, None] * stride_a + depth[None, :]
    of_b = b + depth[:, None] * stride_b + columns[None, :]
    sums = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(of_a, mask=depth[None, :] < K - k, other=0.0)
        y = tl.load(of_b, mask=depth[:, None] < K - k, other=0.0)
        sums = tl.dot(x, y, sums)
        of_a += BK
        of_b += BK * stride_b
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c + rows[:, None] * stride_c + columns[None, :], sums.to(tl.bfloat16), mask=inside)


@triton.jit
def matmul_tma(
    a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPECIALIZE: tl.constexpr
):
    row = tl.program_id(0) * BM
    column = tl.program_id(1) * BN
    sums = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, K, BK, warp_specialize=SPECIALIZE):
        sums = tl.dot(a.load([row, k]), b.load([column, k]).T, sums)
    c.store([row, column], sums.to(tl.bfloat16))


@triton.jit
def matmul_device_tma(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    of_a = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    of_b = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BN, BK])
    of_c = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    row = tl.program_id(0) * BM
    column = tl.program_id(1) * BN
    sums = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        sums = tl.dot(of_a.load([row, k]), of_b.load([column, k]).T, sums)
    of_c.store([row, column], sums.to(tl.bfloat16))


@triton.jit
def matmul_persistent(
    a, b, c, M, N, K, CTAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    SPECIALIZE: tl.constexpr, FLATTEN: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(N, BN)
    tiles = tl.cdiv(M, BM) * across
    for tile in tl.range(
        tl.program_id(0), tiles, CTAS, flatten=FLATTEN, warp_specialize=SPECIALIZE
    ):
        row = tile // across * BM
        column = tile % across * BN
        sums = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            sums = tl.dot(a.load([row, k]), b.load([column, k]).T, sums)
        c.store([row, column], sums.to(tl.bfloat16))


@triton.jit
def attention(
    q,
    k,
    v,
    o,
    N,
    scale,
    BM: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
    SPECIALIZE: tl.constexpr,
):
    row = tl.program_id(0) * BM
    queries = q.load([row, 0])
    most = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    sums = tl.zeros([BM, D], tl.float32)
    for j in tl.range(0, N, BN, warp_specialize=SPECIALIZE):
        scores = tl.dot(queries, k.load([j, 0]).T) * scale
        new = tl.maximum(most, tl.max(scores, 1))
        weights = tl.math.exp2(scores - new[:, None])
        shrink = tl.math.exp2(most - new)
        total = total * shrink + tl.sum(weights, 1)
        sums = tl.dot(weights.to(tl.bfloat16), v.load([j, 0]), sums * shrink[:, None])
        most = new
    o.store([row, 0], (sums / total[:, None]).to(tl.bfloat16))


@triton.jit
def softmax(y, x, stride, n, B: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, B)
    values = tl.load(x + row * stride + columns, mask=columns < n, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * stride + columns, powers / tl.sum(powers, 0), mask=columns < n)


def compiled(kernel, signature, constants, capability, ctas=1, **options):
    constexprs = dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=kernel, signature=signature | constexprs, constexprs=constants)
    target = GPUTarget("cuda", capability, 32)
    return of_triton(triton.compile(source, target=target, options={"num_ctas": ctas} | options))


def tile(rows, columns):
    return f"tensordesc<bf16[{rows}, {columns}]>"


SIZES = {"BM": 128, "BN": 128, "BK": 64}
POINTERS = {"a": "*bf16", "b": "*bf16", "c": "*bf16"}
SHAPE = {"M": "i32", "N": "i32", "K": "i32"}
STRIDES = {"stride_a": "i32", "stride_b": "i32", "stride_c": "i32"}
TILES = {"a": tile(128, 64), "b": tile(128, 64), "c": tile(128, 128)}
HEADS = {"q": tile(128, 128), "k": tile(64, 128), "v": tile(64, 128), "o": tile(128, 128)}

for sm in (90, 100):

    def emit(name, kernel, signature, constants, ctas=1, *, sm=sm, **options):
        write(
            f"triton_{name}_sm_{sm}_c{ctas}",
            lambda: compiled(kernel, signature, constants, sm, ctas, **options),
        )

    warps = 8 if sm == 90 else 4
    for ctas in (1, 2):
        emit("matmul", matmul, POINTERS | SHAPE | STRIDES, SIZES, ctas)
        emit("matmul_tma", matmul_tma, TILES | {"K": "i32"}, SIZES | {"SPECIALIZE": False}, ctas)
        emit("matmul_device_tma", matmul_device_tma, POINTERS | SHAPE, SIZES, ctas)
        emit(
            "softmax",
            softmax,
            {"y": "*fp32", "x": "*fp32", "stride": "i32", "n": "i32"},
            {"B": 2048},
            ctas,
        )
    emit(
        "matmul_specialized",
        matmul_tma,
        TILES | {"K": "i32"},
        SIZES | {"SPECIALIZE": True},
        num_warps=warps,
    )
    for specialize, flatten in ((False, True), (True, False), (True, True)):
        way = ("_specialized" if specialize else "") + ("_flat" if flatten else "")
        constants = SIZES | {"CTAS": 3, "SPECIALIZE": specialize, "FLATTEN": flatten}
        emit(f"persistent{way}", matmul_persistent, TILES | SHAPE, constants, num_warps=warps)
    for specialize in (False, True):
        constants = {"BM": 128, "BN": 64, "D": 128, "SPECIALIZE": specialize}
        name = "attention_specialized" if specialize else "attention"
        emit(name, attention, HEADS | {"N": "i32", "scale": "fp32"}, constants, num_warps=warps)
