"""The catalogue's TMA, wgmma and tcgen05 kernels with the arguments that they need, ready for the emulator."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilewright.emulate import Buffers, Options, prepare
from tilewright.emulate.numbers import decode, encode
from tilewright.emulate.tensor_map import TensorMap

if TYPE_CHECKING:
    from tilewright.emulate import Launch, Outcome

TILES, K_BLOCKS = 3, 3
"""Of the GEMMs: more K blocks than a ring of two slots has, and more tiles than are resident."""


class Prepared(NamedTuple):
    """A launch, its output and what should be in it; None where the kernel stores nothing that is checked."""

    launch: Launch
    output: Any
    expected: Any


def prepared(text: str) -> Prepared:
    """Arguments by the name of the kernel."""
    name = re.search(r"\.entry (\w+)", text)
    assert name is not None
    return MAKERS[name[1]](text)


def numbers(shape: tuple[int, int], seed: int) -> Any:
    """bf16 bits of small multiples of a quarter: sums are exact."""
    rng = np.random.default_rng(seed)
    return encode(rng.integers(-6, 7, shape).astype(np.float32) / 4, "bf16")


def tensor(
    buffers: Buffers, array: Any, box: tuple[int, int], swizzle: str = "none", dtype: str = ""
) -> bytes:
    return TensorMap.of(
        array, buffers.address_of(array), box, swizzle=swizzle, dtype=dtype
    ).encode()


def clc_gemm(text: str) -> Prepared:
    """gemm_clc2(a, b, out, k, n, tiles_m): tiles of 256x128 by pairs."""
    buffers = Buffers()
    k, tiles_m = 64 * K_BLOCKS, TILES
    a, b = numbers((256 * tiles_m, k), 1), numbers((128, k), 2)
    out = np.full((256 * tiles_m, 128), np.nan, np.float32)
    launch = prepare(
        text,
        grid=2 * tiles_m,
        block=256,
        args=[
            tensor(buffers, a, (128, 64), "128B", "bf16"),
            tensor(buffers, b, (64, 64), "128B", "bf16"),
            out,
            k,
            128,
            tiles_m,
        ],
        smem_bytes=4 * (16384 + 8192),
        buffers=buffers,
    )
    return Prepared(launch, out, decode(a, "bf16") @ decode(b, "bf16").T)


def wgmma_gemm(text: str) -> Prepared:
    """gemm_wgmma(a, b, out, k, n, tiles_m, tiles): tiles of 128x128, clusters of two along M."""
    buffers = Buffers()
    k, tiles_m = 64 * K_BLOCKS, 2 * TILES
    a, b = numbers((128 * tiles_m, k), 1), numbers((128, k), 2)
    out = np.full((128 * tiles_m, 128), np.nan, np.float32)
    launch = prepare(
        text,
        grid=4,
        block=384,
        args=[
            tensor(buffers, a, (128, 64), "128B", "bf16"),
            tensor(buffers, b, (64, 64), "128B", "bf16"),
            out,
            k,
            128,
            tiles_m,
            tiles_m,
        ],
        smem_bytes=4 * 2 * 16384,
        buffers=buffers,
    )
    return Prepared(launch, out, decode(a, "bf16") @ decode(b, "bf16").T)


def pair_gemm(text: str) -> Prepared:
    """pair_gemm(a, b, out, k_blocks, tiles): each thread of the epilogue keeps the first column of its row."""
    buffers = Buffers()
    a, b = numbers((256, 64 * K_BLOCKS), 1), numbers((256, 64 * K_BLOCKS), 2)
    out = np.zeros(4 * 256, np.uint32)
    size = int(re.search(r"\.reqnctapercluster (\d+)", text)[1])  # type: ignore[index]
    launch = prepare(
        text,
        grid=size,
        args=[
            tensor(buffers, a, (128, 64), "128B", "bf16"),
            tensor(buffers, b, (64, 64), "128B", "bf16"),
            out,
            K_BLOCKS,
            TILES,
        ],
        smem_bytes=2 * (16384 + 8192),
        buffers=buffers,
    )
    return Prepared(launch, None, None)


def multicast(text: str) -> Prepared:
    """tma_mc(map, out): tiles of 64 rows of 128 bytes, half loaded by each CTA of two."""
    buffers = Buffers()
    source = np.arange(256 * 32, dtype=np.uint32).reshape(256, 32)
    out = np.zeros((2, 512, 4), np.uint32)
    launch = prepare(
        text,
        grid=2,
        block=128,
        args=[tensor(buffers, source, (32, 32), "128B"), out],
        smem_bytes=8192 + 1024,
        buffers=buffers,
    )
    # Thread t reads piece 4 (t % 2) of row t / 2, where the swizzle has put the piece with the row's bits in it.
    row, place = np.divmod(np.arange(128), 2)
    pieces = source.reshape(4, 64, 8, 4)[:, row, 4 * place ^ row % 8]
    return Prepared(launch, out.reshape(2, 4, 128, 4), np.stack([pieces, pieces]))


def pair_load(text: str) -> Prepared:
    """pair_load(map, steps): both CTAs of each pair load 128x64 bf16 into a ring of two."""
    buffers = Buffers()
    source = numbers((1024, 64), 3)
    size = int(re.search(r"\.reqnctapercluster (\d+)", text)[1])  # type: ignore[index]
    launch = prepare(
        text,
        grid=size,
        block=64,
        args=[tensor(buffers, source, (128, 64), "128B", "bf16"), 4],
        smem_bytes=2 * 16384,
        buffers=buffers,
    )
    return Prepared(launch, None, None)


def send(text: str) -> Prepared:
    """send(map, rounds): 128 threads write a tile, one of them stores it."""
    buffers = Buffers()
    target = np.zeros((8, 256), np.uint64)
    launch = prepare(
        text,
        grid=1,
        args=[tensor(buffers, target, (1, 256)), 3],
        smem_bytes=4096,
        buffers=buffers,
    )
    return Prepared(launch, None, None)


def steps(text: str) -> Prepared:
    """steps(map, out, steps): a warpgroup multiplies what one thread loads, 2304 bytes a step."""
    buffers = Buffers()
    source = np.zeros((1024, 16), np.uint8)
    out = np.zeros(512, np.float32)
    launch = prepare(
        text,
        grid=1,
        args=[tensor(buffers, source, (144, 16)), out, 4],
        smem_bytes=4096,
        buffers=buffers,
    )
    return Prepared(launch, None, None)


MAKERS = {
    "gemm_clc2": clc_gemm,
    "gemm_wgmma": wgmma_gemm,
    "pair_gemm": pair_gemm,
    "tma_mc": multicast,
    "pair_load": pair_load,
    "send": send,
    "steps": steps,
}


SMALL = {
    "TMA-01": {"TMA-01"},
    "TMA-02": {"TMA-02"},
    "TMA-03": {
        "TMA-07",
        "DEADLOCK",
    },  # half the bytes expected: the phase ends early, then the count is off
    "C7": {"DEADLOCK"},
    "TMA-04": {"DEADLOCK"},
    "TMA-05": {"TMA-05"},
    "TMA-07": {"TMA-07"},
    "TMA-08": {"TMA-07"},
    "TMA-09": {"CLU-01"},
    "TMA-10": {"CLU-02"},
    "TMA-11": {"TMA-11"},
    "TMA-13": {"MBAR-05"},
    "TMA-15": {"TMA-15"},
    "TMA-15b": {"TMA-15"},
    "WG-03": {"WG-02", "WG-03"},
    "WG-03b": {"WG-02", "WG-03"},
    "TC-01": {"TC-01"},
    "TC-03": {"TC-03"},
    "TC-05": {"TC-05"},
    "TC-07": {"TC-07", "CLU-02"},
    "TC-09b": {"TC-09", "DEADLOCK"},
    "C6": {"DEADLOCK"},
    "TC-12b": {"TC-12"},
    "TC-15": {"TC-15"},
    "TC-17": {"TC-17"},
    "TC-20": {"TC-20"},
    "TC-22": {"TC-14"},
}
"""Pairs of small kernels, and the rules by which the broken one may be found: the catalogue's verdict column."""

