"""Kernels of quack, in CuTe DSL, as its package ships them: GEMMs with their schedulers, norms and reductions over a cluster.

    python quack_kernels.py FOLDER [WORD]     # CUTE_DSL_ARCH=sm_90a or sm_100a

Compiled with fake tensors and no GPU, by the functions that quack itself compiles with.
"""

import os
import tempfile

ARCH = os.environ["CUTE_DSL_ARCH"]
DUMP = tempfile.TemporaryDirectory()
os.environ |= {
    "CUDA_VISIBLE_DEVICES": "",
    "CUTE_DSL_DUMP_DIR": DUMP.name,
    "CUTE_DSL_KEEP_PTX": "1",  # else the PTX is gone when the compiler returns
    "QUACK_ARCH": ARCH.rstrip("a"),
    "QUACK_CACHE_ENABLED": "0",
}

# both packages read the environment when they are imported
from cutlass import BFloat16, Int64
from quack.cross_entropy import CrossEntropy
from quack.gemm import _compile_gemm
from quack.rmsnorm import _compile_rmsnorm_bwd, _compile_rmsnorm_fwd
from quack.rounding import RoundingMode
from quack.softmax import Softmax
from quack.topk import TopK
from written import write

BLACKWELL = ARCH == "sm_100a"


def emit(name, cluster, compiled):
    write(f"quack_{name}_{ARCH}_c{cluster}", lambda: compiled().__ptx__)


def gemm(name, tile, cluster, c=None, *, pingpong=False, dynamic=False, split_k=1):
    x, y = cluster
    emit(
        f"gemm_{name}",
        f"{x}x{y}",
        lambda: _compile_gemm(
            BFloat16,
            BFloat16,
            BFloat16,
            c,
            a_major="k",
            b_major="k",
            d_major="n",
            c_major=None if c is None else "n",
            tile_shape_mn=tile,
            cluster_shape_mnk=(x, y, 1),
            pingpong=pingpong,
            persistent=True,
            is_dynamic_persistent=dynamic,
            rowvec_dtype=None,
            colvec_dtype=None,
            colvec_ndim=0,
            alpha_mode=0,
            beta_mode=0,
            add_to_output=False,
            concat_layout=(),
            varlen_m=False,
            varlen_k=False,
            gather_A=False,
            use_tma_gather=False,
            has_batch_idx_permute=False,
            device_capacity=(10, 0) if BLACKWELL else (9, 0),
            rounding_mode=RoundingMode.RN,
            sr_seed_mode=0,
            num_warps=None,
            split_k=split_k,
        ),
    )


WIDE = 65536  # elements in a row: more than one CTA's share, so quack spreads it over a cluster


def norm(name, n, cluster, *, layernorm=False):
    bias = BFloat16 if layernorm else None
    emit(
        name,
        f"1x{cluster}",
        lambda: _compile_rmsnorm_fwd(
            BFloat16, BFloat16, None, BFloat16, bias, None, n, True, layernorm, layernorm, False
        ),
    )


def norm_backward(name, n, cluster):
    emit(
        name,
        f"1x{cluster}",
        lambda: _compile_rmsnorm_bwd(
            n, BFloat16, BFloat16, BFloat16, BFloat16, False, None, None, True
        ),
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
emit("softmax_wide", "1x4", lambda: Softmax.compile(BFloat16, BFloat16, WIDE))
emit(
    "cross_entropy_wide",
    "1x4",
    lambda: CrossEntropy.compile(BFloat16, Int64, None, WIDE, True, False, None, 0),
)
emit("topk", "1x1", lambda: TopK.compile(BFloat16, 1024, 32, False))
