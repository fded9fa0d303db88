"""The `cuda` extra, imported late: NVRTC and the driver, or one error that says what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.errors import TilewrightError

if TYPE_CHECKING:
    from collections.abc import Callable

EXTRA = "pip install 'tilewright[cuda]'"


class MissingCuda(TilewrightError):
    """The extra, the compiler library, the driver or the GPU is not there."""


class CudaFailed(TilewrightError):
    """A call of the driver or of NVRTC failed."""


def import_nvrtc() -> Any:
    """The module `cuda.bindings.nvrtc` with its library loaded.

    Raises:
        MissingCuda: names the extra.
    """
    try:
        from cuda.bindings import nvrtc  # noqa: PLC0415  (the extra may be missing)

        call(nvrtc.nvrtcVersion)
    except ImportError as error:
        raise MissingCuda(f"compiling needs the cuda extra: {EXTRA} ({error})") from None
    except (RuntimeError, OSError):
        raise MissingCuda(
            f"cuda.bindings is installed but not the NVRTC library; the cuda extra has both: {EXTRA}"
        ) from None
    return nvrtc


def import_driver() -> Any:
    """The module `cuda.bindings.driver`, initialised, with at least one GPU.

    Raises:
        MissingCuda: names the extra, the driver or the GPU, whichever is missing.
    """
    try:
        from cuda.bindings import driver  # noqa: PLC0415  (the extra may be missing)
    except ImportError as error:
        raise MissingCuda(f"a probe needs the cuda extra: {EXTRA} ({error})") from None
    try:
        (status,) = driver.cuInit(0)
    except (RuntimeError, OSError):
        raise MissingCuda("no NVIDIA driver on this machine: libcuda was not found") from None
    if status == driver.CUresult.CUDA_ERROR_NO_DEVICE:
        raise MissingCuda("an NVIDIA driver, but no GPU that this process may use")
    if int(status):
        raise MissingCuda(f"the NVIDIA driver does not start: {status.name}")
    return driver


def call(function: Callable[..., Any], *args: Any) -> Any:
    """Call a binding, which returns (status, values...): the value, or a tuple of several.

    Raises:
        CudaFailed: names the call and its status.
    """
    status, *values = function(*args)
    if int(status):
        raise CudaFailed(f"{function.__name__} failed: {status.name}", given=status.name)
    return values[0] if len(values) == 1 else tuple(values)
