"""Every kernel in every variant compiles clean: no spill, no stack, no static shared memory, no warning.

    wgmma      input type x scheduler x cluster              and its SASS
    tcgen05    architecture x input type x scheduler x cluster
    mma.sync   architecture x input type x scheduler, twice
    harness    device x scheduler x cluster size, as far as the device has them

What stands in the table is a full product; tile, output type and epilogue go round with the variant's number,
and a test sees to it that each met each. A test is a group of variants and names those that fail. What the
instructions of tcgen05 and of mma.sync are is asked in test_gemm_sm100.py and test_gemm_portable.py.
"""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from built import build_gemm, faults, main_loop_spills, opcodes

from tilewright.device import load
from tilewright.errors import TilewrightError
from tilewright.kernels import harness
from tilewright.kernels.config import (
    ENTRY,
    IN_DTYPES,
    OUT_DTYPES,
    PORTABLE_TILES,
    SCHEDULERS,
    GemmConfig,
)
from tilewright.kernels.harness import HarnessConfig
from tilewright.problem import OUT_BYTES
from tilewright.run.compiler import Compiled, CompileFailed, compile_source
from tilewright.tile_map import Raster
from tilewright.tiling import make_tiling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Choice = TypeVar("Choice")

pytestmark = pytest.mark.toolkit

EPILOGUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "c and bias, rows not aligned": {"has_c": True, "has_bias": True, "store_by_tma": False},
    "ragged m, bias": {"ragged": "m", "max_groups": 300, "has_bias": True},
    "ragged k, c": {"ragged": "k", "max_groups": 9, "has_c": True},
    "swapped": {"swap_ab": True},
    "swapped, c and bias": {"swap_ab": True, "has_c": True, "has_bias": True},
    "swapped, ragged n": {"swap_ab": True, "ragged": "n", "max_groups": 64},
}


