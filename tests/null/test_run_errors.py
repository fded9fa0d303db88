"""What a GPU refuses, said in this package's words; the driver is a stand-in that answers as the real one does."""

from __future__ import annotations

from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright import Gemm, load
from tilewright.emit.configs import Extras, make_config
from tilewright.errors import BadInput, NoFit, Unsupported
from tilewright.kernels.abi import GemmShape, operand_maps
from tilewright.plan import make_plan
from tilewright.run.gemm import GemmKernel
from tilewright.run.gpu import Gpu


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_INVALID_IMAGE = 200


def fake_gpu(**calls: Any) -> Gpu:
    """A `Gpu` whose driver gives these answers."""
    answers: dict[str, Any] = {
        "cuMemGetInfo": (Status.CUDA_SUCCESS, 1000, 2000),
        "cuDeviceTotalMem": (Status.CUDA_SUCCESS, 2000),
        "cuDeviceGetName": (Status.CUDA_SUCCESS, b"NVIDIA T\0"),
        "cuDriverGetVersion": (Status.CUDA_SUCCESS, 12040),
        **calls,
    }

    def stand_in(name: str) -> Any:
        def function(*_: Any) -> Any:
            return answers[name]

        function.__name__ = name
        return function

    gpu = Gpu.__new__(Gpu)
    gpu._driver = SimpleNamespace(**{name: stand_in(name) for name in answers})
    gpu._device, gpu._allocated, gpu._modules = 0, [], []
    return gpu


def test_out_of_memory_says_how_much_there_is() -> None:
    gpu = fake_gpu(cuMemAlloc=(Status.CUDA_ERROR_OUT_OF_MEMORY, 0))
    with pytest.raises(NoFit, match=r"5000 bytes .* needed; 1000 of 2000 on NVIDIA T are free"):
        gpu.allocate(5000)


def test_a_driver_older_than_the_toolkit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = fake_gpu(cuModuleLoadData=(Status.CUDA_ERROR_INVALID_IMAGE, 0))
    monkeypatch.setattr(Gpu, "toolkit", "13.5")
    with pytest.raises(Unsupported, match=r"CUDA 12\.4.* cannot load a cubin of NVRTC 13\.5"):
        gpu.load(b"")


def bindable() -> tuple[GemmKernel, Any]:
    """A kernel that was never compiled, to bind arguments to."""
    problem = Gemm(m=512, n=512, k=512)
    device = load("h200")
    config, _ = make_config(problem, make_plan(problem, device), device, Extras())
    kernel = GemmKernel.__new__(GemmKernel)
    kernel.config, kernel.resident_clusters = config, 66
    kernel._gpu, kernel._function, kernel._counter = fake_gpu(), None, 0
    return kernel, config


def test_a_misaligned_operand_is_named() -> None:
    kernel, _ = bindable()
    with pytest.raises(BadInput, match="B starts at 0x1004; TMA needs a multiple of 16"):
        kernel.bind(GemmShape(512, 512, 512), 8, a=0x1000, b=0x1004, output=0x2000)


def test_no_tile_binds_nothing() -> None:
    kernel, _ = bindable()
    bound = kernel.bind(GemmShape(0, 512, 512), 0, a=1, b=1, output=1)
    assert bound.grid_clusters == 0
    bound.launch()


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        (
            GemmShape(512, 512, 2**40),
            "a has 1099511627776 elements along one axis; TMA takes 1 to 2\\^32",
        ),
        (GemmShape(512, 512, 500), "a has a stride of 1000 bytes; TMA needs a multiple of 16 .*"),
    ],
)
def test_sizes_beyond_tma_are_named(shape: GemmShape, says: str) -> None:
    _, config = bindable()
    with pytest.raises(BadInput, match=says):
        operand_maps(config, shape)[0].check("a")
