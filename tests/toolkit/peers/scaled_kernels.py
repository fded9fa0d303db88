"""Block-scaled products for Blackwell, which the emulator leaves out: of Triton and of quack.

CUTE_DSL_ARCH=sm_100a python scaled_kernels.py FOLDER [WORD]
"""

from quack_compiler import compile_gemm

# isort: split
# both packages read the environment when they are imported
import triton
import triton.language as tl
from cutlass import BFloat16, Float8E4M3FN, Float8E8M0FNU
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from written import of_triton, write


@triton.jit
def matmul_scaled(
    a, b, c, scales_a, scales_b, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    rows = tl.arange(0, BM)
    columns = tl.arange(0, BN)
    depth = tl.arange(0, BK)
    groups = tl.arange(0, BK // 32)
    x = tl.load(a + rows[:, None] * BK + depth[None, :])
    y = tl.load(b + depth[:, None] * BN + columns[None, :])
    of_x = tl.load(scales_a + rows[:, None] * (BK // 32) + groups[None, :])
    of_y = tl.load(scales_b + columns[:, None] * (BK // 32) + groups[None, :])
    sums = tl.dot_scaled(x, of_x, "e4m3", y, of_y, "e4m3")
    tl.store(c + rows[:, None] * BN + columns[None, :], sums)


def scaled_of_triton():
    pointers = {"a": "*fp8e4nv", "b": "*fp8e4nv", "c": "*fp32"}
    pointers |= {"scales_a": "*u8", "scales_b": "*u8"}
    sizes = {"BM": 128, "BN": 128, "BK": 128}
    signature = pointers | dict.fromkeys(sizes, "constexpr")
    source = ASTSource(fn=matmul_scaled, signature=signature, constexprs=sizes)
    return of_triton(triton.compile(source, target=GPUTarget("cuda", 100, 32)))


def scaled_of_quack():
    compiled = compile_gemm(
        Float8E4M3FN,
        Float8E4M3FN,
        BFloat16,
        tile_shape_mn=(128, 128),
        cluster_shape_mnk=(1, 1, 1),
        sf_dtype=Float8E8M0FNU,
        sf_vec_size=32,
    )
    return compiled.__ptx__, None


write("triton_matmul_scaled_sm_100_c1", scaled_of_triton)
write("quack_gemm_scaled_sm_100a_c1x1", scaled_of_quack)
