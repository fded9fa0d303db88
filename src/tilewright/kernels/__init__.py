"""CUDA sources of the kernels, and what turns a plan's choices into one self-contained source.

    config.py       GemmConfig: every choice that a kernel is compiled for
    source.py       the sources with their includes inlined and the configuration written in
    abi.py          a GEMM kernel's one argument as bytes, and the tensor maps that it needs
    harness.py      HarnessConfig: a tile function of the user's in any scheduler's loop
    *.cu, *.cuh     header-free CUDA C++: one file a kernel, one a family of instructions

Nothing here imports CUDA: compiling and launching are `run`'s business.
"""
