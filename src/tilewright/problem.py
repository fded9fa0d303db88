"""Problems: what is to be computed. Nothing here knows a device.

    Gemm         D[m, n] = A[m, k] . B[n, k], `batch` times
    GroupedGemm  one GEMM a group: ragged along M (MoE forward) or along K (MoE weight gradient)
    Attention    forward, variable length, causal or windowed, grouped-query heads
    TileList     costs of tiles that the user measured or modelled; not a GEMM at all

Sizes are elements, costs are cycles or microseconds. A problem checks itself when it is made and
raises `BadInput` with the value, what is allowed and the nearest value that works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tilewright.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

MAX_GROUPS = 131_072
"""Groups or sequences in one problem. A grouped kernel searches their prefix sums per tile."""

MAX_TILES = 10_000_000
"""Tiles that a simulation takes; a million take about a second a scheduler."""

MAX_EXTENT = 2**31 - 1
"""Largest extent along one axis: kernels index tiles with 32-bit signed integers."""

TMA_STRIDE_BYTES = 16
"""Global strides of a TMA tensor map are multiples of 16 bytes; cp.async of 16 bytes needs the same.
Source: CUDA driver API, cuTensorMapEncodeTiled."""


class Dtype(NamedTuple):
    """An input element type.

    Attributes:
        bits: bits an element.
        scale_block: elements along K that share one scale factor; 0 for types without.
        scale_bytes: bytes a scale factor.
        accumulator: type of the accumulator.
    """

    bits: int
    scale_block: int
    scale_bytes: int
    accumulator: Literal["fp32", "int32"]

    def bytes_of(self, elements: float) -> float:
        """Bytes of `elements` values with the scale factors that belong to them."""
        scales = elements / self.scale_block * self.scale_bytes if self.scale_block else 0.0
        return elements * self.bits / 8 + scales


DTYPES: dict[str, Dtype] = {
    "bf16": Dtype(16, 0, 0, "fp32"),
    "fp16": Dtype(16, 0, 0, "fp32"),
    "tf32": Dtype(32, 0, 0, "fp32"),
    "fp8_e4m3": Dtype(8, 0, 0, "fp32"),
    "fp8_e5m2": Dtype(8, 0, 0, "fp32"),
    "mxfp8": Dtype(8, 32, 1, "fp32"),
    "nvfp4": Dtype(4, 16, 1, "fp32"),
    "int8": Dtype(8, 0, 0, "int32"),
}
OUT_BYTES: dict[str, int] = {"bf16": 2, "fp16": 2, "fp32": 4, "int32": 4, "fp8_e4m3": 1}
_ALIASES = {"fp8": "fp8_e4m3", "e4m3": "fp8_e4m3", "e5m2": "fp8_e5m2", "fp4": "nvfp4"}


def parse_dtype(name: str) -> str:
    """The canonical name of a dtype: "fp8" is "fp8_e4m3".

    Raises:
        UnknownName: lists the known ones.
    """
    name = _ALIASES.get(name, name)
    if name not in DTYPES:
        raise UnknownName("dtype", name, [*DTYPES, *_ALIASES])
    return name


class Groups(NamedTuple):
    """The independent GEMMs of a problem as arrays of equal length.

    Attributes:
        m, n, k: extents of each, int64.
        repeat: how often each occurs with operands of its own.
    """

    m: NDArray[np.int64]
    n: NDArray[np.int64]
    k: NDArray[np.int64]
    repeat: int = 1


class Problem(BaseModel):
    """Base of the four problems; turns pydantic's complaint into one clear `BadInput`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _bad_input(type(self).__name__, error) from None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The problem from values of unknown types (a command line, JSON); checked like any other."""
        return cls(**values)


def _bad_input(problem: str, error: ValidationError) -> BadInput:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or problem
    given = first["input"]
    shown = f" (given: {given!r})" if not isinstance(given, dict | list | tuple) else ""
    message = str(first["msg"]).removeprefix("Value error, ")
    return BadInput(f"{where}: {message}{shown}", given=given if shown else where, allowed=message)


Extent = Field(gt=0, le=MAX_EXTENT)