LARGE = {
    "TMA-12": {"TMA-12"},
    "WG-02": {"WG-02"},
    "WG-04": {"WG-04", "TMA-07"},
    "WG-05": {"CLU-02"},
    "REG-01": {"REG-01"},
    "REG-02": {"DEADLOCK"},
    "TC-01b": {"TC-01"},
    "TC-02": {"DEADLOCK"},
    "TC-04": {"TC-04"},
    "TC-04b": {"TC-04"},
    "TC-06": {"DEADLOCK", "TC-05"},
    "TC-06b": {"DEADLOCK", "TC-07"},
    "TC-08": {"TC-08"},
    "TC-09": {"TC-09", "DEADLOCK"},
    "TC-09c": {"TC-09"},
    "TC-10": {"TC-10"},
    "TC-11b": {"TC-11"},
    "TC-12": {"TC-12"},
    "TC-13": {"TC-13"},
    "TC-14": {"TC-14"},
    "TC-16": {"TC-16"},
    "TC-16b": {"TC-16"},
    "TC-18": {"TC-18"},
    "TC-19": {"TC-19"},
}
"""Those built around a whole GEMM."""

ALLOCATE_UNMET = "TC-19"
"""Warned of in every kernel of a pair: they allocate before the pair has met, as CUTLASS' tutorial does."""

WARNED = ("TMA-06",)
STATIC = ("WG-01", "WG-06", "TC-21")
"""What ptxas refuses or repairs: nothing for the emulator to find."""


def run(case: Prepared, seed: int, resident: int = 2) -> Outcome:
    """One schedule."""
    return case.launch.run(
        case.launch.strategy(seed), Options(resident=resident, steps_max=500_000)
    )


def messages(outcome: Outcome) -> list[str]:
    """What a schedule of a kernel that is meant to be clean found."""
    return [
        found.message
        for found in outcome.findings
        if (found.rule, found.severity) != (ALLOCATE_UNMET, "warning")
    ]


def broken_rules(outcome: Outcome) -> set[str]:
    """Rules of the errors that a schedule found."""
    return {found.rule for found in outcome.errors}
