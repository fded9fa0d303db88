"""Inputs of other people's kernels, and what float64 says that comes out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from emulated_peers import Described, Peer, Tensor, Wanted, called, recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    Make = Callable[[Path, str], Peer]

BF16_STEP = 2.0**-8
"""The largest relative distance from a number to the next of bf16; half of it is what rounding may change."""


def quarters(shape: tuple[int, ...], seed: int) -> Any:
    """Small multiples of a quarter: their products and the sums of these are exact in float32."""
    return np.random.default_rng(seed).integers(-6, 7, shape) / 4


def normal(shape: tuple[int, ...], seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


# --- quack -------------------------------------------------------------------------------------------


def gemm(t: dict[str, Tensor]) -> Sequence[Wanted]:
    for seed, name in enumerate("abc"):
        if name in t:
            t[name].set(quarters(t[name].bits.shape, seed))
    for name in ("semaphore", "flags"):
        if name in t:
            t[name].set(0)
    product = t["a"].values @ t["b"].values.transpose(0, 2, 1)
    return [Wanted(t["d"], product + t["c"].values if "c" in t else product)]


EPSILON = 1e-6


def norm(t: dict[str, Tensor]) -> Sequence[Wanted]:
    x = t["x"].set(normal(t["x"].bits.shape, 1)).values
    weight = t["weight"].set(normal(t["weight"].bits.shape, 2)).values
    centred, more, bias = x, [], 0.0
    if "mean" in t:
        x = t["x"].set(x + 0.5).values
        mean = x.mean(1)
        centred = x - mean[:, None]
        bias = t["bias"].set(normal(t["bias"].bits.shape, 3)).values
        more = [Wanted(t["mean"], mean, 1e-4)]
    rstd = 1 / np.sqrt((centred**2).mean(1) + EPSILON)
    out = centred * rstd[:, None] * weight + bias
    return [Wanted(t["out"], out, BF16_STEP, 1e-4), Wanted(t["rstd"], rstd, 1e-5), *more]


def norm_backward(t: dict[str, Tensor]) -> Sequence[Wanted]:
    x, weight, dout = (
        t[name].set(normal(t[name].bits.shape, seed)).values
        for seed, name in enumerate(("x", "weight", "dout"))
    )
    rstd = t["rstd"].set(1 / np.sqrt((x**2).mean(1) + EPSILON)).values
    scaled = x * rstd[:, None]
    of_scaled = dout * weight
    dx = (of_scaled - scaled * (scaled * of_scaled).mean(1)[:, None]) * rstd[:, None]
    dweight = (dout * scaled).sum(0)
    return [
        Wanted(t["dx"], dx, BF16_STEP, 1e-3),
        Wanted(t["dweight"], dweight, 1e-4, 1e-5, found=lambda parts: parts.sum(0)),
    ]


def softmax(t: dict[str, Tensor]) -> Sequence[Wanted]:
    x = t["x"].set(normal(t["x"].bits.shape, 4)).values
    powers = np.exp(x - x.max(1, keepdims=True))
    return [Wanted(t["out"], powers / powers.sum(1, keepdims=True), BF16_STEP)]


def cross_entropy(t: dict[str, Tensor]) -> Sequence[Wanted]:
    rows, columns = t["x"].bits.shape
    x = t["x"].set(normal((rows, columns), 5)).values
    target = t["target"].set(np.random.default_rng(6).integers(0, columns, rows)).values
    lse = np.log(np.exp(x).sum(1))
    loss = lse - x[np.arange(rows), target]
    return [Wanted(t["loss"], loss, 1e-5), Wanted(t["lse"], lse, 1e-6)]


def topk(t: dict[str, Tensor]) -> Sequence[Wanted]:
    rows, columns = t["x"].bits.shape
    rng = np.random.default_rng(7)
    steps = np.stack([rng.permutation(columns) for _ in range(rows)])
    signs = np.where(steps % 3, 1, -1)  # distinct numbers of bf16, some below zero
    x = t["x"].set(signs * 2.0 ** (steps // 128) * (1 + steps % 128 / 128)).values
    order = np.argsort(-x, 1)[:, : t["indices"].bits.shape[1]]
    return [Wanted(t["indices"], order), Wanted(t["values"], np.take_along_axis(x, order, 1))]


# --- Triton ------------------------------------------------------------------------------------------

M, N, K = 232, 152, 136
"""Of matrices that tiles of 128 by 128, 64 of K a step, do not divide."""
PROGRAMS = (2, 2)


def operands(dtype: str, k: int = K) -> tuple[Tensor, Tensor, Tensor]:
    """A of M by K, B of N by K, and D."""
    a = Tensor(dtype, M, k).set(quarters((M, k), 1))
    b = Tensor(dtype, N, k).set(quarters((N, k), 2))
    return a, b, Tensor(dtype, M, N)


def by_pointers(folder: Path, name: str) -> Peer:
    """The kernel loads whole tiles of rows and columns: there is memory for them, and no more is stored than D has."""
    m, n = 256, 256
    a = Tensor("bf16", m, K).set(quarters((m, K), 1))
    b = Tensor("bf16", K, n).set(quarters((K, n), 2))
    d = Tensor("bf16", M, N)
    args = [a, b, d, M, N, K, K, n, N]
    return called(folder, name, PROGRAMS, args, [Wanted(d, (a.values @ b.values)[:M, :N])])


def by_descriptors(folder: Path, name: str, dtype: str = "bf16", k: int = K) -> Peer:
    a, b, d = operands(dtype, k)
    args = [Described(a), Described(b), Described(d), k]
    return called(folder, name, PROGRAMS, args, [Wanted(d, a.values @ b.values.T)])


def by_own_descriptors(folder: Path, name: str) -> Peer:
    a, b, d = operands("bf16")
    return called(folder, name, PROGRAMS, [a, b, d, M, N, K], [Wanted(d, a.values @ b.values.T)])


def persistent(folder: Path, name: str) -> Peer:
    a, b, d = operands("bf16")
    args = [Described(a), Described(b), Described(d), M, N, K]
    return called(folder, name, (3, 1), args, [Wanted(d, a.values @ b.values.T)])


def attention(folder: Path, name: str) -> Peer:
    rows, keys, width, scale = 128, 192, 128, 0.125
    q, k, v = (
        Tensor("bf16", n, width).set(normal((n, width), seed))
        for seed, n in enumerate((rows, keys, keys))
    )
    o = Tensor("bf16", rows, width)
    scores = q.values @ k.values.T * scale
    weights = np.exp2(scores - scores.max(1, keepdims=True))
    out = weights @ v.values / weights.sum(1, keepdims=True)
    args = [*map(Described, (q, k, v, o)), keys, scale]
    return called(folder, name, (1, 1), args, [Wanted(o, out, 2 * BF16_STEP, 2 * BF16_STEP)])


def triton_softmax(folder: Path, name: str) -> Peer:
    rows, columns = 3, 1500
    x = Tensor("f32", rows, columns).set(normal((rows, columns), 1))
    y = Tensor("f32", rows, columns)
    powers = np.exp(x.values - x.values.max(1, keepdims=True))
    wanted = Wanted(y, powers / powers.sum(1, keepdims=True), 1e-5)
    return called(folder, name, (rows, 1), [y, x, columns, columns], [wanted])


# --- Gluon -------------------------------------------------------------------------------------------


def clc_copy(folder: Path, name: str) -> Peer:
    count, tile = 512 * 5 + 100, 512
    x = Tensor("f32", count).set(normal((count,), 1))
    y = Tensor("f32", count)
    programs = -(-count // tile)
    return called(folder, name, (programs, 1), [x, y, count], [Wanted(y, x.values)])


def strip_copy(folder: Path, name: str) -> Peer:
    """Tiles of 128 by 64, three along a strip; M is no multiple of a tile."""
    a = Tensor("f16", M, 192).set(normal((M, 192), 1))
    c = Tensor("f16", M, 192)
    return called(folder, name, (2, 1), [Described(a), Described(c)], [Wanted(c, a.values)])


def tile_copy(folder: Path, name: str) -> Peer:
    a = Tensor("f16", M, 64).set(normal((M, 64), 1))
    c = Tensor("f16", M, 64)
    return called(folder, name, (2, 1), [Described(a), Described(c)], [Wanted(c, a.values)])


def pair(folder: Path, name: str) -> Peer:
    a = Tensor("f16", 256, 64).set(quarters((256, 64), 1))
    b = Tensor("f16", 64, 128).set(quarters((64, 128), 2))
    c = Tensor("f16", 256, 128)
    args = [Described(a), Described(b), Described(c)]
    return called(folder, name, (1, 1), args, [Wanted(c, a.values @ b.values)])


def of_quack(fill: Callable[[dict[str, Tensor]], Sequence[Wanted]]) -> Make:
    return partial(_recorded, fill)


def _recorded(
    fill: Callable[[dict[str, Tensor]], Sequence[Wanted]], folder: Path, name: str
) -> Peer:
    return recorded(folder, name, fill)


MAKERS: dict[str, Make] = {
    "quack_gemm": of_quack(gemm),
    "quack_rmsnorm_backward": of_quack(norm_backward),
    "quack_rmsnorm": of_quack(norm),
    "quack_layernorm": of_quack(norm),
    "quack_softmax": of_quack(softmax),
    "quack_cross_entropy": of_quack(cross_entropy),
    "quack_topk": of_quack(topk),
    "triton_matmul_device_tma": by_own_descriptors,
    "triton_matmul_tma": by_descriptors,
    "triton_matmul_specialized": by_descriptors,
    "triton_matmul": by_pointers,
    "triton_persistent": persistent,
    "triton_attention": attention,
    "triton_softmax": triton_softmax,
    "gluon_clc": clc_copy,
    "gluon_tma_copy": strip_copy,
    "gluon_multicast_copy": tile_copy,
    "gluon_tcgen05_pair": pair,
    "gluon_tcgen05": partial(by_descriptors, dtype="f16", k=192),
    "gluon_wgmma": partial(by_descriptors, dtype="f16", k=192),
}
"""By the beginning of a kernel's name; the first that fits."""


LANE_0_RELEASES = frozenset(
    {"quack_gemm_clc_pair_c_sm_100a_c2x1", "quack_gemm_static_c_sm_90a_c1x2"}
)
"""Kernels that hang unless elect.sync chooses lane 0: docs/emulate_peers.md, DEADLOCK in quack."""


def make(folder: Path, name: str) -> Peer:
    """A kernel of `compile_peers` with inputs that are always the same."""
    return next(maker for start, maker in MAKERS.items() if name.startswith(start))(folder, name)
