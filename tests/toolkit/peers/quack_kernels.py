"""Kernels of quack, in CuTe DSL, as its package ships them: GEMMs with their schedulers, norms and reductions over a cluster.

    python quack_kernels.py FOLDER [WORD]     # CUTE_DSL_ARCH=sm_90a or sm_100a

Compiled with fake tensors and no GPU, by the functions that quack itself compiles with.
"""

from quack_compiler import ARCH, BLACKWELL, compile_gemm

# isort: split
import launched

if launched.COMPILER is not None:
    launched.stand_in()

# both packages read the environment when they are imported
import torch
from cutlass import BFloat16, Int32, Int64
from quack.cross_entropy import CrossEntropy
from quack.gemm import _split_k_buffers
from quack.gemm_config import SplitKMode
from quack.gemm_default_epi import GemmDefaultEpiMixin
from quack.gemm_tvm_ffi_utils import make_scheduler_args, make_varlen_args
from quack.rmsnorm import _compile_rmsnorm_bwd, _compile_rmsnorm_fwd
from quack.softmax import Softmax
from quack.topk import TopK
from written import write

RESIDENT_CLUSTERS = 2
"""What the launches are told: fewer than they have tiles, so that a cluster works on several."""


def emit(name, cluster, compiled, call, **tensors):
    """Write a kernel and the launch that `call(compiled, **tensors)` makes; no launch without a C compiler."""

    def made():
        kernel = compiled()
        if launched.COMPILER is None:
            return kernel.__ptx__, None
        given = {name: launched.on_gpu(tensor) for name, tensor in tensors.items()}
        return kernel.__ptx__, launched.record(kernel, lambda each: call(each, **given), given)

    write(f"quack_{name}_{ARCH}_c{cluster}", made)


def bf16(*shape):
    return torch.zeros(shape, dtype=torch.bfloat16)


def f32(*shape):
    return torch.zeros(shape, dtype=torch.float32)


def gemm(name, tile, cluster, c=None, *, pingpong=False, dynamic=False, split_k=1):
    """D = A B' (+ C) of two by two cluster tiles, which M, N and K fall short of."""
    x, y = cluster
    pair = BLACKWELL and tile[0] == 256
    m, n, k = 2 * tile[0] * x // (2 if pair else 1) - 24, 2 * tile[1] * y - 8, 136 * split_k
    tensors = {"a": bf16(1, m, k), "b": bf16(1, n, k), "d": bf16(1, m, n)}
    if c is not None:
        tensors["c"] = bf16(1, m, n)
    if dynamic and not BLACKWELL:
        tensors["semaphore"] = torch.zeros(1, dtype=torch.int32)
    if split_k > 1:
        flags, partials = _split_k_buffers(
            tensors["d"], SplitKMode.SERIAL, *tile, *cluster, BLACKWELL
        )
        tensors |= {"flags": flags.permute(1, 2, 0), "partials": partials.permute(3, 1, 2, 0)}

    def call(compiled, a, b, d, c=None, semaphore=None, flags=None, partials=None):
        epilogue = GemmDefaultEpiMixin.EpilogueArguments(
            add_to_output=None,
            rounding_mode=None,
            split_k_semaphore=flags,
            split_k_workspace=partials,
        )
        scheduler = make_scheduler_args(RESIDENT_CLUSTERS, 8, semaphore)
        compiled(a, b, d, c, epilogue, scheduler, make_varlen_args(None, None, None), None, None)

    emit(
        f"gemm_{name}",
        f"{x}x{y}",
        lambda: compile_gemm(
            BFloat16,
            BFloat16,
            BFloat16,
            c,
            tile_shape_mn=tile,
            cluster_shape_mnk=(x, y, 1),
            pingpong=pingpong,
            is_dynamic_persistent=dynamic,
            split_k=split_k,
        ),
        call,
        **tensors,
    )


WIDE = 65536  # elements in a row: more than one CTA's share, so quack spreads it over a cluster
ROWS, WIDE_ROWS = 3, 2
EPSILON = 1e-6


