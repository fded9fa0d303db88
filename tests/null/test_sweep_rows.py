"""Problems of a sweep: lines of CSV and JSON Lines, and the layers of a transformer."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.errors import BadInput, UnknownName
from tilewright.problem import Attention, Gemm, GroupedGemm, Workload
from tilewright.sweep.rows import Row, read_rows
from tilewright.sweep.transformer import Transformer, expand, expert_counts

LLAMA_8B = {
    "name": "Llama-3.1-8B", "hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "intermediate": 14336,
    "vocab": 128256,
}  # fmt: skip


def written(path: Path, text: str) -> list[Row]:
    path.write_text(text, encoding="utf-8")
    return read_rows(path)


def problems(rows: list[Row]) -> list[Workload]:
    assert not [row.error for row in rows if row.error]
    return [row.problem for row in rows if row.problem is not None]


def test_csv_rows(tmp_path: Path) -> None:
    (tmp_path / "counts.csv").write_text("5\n6\n")
    rows = written(
        tmp_path / "p.csv",
        "\ufefflayer,kind,m,n,k,dtype,repeat,counts,seqlens,heads,kv_heads,head_dim,causal\n"
        "a,,128,256,512,fp8,3,,,,,,\n\n"
        "b,grouped-gemm,,64,64,,,2x100 0 7,,,,,\n"
        "b,grouped-gemm,,64,64,,,counts.csv,,,,,\n"
        "c,attention,,,,,,,64x1;128,8,2,64,true\n",
    )
    assert [(row.layer, row.repeat) for row in rows] == [("a", 3), ("b", 1), ("b", 1), ("c", 1)]
    assert problems(rows) == [
        Gemm(m=128, n=256, k=512, dtype="fp8"),
        GroupedGemm(counts=(100, 100, 0, 7), n=64, k=64),
        GroupedGemm(counts=(5, 6), n=64, k=64),
        Attention(seqlens=(1,) * 64 + (128,), heads=8, kv_heads=2, head_dim=64, causal=True),
    ]


def test_json_rows(tmp_path: Path) -> None:
    rows = written(
        tmp_path / "p.jsonl",
        '{"m": 128, "n": 128, "k": 128}\n\n'
        '{"kind": "attention", "seqlens": [100, 200], "heads": 4, "kv_heads": 4, "head_dim": 64, "name": "x"}\n',
    )
    assert rows[1].name == "x"
    assert problems(rows)[1] == Attention(seqlens=(100, 200), heads=4, kv_heads=4, head_dim=64)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"m": 0, "n": 8, "k": 8}', "m: Input should be greater than 0 (given: 0)"),
        ('{"m": 8, "n": 8, "k": 100}', "Pad to 96 or 104"),
        ('{"m": 8, "n": 8}', "k: Field required"),
        ('{"m": 8, "n": 8, "k": 8, "mm": 1}', "mm: Extra inputs"),
        ('{"m": 8, "n": 8, "k": 8, "self": 1}', "self: Extra inputs"),
        ('{"kind": "gem"}', 'unknown kind "gem"'),
        ('{"kind": []}', 'unknown kind "[]"'),
        ('{"kind": "grouped-gemm", "counts": "3y4", "n": 8, "k": 8}', '"3y4" is neither a number nor a run'),
        ('{"kind": "grouped-gemm", "counts": "9999999999x1", "n": 8, "k": 8}', "more than 1000000"),
        ('{"kind": "grouped-gemm", "counts": "none.csv", "n": 8, "k": 8}', "no file"),
        ('{"kind": "grouped-gemm", "counts": "\u00b2", "n": 8, "k": 8}', "neither a number"),
        ('{"m": 8, "n": 8, "k": 8, "repeat": 0}', 'repeat "0" is not a whole number'),
        ('{"m": 8, "n": 8, "k": 8, "repeat": "2.5"}', 'repeat "2.5"'),
        ('{"m": 8, "n": 8, "k": 8', "not valid JSON"),
        ("[1]", "not a JSON object"),
        ("[" * 50_000, "not valid JSON"),
        ('{"m": ' + "9" * 5000 + "}", "not valid JSON"),
    ],
)  # fmt: skip
def test_a_bad_line_is_a_row_with_an_error(tmp_path: Path, line: str, says: str) -> None:
    good = '{"m": 8, "n": 8, "k": 8}'
    rows = written(tmp_path / "p.jsonl", f"{good}\n{line}\n{good}\n")
    assert [bool(row.error) for row in rows] == [False, True, False]
    assert says in rows[1].error
    assert rows[1].where == "p.jsonl:2"


def test_too_many_cells(tmp_path: Path) -> None:
    rows = written(tmp_path / "p.csv", "m,n,k\n8,8,8,8\n8,8,8\n")
    assert [row.error for row in rows] == ["4 cells under 3 columns", ""]


def test_files_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r'unknown column of .* "hads".*Did you mean "heads"'):
        written(tmp_path / "p.csv", "m,hads\n1,2\n")
    with pytest.raises(BadInput, match="no problem in it"):
        written(tmp_path / "p.csv", "m,n,k\n")
    with pytest.raises(BadInput, match=r"none of \.csv, \.jsonl, \.json"):
        written(tmp_path / "p.yaml", "m: 1")
    with pytest.raises(BadInput, match="cannot be read"):
        read_rows(tmp_path / "none.csv")
    (tmp_path / "p.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="cannot be read"):
        read_rows(tmp_path / "p.csv")


# --- a transformer --------------------------------------------------------------------------------


def weights(table: dict[str, Any]) -> int:
    """Weights of every product: n k each, times the experts and the layers."""
    total = 0
    for row in expand(Transformer.model_validate({**table, "tokens": [8]}), Path()):
        problem = row.problem
        assert isinstance(problem, (Gemm, GroupedGemm)), row.error
        experts = len(problem.counts) if isinstance(problem, GroupedGemm) else 1
        total += row.repeat * experts * problem.n * int(problem.k or 0)
    return total


def test_the_products_have_the_published_number_of_parameters() -> None:
    """Parameters of the public checkpoints, less input embeddings and norms, which are no products."""
    norms = (2 * 32 + 1) * 4096
    assert weights(LLAMA_8B) == 8_030_261_248 - 128_256 * 4096 - norms
    mixtral = {**LLAMA_8B, "vocab": 32_000, "experts": 8, "experts_per_token": 2}
    assert weights(mixtral) == 46_702_792_704 - 32_000 * 4096 - norms
    qwen3_30b = {
        "hidden": 2048, "layers": 48, "heads": 32, "kv_heads": 4, "head_dim": 128, "intermediate": 6144,
        "moe_intermediate_size": 768, "experts": 128, "experts_per_token": 8, "vocab": 151_936,
    }  # fmt: skip
    norms = (2 * 48 + 1) * 2048 + 2 * 48 * 128
    assert weights(qwen3_30b) == 30_532_122_624 - 151_936 * 2048 - norms


def test_the_names_of_a_config_json(tmp_path: Path) -> None:
    """A Hugging Face config has the same sizes under other names, and much else."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
        "rope_theta": 500000.0, "torch_dtype": "bfloat16", "_name_or_path": "Llama-3.1-8B", "tokens": [16],
    }  # fmt: skip
    theirs = written(tmp_path / "config.json", json.dumps(config))
    ours = written(tmp_path / "model.json", json.dumps({**LLAMA_8B, "tokens": [16]}))
    assert theirs == ours
    assert [row.layer for row in ours] == [
        "attention projections", "attention projections", "mlp", "mlp", "vocabulary",
    ]  # fmt: skip
    assert [row.repeat for row in ours] == [32, 32, 32, 32, 1]


