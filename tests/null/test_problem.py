"""Problems refuse what cannot be meant, and count what they move and compute."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from tilewright.errors import BadInput, UnknownName
from tilewright.lists import parse_costs, parse_integers
from tilewright.problem import Attention, Gemm, GroupedGemm, TileList

if TYPE_CHECKING:
    from pathlib import Path


def test_flops_and_bytes_of_a_gemm() -> None:
    gemm = Gemm(m=8192, n=8192, k=8192)
    assert gemm.flops == 2 * 8192**3
    assert gemm.compulsory_bytes == 3 * 8192**2 * 2
    assert Gemm(m=64, n=64, k=64, batch=3).flops == 3 * 2 * 64**3
    assert Gemm(m=128, n=128, k=64, epilogue_bytes=2).compulsory_bytes == 4 * 128 * 64 * 2 / 2 + (
        128 * 128 * 4
    )


def test_block_scales_are_counted() -> None:
    """OCP microscaling: one byte for 32 values of mxfp8; NVFP4: one byte for 16."""
    assert Gemm(m=128, n=128, k=128, dtype="mxfp8").compulsory_bytes == (
        2 * 128 * (128 + 4) + 128 * 128 * 2
    )
    assert Gemm(m=128, n=128, k=128, dtype="nvfp4").compulsory_bytes == (
        2 * 128 * (64 + 8) + 128 * 128 * 2
    )


def test_grouped_extents() -> None:
    ragged_m = GroupedGemm(counts=(100, 0, 28), n=256, k=512)
    assert ragged_m.flops == 2 * 128 * 256 * 512
    assert ragged_m.compulsory_bytes == 2 * (128 * 512 + 2 * 256 * 512) + 2 * 128 * 256
    ragged_k = GroupedGemm(counts=(0, 64), grouped="k", m=128, n=256)
    assert ragged_k.flops == 2 * 128 * 256 * 64
    assert ragged_k.compulsory_bytes == 2 * 64 * (128 + 256) + 2 * 2 * 128 * 256


def test_attention_counts_visible_keys() -> None:
    dense = Attention(seqlens=(100,), heads=4, kv_heads=2, head_dim=64)
    assert dense.flops == 4 * 100 * 100 * 4 * 64
    causal = Attention(seqlens=(100, 3), heads=4, kv_heads=2, head_dim=64, causal=True)
    assert causal.flops == 4 * (100 * 101 // 2 + 6) * 4 * 64
    window = Attention(seqlens=(100,), heads=1, kv_heads=1, head_dim=64, causal=True, window=10)
    assert window.flops == 4 * (sum(range(1, 11)) + 90 * 10) * 64
    cached = Attention(
        seqlens=(1,), seqlens_k=(1000,), heads=1, kv_heads=1, head_dim=64, causal=True
    )
    assert cached.flops == 4 * 1000 * 64


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=5),
    st.booleans(),
    st.none() | st.integers(1, 50),
)
def test_attention_flops_match_a_mask(
    lengths: list[tuple[int, int]], causal: bool, window: int | None
) -> None:
    visible = 0
    for len_q, len_k in lengths:
        for i in range(len_q):
            for j in range(len_k):
                at = i + len_k - len_q
                if causal and j > at:
                    continue
                if window is not None and j <= at - window:
                    continue
                visible += 1
    problem = Attention(
        seqlens=tuple(q for q, _ in lengths),
        seqlens_k=tuple(k for _, k in lengths),
        heads=2,
        kv_heads=1,
        head_dim=64,
        causal=causal,
        window=window,
    )
    assert problem.flops == 4 * visible * 2 * 64


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"m": 0, "n": 8, "k": 8}, "greater than 0"),
        ({"m": -4, "n": 8, "k": 8}, "greater than 0"),
        ({"m": 8, "n": 8, "k": 100}, "Pad to 96 or 104"),
        ({"m": 8, "n": 8, "k": 4}, "Pad to 8"),
        ({"m": 8, "n": 8, "k": 40, "dtype": "fp8"}, "Pad to 32 or 48"),
        ({"m": 8, "n": 8, "k": 40, "dtype": "nvfp4"}, "Pad to 32 or 64"),
        ({"m": 12, "n": 8, "k": 64, "layout_a": "m"}, "Pad to 8 or 16"),
        ({"m": 2**31, "n": 8, "k": 8}, "less than or equal to"),
        ({"m": 8, "n": 8, "k": 8, "batch": 0}, "greater than 0"),
        ({"m": 8, "n": 8}, "required"),
        ({"m": 8, "n": 8, "k": 8, "layout_a": "row"}, "'k' or 'm'"),
        ({"m": 8, "n": 8, "k": 8, "epilogue_bytes": -1}, "greater than or equal to 0"),
        ({"m": 8, "n": 8, "k": 8, "stages": 3}, "not permitted"),
    ],
)
def test_bad_gemms(kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        Gemm(**kwargs)


def test_unknown_dtypes_name_the_nearest() -> None:
    with pytest.raises(UnknownName, match='Did you mean "bf16"'):
        Gemm(m=8, n=8, k=8, dtype="bf17")
    with pytest.raises(UnknownName, match="output dtype"):
        Gemm(m=8, n=8, k=8, out_dtype="fp64")
    assert Gemm(m=8, n=8, k=16, dtype="fp8").dtype == "fp8_e4m3"
    assert Gemm(m=8, n=8, k=16, dtype="int8").out_dtype == "int32"


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"counts": (), "n": 8, "k": 8}, "empty"),
        ({"counts": (1, -3), "n": 8, "k": 8}, r"counts\[1\] = -3"),
        ({"counts": (1,) * 1_000_000, "n": 8, "k": 8}, "1000000 entries; at most 131072"),
        ({"counts": (1,), "n": 8}, "needs k"),
        ({"counts": (8,), "n": 8, "k": 8, "m": 8}, "leave m out"),
        ({"counts": (8, 12), "n": 8, "m": 8, "grouped": "k"}, "Pad to 8 or 16"),
    ],
)
def test_bad_groups(kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        GroupedGemm(**kwargs)


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"seqlens": (10,), "heads": 6, "kv_heads": 4, "head_dim": 64}, "not a multiple"),
        (
            {"seqlens": (10,), "heads": 4, "kv_heads": 4, "head_dim": 48},
            "greater than or equal to 64",
        ),
        ({"seqlens": (10,), "heads": 4, "kv_heads": 4, "head_dim": 72}, "multiple of 16"),
        (
            {"seqlens": (1, 2), "seqlens_k": (1,), "heads": 1, "kv_heads": 1, "head_dim": 64},
            "1 entries, seqlens has 2",
        ),
    ],
)
def test_bad_attention(kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        Attention(**kwargs)


def test_tile_lists() -> None:
    assert TileList(costs_us=(1.0, 2.5)).costs(2000).tolist() == [2000, 5000]
    with pytest.raises(BadInput, match="exactly one"):
        TileList()
    with pytest.raises(BadInput, match="tile 1"):
        TileList(costs_cycles=(1.0, -2.0))
    with pytest.raises(BadInput, match="tile 0"):
        TileList(costs_cycles=(float("nan"),))


def test_inline_and_file_lists(tmp_path: Path) -> None:
    assert parse_integers("counts", "1528, 3516,508") == (1528, 3516, 508)
    many = list(range(100_000))
    as_json, as_csv = tmp_path / "counts.json", tmp_path / "counts.csv"
    as_json.write_text(json.dumps(many))
    as_csv.write_text("count\n" + "\n".join(map(str, many)))
    assert parse_integers("counts", str(as_json)) == tuple(many)
    assert parse_integers("counts", str(as_csv)) == tuple(many)
    costs = tmp_path / "costs.csv"
    costs.write_text("cost_us\n1.5\n2\n")
    assert parse_costs(str(costs)) == {"costs_us": (1.5, 2.0)}
    assert parse_costs("3x500") == {"costs_cycles": (500.0,) * 3}
    assert parse_costs("2x1.5us") == {"costs_us": (1.5, 1.5)}
    assert parse_costs("2x500, 1x90") == {"costs_cycles": (500.0, 500.0, 90.0)}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "empty"),
        ("count\n", "empty"),
        ("1,two,3", 'entry 1 is "two"'),
        ("[1, null]", 'entry 1 is "None"'),
        ("[1, 2", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("1\n2.5\n", "whole number"),
        ("[]", "empty"),
        ("1,nan", "not a number"),
    ],
)
def test_malformed_lists(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "counts.csv"
    file.write_text(content)
    with pytest.raises(BadInput, match=says):
        parse_integers("counts", str(file))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no file"):
        parse_integers("counts", str(tmp_path / "none.csv"))
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(BadInput, match="cannot be read"):
        parse_integers("counts", str(binary))
    headless = tmp_path / "costs.csv"
    headless.write_text("1\n2\n")
    with pytest.raises(BadInput, match="cost_cycles or cost_us"):
        parse_costs(str(headless))
    with pytest.raises(BadInput, match="at most 10000000"):
        parse_costs("99999999999x1")
    with pytest.raises(BadInput, match="at most 10000000"):
        parse_costs("9999999x1,2x1")
    with pytest.raises(BadInput, match="in one unit"):
        parse_costs("2x1,2x1us")
    with pytest.raises(BadInput, match=r"no file 2x1,3;.* 594x20000,30x90000"):
        parse_costs("2x1,3")
