"""The launcher of an emitted folder, without a GPU: what it picks, counts, packs and refuses.

What it packs and counts is compared with `kernels.abi` and `tile_map`, which others test against the kernels.
The tests named c9 to c16 are cases from public bug reports.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emit_cases import CASES, MOE, SHORT, SQUARE, paths_of
from tilewright import Gemm, GroupedGemm, Options, load
from tilewright.emit import emit
from tilewright.emit.constants import config_constants
from tilewright.kernels import abi
from tilewright.run.elements import decode as decode_bits
from tilewright.tile_map import TileMap

TEMPLATES = Path(__file__).parents[2] / "src" / "tilewright" / "emit" / "templates"
sys.path.insert(0, str(TEMPLATES))

import arrays  # noqa: E402  (a template, imported as the emitted folder does)
import launcher  # noqa: E402
import paths  # noqa: E402


def with_swapped(problem: Any, device: str) -> list[Any]:
    """Configurations of the paths; of ragged ones the transposed too, which few plans choose."""
    configs = [path.config for path in paths_of(problem, device, has_c=True, has_bias=True)]
    ragged = [config for config in configs if config.ragged == "m"]
    return configs + [replace(config, swap_ab=True, ragged="n") for config in ragged]


@pytest.mark.parametrize(("problem", "device"), CASES)
def test_arguments_and_maps_are_those_of_the_kernel_s_abi(problem: Any, device: str) -> None:
    for config in with_swapped(problem, device):
        told = config_constants(config)
        for m, n, k, groups in ((512, 640, 1024, 1), (16, 4096, 128, 7)):
            shape, theirs = launcher.Shape(m, n, k, groups), abi.GemmShape(m, n, k, groups)
            pointers = {"a": 1 << 20, "b": 2 << 20, "d": 3 << 20, "c": 16, "bias": 32, "counts": 48}
            types = {"a": problem.dtype, "b": problem.dtype, "d": problem.out_dtype}
            of_a, of_b = (
                (pointers["b"], pointers["a"])
                if told["swap_ab"]
                else (pointers["a"], pointers["b"])
            )
            blank = [bytes(128)] * 3
            assert launcher.pack_arguments(told, shape, blank, pointers, 2.0, 0.5) == abi.pack_arguments(
                config, theirs, (blank[0], blank[1], blank[2]), output=pointers["d"], c=16, bias=32,
                counts=48, alpha=2.0, beta=0.5, a_data=of_a, b_data=of_b,
            )  # fmt: skip
            if not config.uses_tma:
                continue
            specs = [*abi.operand_maps(config, theirs)]
            specs += [abi.output_map(config, theirs)] * config.store_by_tma
            for given, spec in zip(
                launcher.tensor_maps(told, shape, pointers, types), specs, strict=False
            ):
                assert (tuple(given["dims"]), tuple(given["strides"])) == (
                    spec.dims,
                    spec.strides_bytes,
                )
                assert (tuple(given["box"]), given["swizzle_bytes"]) == (
                    spec.box,
                    spec.swizzle_bytes,
                )


def test_tiles_counted_on_the_host_bound_those_on_the_device() -> None:
    rng = random.Random(1)
    for config in with_swapped(MOE, "h200"):
        told, tiling = config_constants(config), config.tiling
        for _ in range(50):
            counts = [rng.choice((0, 1, 7, 127, 128, 129, 700)) for _ in range(rng.randint(1, 9))]
            shape = launcher.Shape(sum(counts), 4096, 4096, len(counts))
            groups = GroupedGemm(counts=tuple(counts), n=4096, k=4096).groups()
            if config.swap_ab:
                groups = groups._replace(m=groups.n, n=groups.m)
            tile_map = TileMap(groups, tiling.cta_tile, tiling.cluster_shape, config.raster)
            assert launcher.count_tiles(told, shape, counts) == tile_map.num_tiles
            assert launcher.count_tiles(told, shape) >= tile_map.num_tiles


# ---- the launcher's decisions


class FakeCuda:
    """A GPU that answers what it is told and remembers what it was asked."""

    name, device_id = "a GPU", 0

    def __init__(self, capability: tuple[int, int], resident: int = 66, **attributes: int) -> None:
        self.capability, self.resident = capability, resident
        self.attributes = {
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232_448,
            "CLUSTER_LAUNCH": int(capability >= (9, 0)),
            **attributes,
        }
        self.set: dict[str, int] = {}
        self.launches: list[tuple[Any, ...]] = []
        self.compiled: list[str] = []

    def attribute(self, name: str) -> int:
        return self.attributes[name]

    def set_attribute(self, _function: Any, name: str, value: int) -> None:
        self.set[name] = value

    def resident_clusters(self, *_: Any) -> int:
        return self.resident

    def compile(self, _source: str, arch: str) -> tuple[bytes, str]:
        self.compiled.append(arch)
        return b"cubin", "NVRTC"

    def load(self, *_: Any) -> str:
        return "function"

    def allocate(self, _size: int) -> int:
        return 1 << 20

    def free(self, _pointer: int) -> None: ...

    def zero(self, *_: Any) -> None: ...

    def write(self, *_: Any) -> None: ...

    def encode(self, **_: Any) -> bytes:
        return bytes(128)

    def launch(self, *given: Any) -> None:
        self.launches.append(given)


def gemm_on(
    cuda: FakeCuda, folder: Path, monkeypatch: pytest.MonkeyPatch, **given: Any
) -> launcher.Gemm:
    monkeypatch.setattr(paths, "HERE", folder)
    monkeypatch.setattr(paths.read_constants, "__defaults__", (folder,))
    return launcher.Gemm(cuda=cuda, **given)


@pytest.mark.parametrize(
    ("capability", "path", "arch", "why"),
    [
        ((10, 0), "blackwell", "sm_100a", "compute capability 10.0: blackwell"),
        ((10, 3), "blackwell", "sm_103a", "compute capability 10.3: blackwell"),
        (
            (9, 0),
            "hopper",
            "sm_90a",
            "not blackwell (tcgen05), which needs compute capability 10.0 or 10.3",
        ),
        ((8, 0), "portable", "sm_80", "not hopper (wgmma), which needs compute capability 9.0"),
        ((12, 0), "portable", "sm_120", "not hopper (wgmma)"),
    ],
)
def test_each_gpu_gets_its_path_and_is_told_why(
    capability: tuple[int, int],
    path: str,
    arch: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    emit(SQUARE, load("b200"), tmp_path / "out")
    cuda = FakeCuda(capability)
    gemm = gemm_on(cuda, tmp_path / "out", monkeypatch)
    assert (gemm.path, cuda.compiled) == (path, [arch])
    assert why in gemm.why
    (tmp_path / "out" / f"kernel.{arch}.cubin").write_bytes(b"ready")
    assert (
        gemm_on(FakeCuda(capability), tmp_path / "out", monkeypatch).built == f"kernel.{arch}.cubin"
    )


def test_an_older_gpu_is_told_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emit(SHORT, load("b200"), tmp_path / "out")
    with pytest.raises(arrays.LaunchError, match="no portable path: a100 has no known tensor rate"):
        gemm_on(FakeCuda((8, 0)), tmp_path / "out", monkeypatch)
    with pytest.raises(arrays.LaunchError, match="no path 'fast'; there are blackwell, hopper"):
        gemm_on(FakeCuda((9, 0)), tmp_path / "out", monkeypatch, path="fast")
    small = FakeCuda((9, 0), MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=101_376)
    with pytest.raises(arrays.LaunchError, match="a GPU allows 101376"):
        gemm_on(small, tmp_path / "out", monkeypatch)


def test_c9_the_grid_in_clusters_and_in_ctas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """cuda.core's grid counts clusters, the driver's CTAs: 4 clusters of 2 are 8 CTAs."""
    emit(SQUARE, load("h200"), tmp_path / "out")
    cuda = FakeCuda((9, 0), resident=4)
    gemm = gemm_on(cuda, tmp_path / "out", monkeypatch)
    assert gemm.place(launcher.Shape(8192, 8192, 8192, 1)) == (1024, 4, 8)
    monkeypatch.setattr(paths, "Cuda", lambda _id: cuda)
    assert launcher.main() == 0
    said = capsys.readouterr().out
    assert "grid:  4 clusters = 8 CTAs along x for 1024 tiles; 4 clusters are resident" in said
    assert "path:  hopper\nwhy:   compute capability 9.0: hopper (wgmma)" in said


def test_c12_sixteen_ctas_need_the_attribute_and_zero_is_a_hard_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(cluster_shape=(4, 4, 1))
    emit(SQUARE, load("h200"), tmp_path / "out", options=options)
    cuda = FakeCuda((9, 0), resident=5)
    gemm_on(cuda, tmp_path / "out", monkeypatch)
    assert cuda.set["NON_PORTABLE_CLUSTER_SIZE_ALLOWED"] == 1
    assert cuda.set["MAX_DYNAMIC_SHARED_SIZE_BYTES"] > 48 * 1024
    with pytest.raises(arrays.LaunchError, match="places no cluster of 16 CTAs"):
        gemm_on(FakeCuda((9, 0), resident=0), tmp_path / "out", monkeypatch)
    with pytest.raises(arrays.LaunchError, match="cannot launch clusters"):
        gemm_on(FakeCuda((9, 0), CLUSTER_LAUNCH=0), tmp_path / "out", monkeypatch)
    emit(SQUARE, load("h200"), tmp_path / "two")
    small = FakeCuda((9, 0))
    gemm_on(small, tmp_path / "two", monkeypatch)
    assert "NON_PORTABLE_CLUSTER_SIZE_ALLOWED" not in small.set


def test_c15_clusters_lie_along_x(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """70,000 clusters: more than y and z take."""
    emit(
        Gemm(m=64, n=64, k=64),
        load("h200"),
        tmp_path / "out",
        options=Options(scheduler="single_tile"),
    )
    cuda = FakeCuda((9, 0))
    gemm = gemm_on(cuda, tmp_path / "out", monkeypatch)
    rows = launcher.cluster_tile(gemm.numbers)[0]
    where = gemm.place(launcher.Shape(70_000 * rows, 8, 64, 1))
    assert where.grid_clusters == 70_000
    a, b = (arrays.DeviceArray(cuda, (extent, 64), "bf16") for extent in (70_000 * rows, 8))
    gemm(a, b)
    assert cuda.launches[0][1] == where.grid_ctas, "one extent, along x"
    with pytest.raises(arrays.LaunchError, match="grid's limit"):
        paths.place(gemm.numbers, 2**31, 66)


def test_c16_empty_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[0, 128, 0] along m has the tiles of 128 rows; [0, 64] along k all tiles; nothing launches nothing."""
    emit(GroupedGemm(counts=(0, 128, 0), n=256, k=64), load("h200"), tmp_path / "m")
    cuda = FakeCuda((9, 0))
    gemm = gemm_on(cuda, tmp_path / "m", monkeypatch)
    full = gemm.place(launcher.Shape(128, 256, 64, 1), [128])
    assert gemm.place(launcher.Shape(128, 256, 64, 3), [0, 128, 0]) == full
    b = arrays.DeviceArray(cuda, (3, 256, 64), "bf16")
    out = gemm(arrays.DeviceArray(cuda, (0, 64), "bf16"), b, counts=[0, 0, 0])
    assert (out.shape, cuda.launches) == ((0, 256), [])
    gemm(arrays.DeviceArray(cuda, (128, 64), "bf16"), b, counts=[0, 128, 0])
    assert len(cuda.launches) == 1
    emit(GroupedGemm(counts=(0, 64), n=256, m=128, grouped="k"), load("h200"), tmp_path / "k")
    cuda = FakeCuda((9, 0))
    gemm = gemm_on(cuda, tmp_path / "k", monkeypatch)
    for counts in ([0, 64], [0, 0]):
        a, b = (arrays.DeviceArray(cuda, (extent, sum(counts)), "bf16") for extent in (128, 256))
        assert gemm(a, b, counts=counts).shape == (2, 128, 256)
    assert len(cuda.launches) == 2, "an empty K group still writes zeros"
    told = launcher.tensor_maps(gemm.numbers, launcher.Shape(128, 256, 0, 2),
                                {"a": 0, "b": 0, "d": 64}, dict.fromkeys("abd", "bf16"))  # fmt: skip
    assert all(min(each["dims"]) >= 1 and each["pointer"] for each in told)


