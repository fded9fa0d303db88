"""Instruction shapes, stages, TMEM and tiles, against the manual and shipped kernels."""

from __future__ import annotations

import pytest

from tilewright.device import load
from tilewright.errors import BadInput, NoFit, Unsupported
from tilewright.mma import Mma, Shape, check_mma, family, mma_k, stage_k
from tilewright.tiling import fitting_tilings, make_tiling

B200 = load("b200")
H200 = load("h200")


def test_matrix_instruction_of_each_device() -> None:
    kinds = {"b200": "tcgen05", "thor": "tcgen05", "h200": "wgmma", "a100": "mma.sync"}
    for name, expected in kinds.items():
        assert family(load(name)) == expected
    assert family(load("rtx_pro_6000")) == "mma.sync"


def test_k_of_an_instruction() -> None:
    """PTX ISA 9.1, tcgen05.mma table 39."""
    assert {d: mma_k(d) for d in ("tf32", "bf16", "fp8_e4m3", "int8", "mxfp8", "nvfp4")} == {
        "tf32": 8,
        "bf16": 16,
        "fp8_e4m3": 32,
        "int8": 32,
        "mxfp8": 32,
        "nvfp4": 64,
    }
    assert stage_k("bf16") == 64
    assert stage_k("fp8_e4m3") == 128


@pytest.mark.parametrize(
    ("family_", "dtype", "group", "m", "n", "ok"),
    [
        ("tcgen05", "bf16", 1, 128, 256, True),
        ("tcgen05", "bf16", 1, 64, 256, True),
        ("tcgen05", "bf16", 1, 128, 264, False),
        ("tcgen05", "bf16", 1, 96, 128, False),
        ("tcgen05", "bf16", 2, 256, 256, True),
        ("tcgen05", "bf16", 2, 128, 128, True),
        ("tcgen05", "bf16", 2, 64, 128, False),
        ("tcgen05", "nvfp4", 1, 64, 128, False),  # block-scaled kinds have no M = 64
        ("tcgen05", "mxfp8", 2, 128, 128, False),  # CUTLASS refuses it
        ("tcgen05", "int8", 2, 256, 48, False),  # steps of 32
        ("wgmma", "bf16", 1, 64, 8, True),
        ("wgmma", "bf16", 1, 64, 264, False),
        ("wgmma", "bf16", 2, 64, 64, False),
        ("wgmma", "bf16", 1, 128, 64, False),
        ("mma.sync", "bf16", 1, 16, 8, True),
    ],
)
def test_legal_shapes(family_: str, dtype: str, group: int, m: int, n: int, ok: bool) -> None:
    """PTX ISA 9.1: tcgen05.mma table 39, wgmma 9.7.15.2, mma 9.7.14.1."""
    mma = Mma(family_, Shape(m, n, mma_k(dtype)), dtype, group)  # type: ignore[arg-type]
    if ok:
        check_mma(mma)
    else:
        with pytest.raises(BadInput):
            check_mma(mma)


@pytest.mark.parametrize(
    ("device", "tile", "group", "stages"),
    [
        ("b200", (128, 256), 2, 6),  # CUTLASS and DeepGEMM: 256x256 pair tile
        ("b200", (128, 256), 1, 4),
        ("b200", (128, 128), 1, 6),
        ("h200", (128, 256), 1, 4),  # CUTLASS sm_90 cooperative, 128x32 epilogue tiles
        ("h200", (128, 128), 1, 6),
    ],
)
def test_stages_of_shipped_kernels(
    device: str, tile: tuple[int, int], group: int, stages: int
) -> None:
    """sm100_umma_builder.inl, DeepGEMM heuristics: bf16, K of 64, 232,448 bytes."""
    cluster = (group, 1, 1)
    tiling = make_tiling(
        "bf16", 2, load(device), cta_tile=tile, cta_group=group, cluster_shape=cluster
    )
    assert tiling.num_stages == stages


def test_case_c20_both_tiles_are_named() -> None:
    """pytorch/pytorch#196313: a pair tile of 256x128 is a CTA tile of 128x128; nothing mixes them."""
    tiling = make_tiling("bf16", 2, B200, cta_tile=(128, 128), cta_group=2, cluster_shape=(2, 1, 1))
    assert tiling.cta_tile == (128, 128, 64)
    assert tiling.pair_tile == (256, 128, 64)
    assert tiling.mma.shape[:2] == (256, 128)
    assert "CTA tile 128x128x64, pair tile 256x128x64" in tiling.describe()


