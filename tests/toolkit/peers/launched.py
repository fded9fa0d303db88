"""What a package's own host code hands the driver when it launches a kernel: parameters, grid, shared memory.

CuTe DSL compiles the host code of a kernel as well. Here it is called with tensors that claim to be on a GPU, and
a stand-in for its runtime library (`driver.c`) takes the launch. Needs a C compiler.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import nvidia_cutlass_dsl
import tvm_ffi

FOLDER = tempfile.TemporaryDirectory()
COMPILER = shutil.which(os.environ.get("CC", "cc"))
CLUSTER_DIMENSION = 4  # cudaLaunchAttributeClusterDimension
ATTRIBUTE_BYTES = 72
ON_GPU = 2  # kDLCUDA
PARAMETER = re.compile(r"\.param (?:\.align \d+ )?\.(\w)(\d+) [^,\n]*?(?:\[(\d+)\])?,?\n")


class Config(ctypes.Structure):
    """cudaLaunchConfig_t."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("smem_bytes", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("num_attributes", ctypes.c_uint),
    )


class Header(ctypes.Structure):
    """A tvm_ffi tensor up to the device of its DLTensor."""

    _fields_ = (
        ("object", ctypes.c_byte * 24),
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int),
    )


CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Config), ctypes.POINTER(ctypes.c_void_p))


def stand_in():
    """Put the stand-in in front of CuTe DSL's runtime library; before anything of CuTe DSL is imported."""
    (package,) = nvidia_cutlass_dsl.__path__
    runtime = next(Path(package).glob("cu*/lib/libcute_dsl_runtime.so"))
    library = Path(FOLDER.name) / "driver.so"
    source = Path(__file__).with_name("driver.c")
    command = [COMPILER, "-shared", "-fPIC", "-o", library, source]
    subprocess.run(command, check=True)  # noqa: S603 (our own file)
    os.environ["CUTE_DSL_LIBS"] = f"{library}{os.pathsep}{runtime}"


def on_gpu(tensor):
    """The tensor, saying that it is on a GPU: host code looks at its shape and hands its address on."""
    found = tvm_ffi.from_dlpack(tensor)
    Header.from_address(found.__chandle__()).device = ON_GPU
    return found


def address(tensor):
    return Header.from_address(tensor.__chandle__()).data


def memory(place, nbytes):
    return bytes((ctypes.c_char * nbytes).from_address(place))


def sizes(ptx):
    """Bytes of each parameter of the kernel."""
    (signature,) = re.findall(r"\.entry .*?\n\)", ptx, re.DOTALL)
    found = PARAMETER.findall(signature)
    assert len(found) == signature.count(".param "), signature
    return [int(width) // 8 * int(count or 1) for _, width, count in found]


def record(compiled, call, tensors):
    """The one launch that `call` makes.

    Args:
        tensors: those of the call by name; their addresses lie among the parameters.
    """
    launches = []
    nbytes = sizes(compiled.__ptx__)

    @CALLBACK
    def launched(config, parameters):
        each = config[0]
        cluster = [1, 1, 1]
        for i in range(each.num_attributes):
            words = (ctypes.c_uint * 5).from_address(each.attributes + ATTRIBUTE_BYTES * i)
            if words[0] == CLUSTER_DIMENSION:
                cluster = list(words[2:])
        launches.append(
            {
                "grid": list(each.grid),
                "block": list(each.block),
                "cluster": cluster,
                "smem_bytes": each.smem_bytes,
                "parameters": [memory(parameters[i], n).hex() for i, n in enumerate(nbytes)],
                "tensors": {
                    name: {"address": address(t), "shape": list(t.shape), "dtype": str(t.dtype)}
                    for name, t in tensors.items()
                },
            }
        )
        return 0

    library = ctypes.CDLL(str(Path(FOLDER.name) / "driver.so"))
    ctypes.c_void_p.in_dll(library, "launched").value = ctypes.cast(launched, ctypes.c_void_p).value
    call(compiled)
    (launch,) = launches
    return launch