def test_c11_a_preferred_cluster_divides_the_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emit(
        SQUARE,
        load("b200"),
        tmp_path / "out",
        options=Options(cluster_shape=(1, 1, 1), scheduler="static"),
    )
    gemm = gemm_on(
        FakeCuda((10, 0), resident=147), tmp_path / "out", monkeypatch, preferred_cluster=4
    )
    assert gemm.place(launcher.Shape(8192, 8192, 8192, 1)).grid_ctas == 144
    with pytest.raises(arrays.LaunchError, match=r"10\.0 or later"):
        gemm_on(
            FakeCuda((9, 0)), tmp_path / "out", monkeypatch, path="portable", preferred_cluster=2
        )
    emit(SQUARE, load("b200"), tmp_path / "pair")
    with pytest.raises(arrays.LaunchError, match="no multiple of the fallback, 2"):
        gemm_on(FakeCuda((10, 0)), tmp_path / "pair", monkeypatch, preferred_cluster=3)
    with pytest.raises(arrays.LaunchError, match="multicast masks"):
        gemm_on(FakeCuda((10, 0)), tmp_path / "pair", monkeypatch, preferred_cluster=4)


def test_what_arrays_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emit(SQUARE, load("h200"), tmp_path / "out")
    cuda = FakeCuda((9, 0))
    gemm = gemm_on(cuda, tmp_path / "out", monkeypatch)

    def device(*shape: int, dtype: str = "bf16") -> arrays.DeviceArray:
        return arrays.DeviceArray(cuda, shape, dtype)

    class Strided:
        __cuda_array_interface__ = {  # noqa: RUF012
            "shape": (128, 64), "strides": (256, 2), "typestr": "<u2", "data": (1 << 20, False)
        }  # fmt: skip

    for a, b, given, says in (
        (np.zeros((128, 64)), device(128, 64), {}, "host memory"),
        (
            device(128, 64, dtype="fp16"),
            device(128, 64),
            {},
            "A is float16; this kernel takes bfloat16",
        ),
        (Strided(), device(128, 64), {}, r"A is strided: \(128, 1\)"),
        (device(128, 64), device(128, 72), {}, r"B has shape \(128, 72\); \(128, 64\) is needed"),
        (device(2, 128, 64), device(128, 64), {}, r"A has 3 axes and B 2; .*\[m, k\]"),
        (device(128, 60), device(128, 60), {}, "A has rows of 120 bytes.* pad rows to 64"),
        (device(128, 64), device(130, 64), {}, "D has rows of 260 bytes.* pad rows to 136"),
        (device(128, 0), device(128, 0), {}, "k is 0"),
        (
            device(128, 64),
            device(128, 64),
            {"bias": device(128, dtype="fp32")},
            "was emitted without bias",
        ),
        (device(128, 64), device(128, 64), {"counts": [128]}, "no groups"),
        ("A", device(128, 64), {}, "A is a str"),
    ):
        with pytest.raises(arrays.LaunchError, match=says):
            gemm(a, b, **given)
    assert not cuda.launches