def norm(name, n, cluster, *, layernorm=False):
    bias = BFloat16 if layernorm else None
    rows = WIDE_ROWS if cluster > 1 else ROWS
    more = {"bias": bf16(n), "mean": f32(rows)} if layernorm else {}

    def call(compiled, x, weight, out, rstd, bias=None, mean=None):
        compiled(x, weight, bias, None, out, None, rstd, mean, EPSILON)

    emit(
        name,
        f"1x{cluster}",
        lambda: _compile_rmsnorm_fwd(
            BFloat16, BFloat16, None, BFloat16, bias, None, n, True, layernorm, layernorm, False
        ),
        call,
        x=bf16(rows, n),
        weight=bf16(n),
        out=bf16(rows, n),
        rstd=f32(rows),
        **more,
    )


def norm_backward(name, n, cluster):
    blocks = 2  # quack's `sm_count`: each adds up its rows' part of the weight's gradient

    def call(compiled, x, weight, dout, rstd, dx, dweight):
        compiled(x, weight, dout, None, rstd, None, dx, dweight, None, None, blocks)

    emit(
        name,
        f"1x{cluster}",
        lambda: _compile_rmsnorm_bwd(
            n, BFloat16, BFloat16, BFloat16, BFloat16, False, None, None, True
        ),
        call,
        x=bf16(ROWS, n),
        weight=bf16(n),
        dout=bf16(ROWS, n),
        rstd=f32(ROWS),
        dx=bf16(ROWS, n),
        dweight=f32(blocks, n),
    )


if BLACKWELL:
    gemm("clc", (128, 128), (1, 1), dynamic=True)
    gemm("clc_pair", (256, 256), (2, 1), dynamic=True)
    gemm("clc_pair_c", (256, 128), (2, 1), BFloat16, dynamic=True)
    gemm("clc_four", (256, 256), (2, 2), dynamic=True)
    gemm("static", (128, 128), (1, 2))
    gemm("static_pair", (256, 256), (2, 1))
    gemm("static_pair_split_k", (256, 128), (2, 1), split_k=2)
else:
    gemm("static", (128, 256), (2, 1))
    gemm("static_c", (128, 192), (1, 2), BFloat16)
    gemm("pingpong", (128, 128), (2, 1), pingpong=True)
    gemm("semaphore", (128, 256), (2, 1), dynamic=True)
    gemm("static_split_k", (128, 128), (2, 1), split_k=2)
norm("rmsnorm", 4096, 1)
norm("rmsnorm_wide", WIDE, 4)
norm("layernorm_wide", WIDE, 4, layernorm=True)
norm_backward("rmsnorm_backward", 4096, 1)
norm_backward("rmsnorm_backward_wide", WIDE, 8)
emit(
    "softmax_wide",
    "1x4",
    lambda: Softmax.compile(BFloat16, BFloat16, WIDE),
    lambda compiled, x, out: compiled(x, out),
    x=bf16(WIDE_ROWS, WIDE),
    out=bf16(WIDE_ROWS, WIDE),
)
emit(
    "cross_entropy_wide",
    "1x4",
    lambda: CrossEntropy.compile(BFloat16, Int64, None, WIDE, True, False, None, 0),
    lambda compiled, x, target, loss, lse: compiled(
        x, target, None, loss, lse, None, None, Int32(-100)
    ),
    x=bf16(WIDE_ROWS, WIDE),
    target=torch.zeros(WIDE_ROWS, dtype=torch.int64),
    loss=f32(WIDE_ROWS),
    lse=f32(WIDE_ROWS),
)
emit(
    "topk",
    "1x1",
    lambda: TopK.compile(BFloat16, 1024, 32, False),
    lambda compiled, x, values, indices: compiled(x, values, indices),
    x=bf16(ROWS, 1024),
    values=bf16(ROWS, 32),
    indices=torch.zeros((ROWS, 32), dtype=torch.int32),
)
