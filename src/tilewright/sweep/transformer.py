"""A transformer's layers as problems: GEMMs, grouped GEMMs of experts and attentions, for each number of tokens.

The table has the model's sizes, under these names or those of a Hugging Face config.json, and what is run:

    {"name": "…", "hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "intermediate": 14336, "vocab": 128256,
     "prefill": [{"seqlens": [4096, 4096]}], "decode": [{"sequences": 64, "context": 8192}], "tokens": [1, 16, 4096]}

`tokens` asks for the products alone. Experts get their tokens by a seeded draw, each token `experts_per_token`
different ones; `expert_skew` is the Zipf exponent of the experts' popularity, 0 for equal. `tensor_parallel` splits
heads and intermediate sizes, `expert_parallel` the experts: the problems are those of one GPU. Left out: norms, rotary
embeddings, activations, softmax of the router, communication, latent attention and linear attention.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from tilewright.errors import BadInput
from tilewright.sweep.rows import Row, make_row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Positive = Field(gt=0, le=2**31 - 1)


def _named(*names: str, **more: Any) -> Any:
    return Field(validation_alias=AliasChoices(*names), **more)


class Prefill(BaseModel):
    """Sequences read at once, causal. `contexts` are tokens already in the cache, by sequence."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seqlens: tuple[int, ...]
    contexts: tuple[int, ...] | None = None

    @model_validator(mode="after")
    def _as_many(self) -> Self:
        if self.contexts is not None and len(self.contexts) != len(self.seqlens):
            raise ValueError(
                f"contexts has {len(self.contexts)} entries, seqlens has {len(self.seqlens)}"
            )
        return self


class Decode(BaseModel):
    """One new token a sequence, each over `context` tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sequences: int = Positive
    context: int = Positive


class Transformer(BaseModel):
    """The table. Sizes are of the whole model; heads are query heads.

    Attributes:
        dense_layers: of `layers`, those before the first layer of experts; all without experts.
        shared_experts: experts that every token goes through, as one dense MLP.
        attention_dtype: dtype, or bf16 where attention has no such kernel.
    """

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    name: str = _named("name", "_name_or_path", default="model")
    hidden: int = _named("hidden", "hidden_size", gt=0)
    layers: int = _named("layers", "num_hidden_layers", gt=0, le=10_000)
    heads: int = _named("heads", "num_attention_heads", gt=0)
    kv_heads: int | None = _named("kv_heads", "num_key_value_heads", default=None, gt=0)
    head_dim: int | None = _named("head_dim", default=None, gt=0)
    intermediate: int = _named("intermediate", "intermediate_size", gt=0)
    vocab: int | None = _named("vocab", "vocab_size", default=None, gt=0)
    experts: int | None = _named(
        "experts",
        "num_experts",
        "num_local_experts",
        "n_routed_experts",
        default=None,
        gt=0,
        le=4096,
    )
    experts_per_token: int = _named("experts_per_token", "num_experts_per_tok", default=1, gt=0)
    expert_intermediate: int | None = _named(
        "expert_intermediate", "moe_intermediate_size", default=None, gt=0
    )
    shared_experts: int = _named("shared_experts", "n_shared_experts", default=0, ge=0)
    dense_layers: int = _named("dense_layers", "first_k_dense_replace", default=0, ge=0)
    expert_skew: float = Field(default=0.0, ge=0, le=4)
    seed: int = 0
    dtype: str = "bf16"
    attention_dtype: str | None = None
    tensor_parallel: int = Field(default=1, gt=0)
    expert_parallel: int = Field(default=1, gt=0)
    tokens: tuple[int, ...] = ()
    prefill: tuple[Prefill, ...] = ()
    decode: tuple[Decode, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _only_known(cls, values: Any) -> Any:
        """A config.json has much beside the sizes; a table of one's own must not have a misspelt name."""
        if not isinstance(values, dict) or "model_type" in values or "architectures" in values:
            return values
        known = set(cls.model_fields)
        for field in cls.model_fields.values():
            if isinstance(field.validation_alias, AliasChoices):
                known |= {str(choice) for choice in field.validation_alias.choices}
        for name in values:
            if name not in known:
                raise ValueError(f'unknown name "{name}"; known: {", ".join(sorted(known))}')
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not (self.tokens or self.prefill or self.decode):
            raise ValueError("say what is run: tokens, prefill or decode")
        if self.heads % self.tensor_parallel:
            raise ValueError(
                f"{self.heads} heads do not split over tensor_parallel={self.tensor_parallel}"
            )
        if self.experts and self.experts_per_token > self.experts:
            raise ValueError(
                f"experts_per_token={self.experts_per_token} of {self.experts} experts"
            )
        if self.experts and self.experts % self.expert_parallel:
            raise ValueError(
                f"{self.experts} experts do not split over expert_parallel={self.expert_parallel}"
            )
        return self


class Batch(NamedTuple):
    """One pass: how many tokens, and the attention's lengths (None where only products are asked for)."""

    label: str
    tokens: int
    seqlens: tuple[int, ...] | None = None
    seqlens_k: tuple[int, ...] | None = None


def read_model(text: str, path: Path) -> Iterator[Row]:
    """The problems of a model file, of one model or a list of them.

    Raises:
        BadInput: not a table of a transformer; names the field.
    """
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not valid JSON: {error}", given=path) from None
    for table in given if isinstance(given, list) else [given]:
        try:
            model = Transformer.model_validate(table)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            message = str(first["msg"]).removeprefix("Value error, ")
            raise BadInput(
                f"{path}: {where + ': ' if where else ''}{message}", given=path
            ) from None
        yield from expand(model, path.parent)