def test_extents_beyond_tma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emit(SQUARE, load("h200"), tmp_path / "out")
    cuda = FakeCuda((9, 0))
    gemm = gemm_on(cuda, tmp_path / "out", monkeypatch)
    huge = arrays.DeviceArray(cuda, (2**31, 8), "bf16")
    with pytest.raises(
        arrays.LaunchError, match="m is 2147483648; the kernel counts to 2147483647"
    ):
        gemm(huge, huge)
    wide = arrays.DeviceArray(cuda, (2**20, 2**20), "bf16")
    with pytest.raises(
        arrays.LaunchError, match="A has 2199023255552 bytes a group; TMA takes less"
    ):
        gemm(wide, wide)


def test_counts_that_do_not_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emit(MOE, load("h200"), tmp_path / "out")
    cuda = FakeCuda((9, 0))
    gemm = gemm_on(cuda, tmp_path / "out", monkeypatch)
    a, b = (arrays.DeviceArray(cuda, shape, "bf16") for shape in ((256, 4096), (3, 4096, 4096)))
    with pytest.raises(arrays.LaunchError, match="add up to 255; the arrays hold 256 along m"):
        gemm(a, b, counts=[128, 127, 0])
    with pytest.raises(arrays.LaunchError, match="need counts"):
        gemm(a, b)
    five = arrays.DeviceArray(cuda, (5, 4096, 4096), "bf16")
    with pytest.raises(arrays.LaunchError, match="5 groups; the kernel was compiled for 4"):
        gemm(a, five, counts=[256, 0, 0, 0, 0])