class _Matmul(Problem):
    """What every matrix product says about its types."""

    dtype: str = "bf16"
    out_dtype: str = "bf16"
    layout_a: Literal["k", "m"] = "k"
    layout_b: Literal["k", "n"] = "k"
    epilogue_bytes: float = Field(default=0.0, ge=0)
    """Bytes an output element that the epilogue reads beside the accumulator (a C matrix, say)."""

    @model_validator(mode="before")
    @classmethod
    def _canonical_dtype(cls, values: dict[str, Any]) -> dict[str, Any]:
        values = dict(values)
        if "dtype" in values:
            values["dtype"] = parse_dtype(str(values["dtype"]))
        if DTYPES[values.get("dtype", "bf16")].accumulator == "int32":
            values.setdefault("out_dtype", "int32")
        if values.get("out_dtype", "bf16") not in OUT_BYTES:
            raise UnknownName("output dtype", str(values["out_dtype"]), OUT_BYTES)
        return values

    @property
    def element(self) -> Dtype:
        """Type of A and B."""
        return DTYPES[self.dtype]

    @property
    def out_bytes(self) -> int:
        """Bytes an output element."""
        return OUT_BYTES[self.out_dtype]

    def _check_stride(self, axis: str, extent: int) -> None:
        """The contiguous axis of an operand must give row strides that TMA can describe."""
        step = TMA_STRIDE_BYTES * 8 // self.element.bits
        if self.element.scale_block:
            step = max(step, self.element.scale_block)
        if extent % step:
            below, above = extent // step * step, -(-extent // step) * step
            nearest = f"{below} or {above}" if below else str(above)
            raise ValueError(
                f"{axis}={extent} of {self.dtype} is {extent * self.element.bits / 8:g} bytes a row; "
                f"TMA and 16-byte copies need {axis} to be a multiple of {step}. "
                f"Pad to {nearest}"
            )

    def groups(self) -> Groups:
        """The GEMMs to do. Zero-sized ones are included; tile maps skip or zero them."""
        raise NotImplementedError

    @property
    def flops(self) -> float:
        """Multiply and add counted as two."""
        g = self.groups()
        return 2.0 * float(np.sum(g.m.astype(float) * g.n * g.k)) * g.repeat

    @property
    def compulsory_bytes(self) -> float:
        """Bytes that any kernel must move: each operand read once, each output written once."""
        g = self.groups()
        m, n, k = (x.astype(float) for x in (g.m, g.n, g.k))
        used = (m > 0) & (n > 0)
        read = self.element.bytes_of(float(np.sum((m * k + n * k) * used)))
        out = float(np.sum(m * n)) * (self.out_bytes + self.epilogue_bytes)
        return (read + out) * g.repeat


class Gemm(_Matmul):
    """D[m, n] = A[m, k] . B[n, k]^T, `batch` times with different operands.

    `layout_a` and `layout_b` name the contiguous axis: "k" is what row-major A and column-major B give.
    """

    kind: Literal["gemm"] = "gemm"
    m: int = Extent
    n: int = Extent
    k: int = Extent
    batch: int = Field(default=1, gt=0, le=65_535)

    @model_validator(mode="after")
    def _strides(self) -> Self:
        extents = {"m": self.m, "n": self.n, "k": self.k}
        for axis in (self.layout_a, self.layout_b):
            self._check_stride(axis, extents[axis])
        return self

    def groups(self) -> Groups:
        """One GEMM, `batch` times."""
        one = np.ones(1, np.int64)
        return Groups(one * self.m, one * self.n, one * self.k, self.batch)


class GroupedGemm(_Matmul):
    """One GEMM a group; `counts` are the ragged extents.

    Ragged along M (`grouped="m"`): group i is [counts[i], n, k], a weight a group; an empty group has no
    tile. Ragged along K (`grouped="k"`): group i is [m, n, counts[i]], an output a group; an empty group
    still writes zeros.
    """

    kind: Literal["grouped-gemm"] = "grouped-gemm"
    counts: tuple[int, ...]
    grouped: Literal["m", "k"] = "m"
    m: int | None = Field(default=None, gt=0, le=MAX_EXTENT)
    n: int = Extent
    k: int | None = Field(default=None, gt=0, le=MAX_EXTENT)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _check_counts("counts", self.counts, zero_ok=True)
        needed, refused = ("k", "m") if self.grouped == "m" else ("m", "k")
        if getattr(self, needed) is None:
            raise ValueError(
                f"grouped along {self.grouped} needs {needed}, the extent all groups share"
            )
        if getattr(self, refused) is not None:
            raise ValueError(
                f"grouped along {self.grouped} takes {refused} from counts; leave {refused} out"
            )
        for axis in {self.layout_a, self.layout_b}:
            if axis == self.grouped:  # groups are adjacent along this axis: each must start aligned
                for count in sorted(set(self.counts)):
                    self._check_stride(f"counts ({axis})", count)
            else:
                self._check_stride(axis, int(getattr(self, axis) or 0))
        return self

    def groups(self) -> Groups:
        """A GEMM a group, empty ones included."""
        counts = np.asarray(self.counts, np.int64)
        same = np.ones_like(counts)
        if self.grouped == "m":
            return Groups(counts, same * self.n, same * int(self.k or 0))
        return Groups(same * int(self.m or 0), same * self.n, counts)


