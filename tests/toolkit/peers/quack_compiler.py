"""quack's compiler with no GPU: the environment that it reads, and a GEMM with nothing special about it.

To be imported before cutlass and quack; CUTE_DSL_ARCH says what for.
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
BLACKWELL = ARCH == "sm_100a"


def compile_gemm(a, b, d, c=None, **given):
    """A persistent GEMM of these types, K-major, no epilogue of its own; `given` as quack's compiler takes it."""
    from quack.gemm import _compile_gemm  # noqa: PLC0415  (reads the environment when it is imported)
    from quack.rounding import RoundingMode  # noqa: PLC0415  (likewise)

    plain = {
        "a_major": "k",
        "b_major": "k",
        "d_major": "n",
        "c_major": None if c is None else "n",
        "pingpong": False,
        "persistent": True,
        "is_dynamic_persistent": False,
        "rowvec_dtype": None,
        "colvec_dtype": None,
        "colvec_ndim": 0,
        "alpha_mode": 0,
        "beta_mode": 0,
        "add_to_output": False,
        "concat_layout": (),
        "varlen_m": False,
        "varlen_k": False,
        "gather_A": False,
        "use_tma_gather": False,
        "has_batch_idx_permute": False,
        "device_capacity": (10, 0) if BLACKWELL else (9, 0),
        "rounding_mode": RoundingMode.RN,
        "sr_seed_mode": 0,
        "num_warps": None,
    }
    return _compile_gemm(a, b, d, c, **plain | given)