def expand(model: Transformer, folder: Path) -> Iterator[Row]:
    """Every problem of every pass, as one GPU of the parallel group has it."""
    for batch in _batches(model):
        for layer, name, repeat, values in _problems(model, batch):
            labels = {
                "layer": layer,
                "name": f"{model.name} {name}, {batch.label}",
                "repeat": repeat,
            }
            yield make_row(f"{model.name} {batch.label}", {**labels, **values}, folder)


def _batches(model: Transformer) -> Iterator[Batch]:
    for tokens in model.tokens:
        yield Batch(f"{tokens} tokens", tokens)
    for each in model.prefill:
        total = sum(each.seqlens)
        contexts = each.contexts or (0,) * len(each.seqlens)
        keys = tuple(new + old for new, old in zip(each.seqlens, contexts, strict=True))
        yield Batch(f"prefill of {total} tokens", total, each.seqlens, keys)
    for step in model.decode:
        label = f"decode of {step.sequences} at {step.context}"
        ones = (1,) * step.sequences
        yield Batch(label, step.sequences, ones, (step.context,) * step.sequences)


def _problems(model: Transformer, batch: Batch) -> Iterator[tuple[str, str, int, dict[str, Any]]]:
    """(layer, name, repeat, fields) of each product and attention."""
    split = model.tensor_parallel
    heads = model.heads // split
    kv_heads = max((model.kv_heads or model.heads) // split, 1)
    head_dim = model.head_dim or model.hidden // model.heads
    gemm = {"kind": "gemm", "dtype": model.dtype, "m": batch.tokens}
    qkv = (heads + 2 * kv_heads) * head_dim
    yield "attention projections", "qkv", model.layers, {**gemm, "n": qkv, "k": model.hidden}
    if batch.seqlens is not None:
        yield (
            "attention",
            "attention",
            model.layers,
            {
                "kind": "attention",
                "dtype": model.attention_dtype or _attention_dtype(model.dtype),
                "seqlens": batch.seqlens,
                "seqlens_k": batch.seqlens_k,
                "heads": heads,
                "kv_heads": kv_heads,
                "head_dim": head_dim,
                "causal": True,
            },
        )
    out = {**gemm, "n": model.hidden, "k": heads * head_dim}
    yield "attention projections", "attention out", model.layers, out
    dense = model.dense_layers if model.experts else model.layers
    if dense:
        yield from _mlp(gemm, model.hidden, model.intermediate // split, "mlp", dense)
    if model.experts:
        yield from _experts(model, batch, gemm, model.layers - dense)
    if model.vocab:
        rows = batch.tokens if batch.seqlens is None else len(batch.seqlens)
        head = {**gemm, "m": rows, "n": model.vocab // split, "k": model.hidden}
        yield "vocabulary", "lm head", 1, head


def _mlp(
    gemm: dict[str, Any], hidden: int, inner: int, layer: str, repeat: int
) -> Iterator[tuple[str, str, int, dict[str, Any]]]:
    """Gate and up in one product, and down."""
    yield layer, f"{layer} gate and up", repeat, {**gemm, "n": 2 * inner, "k": hidden}
    yield layer, f"{layer} down", repeat, {**gemm, "n": hidden, "k": inner}


def _experts(
    model: Transformer, batch: Batch, gemm: dict[str, Any], repeat: int
) -> Iterator[tuple[str, str, int, dict[str, Any]]]:
    assert model.experts is not None  # noqa: S101  (the caller saw it)
    inner = model.expert_intermediate or model.intermediate
    router = {**gemm, "dtype": "bf16", "n": model.experts, "k": model.hidden}
    yield "experts", "router", repeat, router
    counts = expert_counts(model, batch.tokens)[: model.experts // model.expert_parallel]
    grouped = {"kind": "grouped-gemm", "dtype": model.dtype, "counts": counts}
    split = inner // model.tensor_parallel
    up = {**grouped, "n": 2 * split, "k": model.hidden}
    yield "experts", "experts gate and up", repeat, up
    yield "experts", "experts down", repeat, {**grouped, "n": model.hidden, "k": split}
    if model.shared_experts:
        shared = model.shared_experts * split
        yield from _mlp(gemm, model.hidden, shared, "shared experts", repeat)


def expert_counts(model: Transformer, tokens: int) -> tuple[int, ...]:
    """Tokens of each expert: every token draws `experts_per_token` different ones by their popularity.

    By the Gumbel trick: the largest of log popularity plus Gumbel noise are a draw without replacement.
    """
    assert model.experts is not None  # noqa: S101  (the caller saw it)
    random = np.random.default_rng((model.seed, tokens))
    log_popularity = -model.expert_skew * np.log(np.arange(1, model.experts + 1))
    counts = np.zeros(model.experts, np.int64)
    for start in range(0, tokens, 8192):
        rows = min(8192, tokens - start)
        keys = log_popularity + random.gumbel(size=(rows, model.experts))
        top = np.argpartition(-keys, model.experts_per_token - 1, axis=1)
        chosen = top[:, : model.experts_per_token]
        counts += np.bincount(chosen.ravel(), minlength=model.experts)
    return tuple(int(count) for count in counts)


def _attention_dtype(dtype: str) -> str:
    known = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3"}
    return known.get(dtype, "bf16")