def rotate(choices: Sequence[Choice], number: int) -> Choice:
    """Each in turn, and one further after a round, so that two axes of the same length do not march in step."""
    return choices[(number + number // len(choices)) % len(choices)]


class Variant(NamedTuple):
    """One GEMM kernel.

    Attributes:
        device: whose shared memory decides about the stages.
        group: cta_group.
        number: in its family's product; what the epilogue, the output and the depth go round by.
    """

    device: str
    arch: str
    dtype: str
    scheduler: str
    tile: tuple[int, int]
    number: int
    cluster: tuple[int, int] = (1, 1)
    group: int = 1

    @property
    def out(self) -> str:
        return rotate(OUT_DTYPES, self.number)

    @property
    def epilogue(self) -> str:
        return rotate(tuple(EPILOGUES), self.number)

    def config(self) -> GemmConfig:
        tiling = make_tiling(
            self.dtype,
            OUT_BYTES[self.out],
            load(self.device),
            cta_tile=self.tile,
            cluster_shape=(*self.cluster, 1),
            cta_group=self.group,
        )
        dynamic = self.scheduler in {"dynamic_atomic", "clc"}
        return GemmConfig(
            tiling,
            Raster("m" if self.number % 2 else "n", 8),
            self.scheduler,
            self.out,
            schedule_depth=rotate((1, 2, 3), self.number // 2) if dynamic else 1,
            **EPILOGUES[self.epilogue],
        )

    @property
    def may_spill(self) -> bool:
        """Known to spill before or after the main loop, or next to one that does; whoever cures them takes this away.

        wgmma: 128 accumulators a thread and an epilogue that reads C. mma.sync: 128 as well, and sm_90 has no
        fp8 instruction of this kind: ptxas makes it of two for fp16.
        """
        if self.dtype.startswith("fp8") and self.arch == "sm_90":
            return self.tile[0] * self.tile[1] > 128 * 128
        reads_c = EPILOGUES[self.epilogue].get("has_c", False)
        return self.arch == "sm_90a" and self.tile == (256, 128) and reads_c

    def __str__(self) -> str:
        tile, cluster = ("x".join(map(str, shape)) for shape in (self.tile, self.cluster))
        pair = " pairs" if self.group == 2 else ""
        return (
            f"{self.arch} {self.dtype} to {self.out}, {tile}, cluster {cluster}{pair}, {self.scheduler}, "
            f"{self.epilogue}"
        )


def assert_all(
    variants: Iterable[Variant], more: Callable[[Variant, Compiled], list[str]] | None = None
) -> None:
    """Compile each; fail with every variant that is not clean, and with what `more` finds wrong with it."""
    said = []
    for variant in variants:
        config = variant.config()
        try:
            found = build_gemm(config, variant.arch)
        except CompileFailed as error:
            wrong = [str(error)]
        else:
            wrong = faults(found, ENTRY, config.tiling.threads) + (
                more(variant, found) if more else []
            )
            if variant.may_spill:
                wrong = [each for each in wrong if not re.search("spill|stack|local memory", each)]
                wrong += main_loop_spills(found)
        said += [f"{variant}: {each}" for each in wrong]
    assert not said, "\n".join(said)


# --- wgmma ------------------------------------------------------------------------------------------------------------

WGMMA_CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4))
WGMMA_TILES = ((128, 256), (64, 160), (256, 128), (128, 192), (256, 96))
WGMMA_SCHEDULERS = tuple(name for name in SCHEDULERS if name != "clc")
WGMMA = [
    Variant("h200", "sm_90a", dtype, scheduler, rotate(WGMMA_TILES, number), number, cluster)
    for number, (cluster, dtype, scheduler) in enumerate(
        itertools.product(WGMMA_CLUSTERS, IN_DTYPES, WGMMA_SCHEDULERS)
    )
]


def find_wgmma_faults(variant: Variant, found: Compiled) -> list[str]:
    """What of its SASS is not what the variant asks for."""
    code = opcodes(found)
    config = variant.config()
    name = "QGMMA" if variant.dtype.startswith("fp8") else "HGMMA"
    consumers = 2 if variant.tile[0] >= 128 else 1
    blocks = variant.tile[0] // consumers // 64
    k = config.tiling.mma.shape.k
    expected = {f"{name}.64x{variant.tile[1]}x{k}.F32"}
    # Where the last product of a group may be skipped, ptxas ends the group with one of zeros.
    closes = "HGMMA.64x8x16.F16" if config.ragged == "k" else ""
    multiplied = [opcode for opcode in code if "GMMA" in opcode and opcode != closes]
    kinds = {".".join(opcode.split(".")[:3]) for opcode in multiplied}
    steps = blocks * config.tiling.cta_tile.k // k
    wrong = []
    if kinds != expected or len(multiplied) % steps:
        wrong.append(f"multiplies by {len(multiplied)} of {kinds}, not by {steps} of {expected}")
    x, y = variant.cluster
    loads = sorted(opcode for opcode in code if opcode.startswith("UTMALDG"))
    wanted = sorted("UTMALDG.3D" + ".MULTICAST" * shared for shared in (y > 1, x > 1))
    if loads != wanted:
        wrong.append(f"loads A and B by {loads}, not by {wanted}")
    registers = sorted(opcode for opcode in code if opcode.startswith("USETMAXREG"))
    if [opcode.split(".")[1] for opcode in registers] != ["DEALLOC", "TRY_ALLOC"]:
        wrong.append(f"moves registers between its warpgroups by {registers}")
    if any(opcode.startswith("UTMASTG") for opcode in code) != config.store_by_tma:
        wrong.append("stores by TMA" if not config.store_by_tma else "does not store by TMA")
    local = {opcode for opcode in code if opcode.startswith(("LDL", "STL"))}
    if local:
        wrong.append(f"reads or writes local memory: {local}")
    return wrong


@pytest.mark.parametrize("scheduler", WGMMA_SCHEDULERS)
@pytest.mark.parametrize("dtype", IN_DTYPES)
def test_wgmma(dtype: str, scheduler: str) -> None:
    group = [each for each in WGMMA if (each.dtype, each.scheduler) == (dtype, scheduler)]
    assert [each.cluster for each in group] == list(WGMMA_CLUSTERS)
    assert_all(group, find_wgmma_faults)


# --- tcgen05 ----------------------------------------------------------------------------------------------------------

TCGEN05_DEVICES = {"sm_100a": "b200", "sm_103a": "b300"}
TCGEN05_CLUSTERS = (((1, 1), 1), ((2, 1), 1), ((2, 1), 2), ((4, 1), 2), ((2, 2), 2), ((2, 4), 2))
TCGEN05_TILES = {
    1: ((128, 128), (64, 80), (128, 256), (64, 256), (128, 48)),
    2: ((128, 128), (128, 256), (128, 64), (128, 224), (128, 160)),
}
TCGEN05 = [
    Variant(
        TCGEN05_DEVICES[arch],
        arch,
        dtype,
        scheduler,
        rotate(TCGEN05_TILES[group], number),
        number,
        cluster,
        group,
    )
    for number, ((cluster, group), arch, dtype, scheduler) in enumerate(
        itertools.product(TCGEN05_CLUSTERS, TCGEN05_DEVICES, IN_DTYPES, SCHEDULERS)
    )
]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("dtype", IN_DTYPES)
@pytest.mark.parametrize("arch", TCGEN05_DEVICES)
def test_tcgen05(arch: str, dtype: str, scheduler: str) -> None:
    asked = arch, dtype, scheduler
    group = [each for each in TCGEN05 if (each.arch, each.dtype, each.scheduler) == asked]
    assert [(each.cluster, each.group) for each in group] == list(TCGEN05_CLUSTERS)
    assert_all(group)


# --- mma.sync ---------------------------------------------------------------------------------------------------------

PORTABLE_ARCHES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
PORTABLE_SCHEDULERS = ("single_tile", "static")
HALF_ROW, FULL_ROW = "a100", "rtx_pro_6000"
"""Devices whose stages have rows of 64 and of 128 bytes; the first has no fp8."""


def has_type(arch: str, dtype: str) -> bool:
    """PTX ISA, mma: fp8 from sm_89 on."""
    return not dtype.startswith("fp8") or arch not in {"sm_80", "sm_86"}


PORTABLE = [
    Variant(
        FULL_ROW if dtype.startswith("fp8") or number % 2 else HALF_ROW,
        arch,
        dtype,
        scheduler,
        rotate(PORTABLE_TILES, number),
        number,
    )
    for number, (_, arch, dtype, scheduler) in enumerate(
        each
        for each in itertools.product(
            ("once", "again"), PORTABLE_ARCHES, IN_DTYPES, PORTABLE_SCHEDULERS
        )
        if has_type(*each[1:3])
    )
]


@pytest.mark.parametrize(
    ("arch", "dtype"),
    [each for each in itertools.product(PORTABLE_ARCHES, IN_DTYPES) if has_type(*each)],
)
def test_mma_sync(arch: str, dtype: str) -> None:
    group = [each for each in PORTABLE if (each.arch, each.dtype) == (arch, dtype)]
    assert [each.scheduler for each in group] == list(PORTABLE_SCHEDULERS) * 2
    assert_all(group)


# --- harness ----------------------------------------------------------------------------------------------------------

HARNESS_DEVICES = {
    "a100": "sm_80",
    "h200": "sm_90a",
    "b200": "sm_100a",
    "b300": "sm_103a",
    "thor": "sm_110a",
    "rtx_pro_6000": "sm_120a",
}
CLUSTER_SIZES = (1, 2, 4, 8, 16)


def harness_config(device: str, scheduler: str, cluster_size: int) -> HarnessConfig:
    """The rest goes round with the cluster's size and the scheduler's name."""
    number = CLUSTER_SIZES.index(cluster_size) + 2 * list(SCHEDULERS).index(scheduler)
    return HarnessConfig(
        cluster_size,
        scheduler,
        depth=rotate((1, 2, 3), number),
        threads=rotate((256, 32, 128, 1024), number),
        smem_bytes=rotate((0, 1000), number),
        barrier=rotate(("none", "cta", "cluster"), number),
        timeline=number % 2 > 0,
        ask_ahead=number % 3 > 0,
        larger_clusters=number % 4 == 0 and load(device).clusters,
    )


def find_harness_faults(config: HarnessConfig, found: Compiled) -> list[str]:
    """What of it is not what the configuration asks for."""
    asks = config.scheduler == "clc"
    return [
        f"{what} is {'there' if there else 'missing'}"
        for what, there, wanted in (
            ("barrier.cluster", "barrier.cluster" in found.ptx, config.uses_clusters),
            ("mbarrier.try_wait", "mbarrier.try_wait" in found.ptx, config.is_dynamic),
            ("%cluster_nctarank", "%cluster_nctarank" in found.ptx, config.larger_clusters),
            ("multicast::cluster::all", "::all" in found.ptx, asks and config.uses_clusters),
            ("UGETNEXTWORKID", asks and "UGETNEXTWORKID" in " ".join(opcodes(found)), asks),
            ("try_cancel", "try_cancel" in found.ptx, asks),
        )
        if there != wanted
    ]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("device", HARNESS_DEVICES)
def test_harness(device: str, scheduler: str) -> None:
    said, compiled = [], []
    for cluster_size in CLUSTER_SIZES:
        config = harness_config(device, scheduler, cluster_size)
        try:
            config.check_fit(load(device))
        except TilewrightError:
            continue
        compiled.append(cluster_size)
        found = compile_source(
            harness.assemble(config), "harness.cu", HARNESS_DEVICES[device], use_cache=False
        )
        wrong = faults(found, harness.ENTRY, config.threads) + find_harness_faults(config, found)
        said += [f"{config}: {each}" for each in wrong]
    assert not said, "\n".join(said)
    chip = load(device)
    dynamic = scheduler in {"dynamic_atomic", "clc"}
    has = (chip.clusters or not dynamic) and (chip.clc or scheduler != "clc")
    assert compiled == [size for size in CLUSTER_SIZES if has and size <= largest_cluster(device)]


def largest_cluster(device: str) -> int:
    """CUDA C++ Programming Guide: 8 everywhere, 16 on 9.0 and 10.x with the non-portable attribute."""
    return {"a100": 1, "h200": 16, "b200": 16, "b300": 16}.get(device, 8)


# --- the product ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [WGMMA, TCGEN05, PORTABLE], ids=["wgmma", "tcgen05", "mma.sync"])
@pytest.mark.parametrize(
    "axes", [*itertools.combinations(("scheduler", "dtype", "out", "epilogue"), 2), ("tile", "out")]
)
def test_what_goes_round_meets(axes: tuple[str, str], family: list[Variant]) -> None:
    met = {tuple(getattr(each, axis) for axis in axes) for each in family}
    assert met == set(itertools.product(*(set(values) for values in zip(*met, strict=True))))


# --- what is known to spill -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "excused",
    [
        [Variant("h200", "sm_90a", "bf16", "dynamic_atomic", (256, 128), 5, (2, 1))],
        [each for each in PORTABLE if each.may_spill],
    ],
    ids=["wgmma", "mma.sync"],
)
def test_what_may_spill_still_does(excused: list[Variant]) -> None:
    """Else `may_spill` forgives what nobody needs forgiven."""
    assert all(each.may_spill for each in excused)
    uses = [use for each in excused for use in build_gemm(each.config(), each.arch).functions]
    assert any(use.spill_store_bytes for use in uses)