class Attention(Problem):
    """Attention forward over sequences of their own lengths.

    `seqlens` are query lengths; `seqlens_k` key lengths where they differ (prefill with a cache). With
    `causal`, query i of a sequence sees keys up to i + (len_k - len_q). `window` limits how many keys back.
    """

    kind: Literal["attention"] = "attention"
    seqlens: tuple[int, ...]
    seqlens_k: tuple[int, ...] | None = None
    heads: int = Field(gt=0, le=65_535)
    kv_heads: int = Field(gt=0, le=65_535)
    head_dim: int = Field(ge=64, le=256, multiple_of=16)
    causal: bool = False
    window: int | None = Field(default=None, gt=0)
    dtype: Literal["bf16", "fp16", "fp8_e4m3"] = "bf16"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _check_counts("seqlens", self.seqlens, zero_ok=True)
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}")
        if self.seqlens_k is not None:
            _check_counts("seqlens_k", self.seqlens_k, zero_ok=True)
            if len(self.seqlens_k) != len(self.seqlens):
                raise ValueError(
                    f"seqlens_k has {len(self.seqlens_k)} entries, seqlens has {len(self.seqlens)}"
                )
        return self

    @property
    def element(self) -> Dtype:
        """Type of Q, K and V."""
        return DTYPES[self.dtype]

    @property
    def out_bytes(self) -> int:
        """Bytes an output element; fp8 inputs give bf16 outputs."""
        return 2

    def lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Query and key lengths of every sequence."""
        q = np.asarray(self.seqlens, np.int64)
        return q, q if self.seqlens_k is None else np.asarray(self.seqlens_k, np.int64)

    @property
    def flops(self) -> float:
        """Multiply-adds of Q.K and P.V over the unmasked keys, counted as two each."""
        total = sum(
            count * _visible_keys(q, k, causal=self.causal, window=self.window)
            for (q, k), count in _count_pairs(*self.lengths()).items()
        )
        return 4.0 * total * self.heads * self.head_dim

    @property
    def compulsory_bytes(self) -> float:
        """Q, K, V read once and O written once."""
        q, k = (float(x.sum()) for x in self.lengths())
        read = self.element.bytes_of((q * self.heads + 2 * k * self.kv_heads) * self.head_dim)
        return read + q * self.heads * self.head_dim * self.out_bytes


class TileList(Problem):
    """Tiles whose costs the user gives, with what one CTA of the kernel needs.

    `costs_cycles` or `costs_us`, one a tile in launch order; a tile is the work of one cluster.
    """

    kind: Literal["tiles"] = "tiles"
    costs_cycles: tuple[float, ...] | None = None
    costs_us: tuple[float, ...] | None = None
    cluster_shape: tuple[int, int, int] = (1, 1, 1)
    threads: int = Field(default=256, gt=0)
    smem_bytes: int = Field(default=0, ge=0)
    regs: int = Field(default=64, gt=0)

    @model_validator(mode="after")
    def _one_unit(self) -> Self:
        if (self.costs_cycles is None) == (self.costs_us is None):
            raise ValueError("give exactly one of costs_cycles and costs_us")
        costs = self.costs_cycles if self.costs_cycles is not None else self.costs_us
        values = np.asarray(costs, float)
        if not np.all(np.isfinite(values)) or np.any(values < 0):
            bad = int(np.flatnonzero(~np.isfinite(values) | (values < 0))[0])
            raise ValueError(
                f"cost {values[bad]:g} of tile {bad} is not a finite number of at least 0"
            )
        if any(c < 1 for c in self.cluster_shape):
            raise ValueError(f"cluster_shape {self.cluster_shape} must be positive in each axis")
        return self

    def costs(self, clock_mhz: float) -> NDArray[np.int64]:
        """Tile costs in whole SM cycles."""
        given, scale = (
            (self.costs_us, clock_mhz) if self.costs_cycles is None else (self.costs_cycles, 1.0)
        )
        return np.asarray(np.rint(np.asarray(given, float) * scale), np.int64)


Matmul = Gemm | GroupedGemm
Workload = Gemm | GroupedGemm | Attention | TileList


def _check_counts(what: str, counts: tuple[int, ...], *, zero_ok: bool) -> None:
    if not counts:
        raise ValueError(f"{what} is empty; at least one entry is needed")
    if len(counts) > MAX_GROUPS:
        raise ValueError(f"{what} has {len(counts)} entries; at most {MAX_GROUPS} are allowed")
    low = 0 if zero_ok else 1
    for i, count in enumerate(counts):
        if not low <= count <= MAX_EXTENT:
            raise ValueError(f"{what}[{i}] = {count}; allowed is {low} to {MAX_EXTENT}")


def _count_pairs(q: NDArray[np.int64], k: NDArray[np.int64]) -> dict[tuple[int, int], int]:
    pairs, counts = np.unique(np.stack([q, k], axis=1), axis=0, return_counts=True)
    return {(int(a), int(b)): int(c) for (a, b), c in zip(pairs, counts, strict=True)}


def key_range(
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    len_q: NDArray[np.int64] | int,
    len_k: NDArray[np.int64] | int,
    *,
    causal: bool,
    window: int | None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Keys [low, high) that query rows first..last (inclusive) of a sequence can see."""
    offset = np.asarray(len_k) - np.asarray(len_q)
    high = np.minimum(len_k, last + offset + 1) if causal else np.broadcast_to(len_k, last.shape)
    low = np.zeros_like(first) if window is None else np.maximum(0, first + offset + 1 - window)
    high = np.maximum(high, 0)
    return np.minimum(low, high), high


def _visible_keys(len_q: int, len_k: int, *, causal: bool, window: int | None) -> float:
    rows = np.arange(len_q, dtype=np.int64)
    low, high = key_range(rows, rows, len_q, len_k, causal=causal, window=window)
    return float((high - low).sum())