def test_case_c7_bytes_of_a_pair_do_not_grow_with_the_cluster() -> None:
    """tile-ai/tilelang#2644: A of 128x64 bf16 in each CTA of a pair is 32,768 bytes, whatever the cluster."""
    for size in (2, 4, 8):
        tiling = make_tiling(
            "bf16", 2, B200, cta_tile=(128, 128), cta_group=2, cluster_shape=(size, 1, 1)
        )
        assert tiling.smem.a_bytes * tiling.cta_group == 32_768
        assert tiling.expect_tx_bytes == 32_768 + 2 * 64 * 64 * 2


def test_accumulators_in_tmem() -> None:
    """512 columns: two fp32 accumulators of N = 256 fill them; scale factors leave room for one."""
    two = make_tiling("bf16", 2, B200, cta_tile=(128, 256), cta_group=1)
    assert (two.accumulator_stages, two.tmem_columns) == (2, 512)
    scaled = make_tiling("mxfp8", 2, B200, cta_tile=(128, 256), cta_group=1)
    assert (scaled.accumulator_stages, scaled.scale_columns) == (1, 12)  # DeepGEMM: 4 + 8
    narrow = make_tiling("mxfp8", 2, B200, cta_tile=(128, 224), cta_group=1)
    assert narrow.accumulator_stages == 2  # DeepGEMM keeps N <= 240 for two accumulators
    nvfp4 = make_tiling("nvfp4", 2, B200, cta_tile=(128, 256), cta_group=1)
    assert nvfp4.scale_columns == 48  # CuTe DSL: 16 + 32
    folded = make_tiling("bf16", 2, B200, cta_tile=(64, 128), cta_group=2, cluster_shape=(2, 1, 1))
    assert folded.accumulator_columns == 64  # layout B: N / 2


def test_every_candidate_is_legal_and_fits() -> None:
    for name, dtype in [
        ("b200", "bf16"),
        ("b200", "nvfp4"),
        ("h200", "fp8_e4m3"),
        ("a100", "tf32"),
    ]:
        device = load(name)
        for tiling in fitting_tilings(dtype, 2, device):
            check_mma(tiling.mma)
            assert tiling.smem_bytes <= device.smem_per_cta_max_bytes
            assert tiling.tmem_columns <= (device.tmem_columns or 0)
            assert tiling.cluster_size <= device.cluster_size_max
            assert tiling.smem.a_bytes % 1024 == 0 or not device.tma
            assert tiling.cluster_shape[0] % tiling.cta_group == 0


def test_no_clusters_without_multicast() -> None:
    for name in ("a100", "rtx_pro_6000"):
        assert {t.cluster_size for t in fitting_tilings("bf16", 2, load(name))} == {1}


def test_what_does_not_fit() -> None:
    with pytest.raises(
        NoFit, match=r"5 stages of a 128x256x64 bf16 CTA tile need 279552 .* 4 stages fit"
    ):
        make_tiling("bf16", 2, B200, cta_tile=(128, 256), num_stages=5)
    with pytest.raises(BadInput, match="N=250"):
        make_tiling("bf16", 2, B200, cta_tile=(128, 250))
    with pytest.raises(BadInput, match="even number of CTAs along x"):
        make_tiling("bf16", 2, B200, cta_tile=(128, 256), cta_group=2, cluster_shape=(3, 1, 1))
    with pytest.raises(Unsupported, match="at most 16"):
        make_tiling("bf16", 2, B200, cta_tile=(128, 256), cluster_shape=(32, 1, 1))
    with pytest.raises(NoFit, match="accumulator stages"):
        make_tiling("bf16", 2, B200, cta_tile=(128, 256), accumulator_stages=3)
    with pytest.raises(BadInput, match="cta_group 2 does not exist"):
        make_tiling("bf16", 2, H200, cta_tile=(128, 256), cta_group=2, cluster_shape=(2, 1, 1))


def test_dtypes_that_a_device_lacks() -> None:
    with pytest.raises(Unsupported, match="nvfp4"):
        fitting_tilings("nvfp4", 2, H200)
    with pytest.raises(Unsupported, match="fp8"):
        fitting_tilings("fp8_e4m3", 2, load("a100"))