def test_a_counter_for_each_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches that overlap must not draw from one counter."""
    emit(SQUARE, load("h200"), tmp_path / "out", options=Options(scheduler="dynamic_atomic"))
    cuda = FakeCuda((9, 0))
    zeroed: list[Any] = []
    monkeypatch.setattr(cuda, "zero", lambda _at, _size, stream: zeroed.append(stream))
    gemm = gemm_on(cuda, tmp_path / "out", monkeypatch)
    a = arrays.DeviceArray(cuda, (128, 64), "bf16")
    for stream in (0, 7, 7, 0):
        gemm(a, a, stream=stream)
    assert zeroed == [0, 7]


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8_e4m3", "fp8_e5m2"])
def test_element_types_round_to_nearest(dtype: str) -> None:
    rng = np.random.default_rng(0)
    values = rng.uniform(-2, 2, 2000).astype(np.float32)
    bits = arrays.encode(values, dtype)
    seen = arrays.decode(bits, dtype)
    assert np.array_equal(seen, decode_bits(bits, dtype)), "as the package's own tables"
    unit = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp8_e4m3": 2.0**-4, "fp8_e5m2": 2.0**-3}[dtype]
    assert np.all(np.abs(seen - values) <= unit * np.abs(values) + 2.0**-10)
    assert np.array_equal(
        arrays.encode(seen.astype(np.float32), dtype), np.where(seen == 0, 0, bits)
    )