def test_prefill_and_decode(tmp_path: Path) -> None:
    runs = {
        "prefill": [{"seqlens": [100, 200], "contexts": [0, 50]}],
        "decode": [{"sequences": 3, "context": 777}],
    }
    rows = written(tmp_path / "m.json", json.dumps({**LLAMA_8B, **runs}))
    prefill, decode = [p for p in problems(rows) if isinstance(p, Attention)]
    assert (prefill.seqlens, prefill.seqlens_k) == ((100, 200), (100, 250))
    assert (decode.seqlens, decode.seqlens_k) == ((1, 1, 1), (777,) * 3)
    assert (decode.heads, decode.kv_heads, decode.head_dim, decode.causal) == (32, 8, 128, True)
    heads = [p.m for p in problems(rows) if isinstance(p, Gemm) and p.n == 128256]
    assert heads == [2, 3]  # a token a sequence meets the vocabulary


def test_parallel_groups(tmp_path: Path) -> None:
    """Over four GPUs each has a quarter of every weight; experts split by number."""
    four = {**LLAMA_8B, "tensor_parallel": 4}
    assert weights(four) == weights(LLAMA_8B) / 4
    moe = {**LLAMA_8B, "experts": 8, "experts_per_token": 2, "tokens": [64]}
    whole = written(tmp_path / "m.json", json.dumps(moe))
    half = written(tmp_path / "m.json", json.dumps({**moe, "expert_parallel": 2}))
    counts = [p.counts for p in problems(whole) if isinstance(p, GroupedGemm)]
    mine = [p.counts for p in problems(half) if isinstance(p, GroupedGemm)]
    assert mine == [c[:4] for c in counts]


def test_expert_counts() -> None:
    """Each token goes to so many different experts; popularity by Zipf shows in the counts."""
    table = {**LLAMA_8B, "experts": 64, "experts_per_token": 4, "tokens": [1]}
    even = expert_counts(Transformer.model_validate(table), 20_000)
    assert sum(even) == 80_000
    assert max(even) < 1250 * 1.15  # the mean is 1250, its standard deviation about 34
    assert min(even) > 1250 * 0.85
    skewed = expert_counts(Transformer.model_validate({**table, "expert_skew": 1.0}), 20_000)
    assert sum(skewed) == 80_000
    weight = 1 / np.arange(1, 65)
    numpys = np.random.default_rng(1)
    drawn = [numpys.choice(64, 4, replace=False, p=weight / weight.sum()) for _ in range(20_000)]
    theirs = np.bincount(np.concatenate(drawn), minlength=64)
    assert np.abs(np.array(skewed) - theirs).max() < 5 * np.sqrt(theirs.max())
    assert expert_counts(Transformer.model_validate(table), 20_000) == even
    one = expert_counts(Transformer.model_validate(table), 1)
    assert Counter(one) == {0: 60, 1: 4}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hiden": 1}, 'unknown name "hiden"'),
        ({"tokens": []}, "say what is run"),
        ({"hidden": 0}, "hidden: Input should be greater than 0"),
        ({"tensor_parallel": 5}, "32 heads do not split over tensor_parallel=5"),
        ({"experts": 2, "experts_per_token": 4}, "experts_per_token=4 of 2"),
        ({"prefill": [{"seqlens": [1], "contexts": [1, 2]}]}, "contexts has 2 entries, seqlens has 1"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_meant(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        written(tmp_path / "m.json", json.dumps({**LLAMA_8B, "tokens": [1], **change}))
