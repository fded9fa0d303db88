"""Tensor cores: ldmatrix, stmatrix, movmatrix, mma.sync and wgmma of each type, layout and swizzle.

Operands of small integers give the same bits whatever the order of a sum. Of others the manual leaves "accumulation
order, rounding and handling of subnormal inputs" open: a result may differ by a unit of the accumulator for each
addend, at the size of the largest product. fp8 on Hopper keeps fewer bits of a sum (13 below the leading one, as
published in the DeepSeek-V3 report, 3.3.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from micro.case import Case, linear
from micro.tma import copy_in

if TYPE_CHECKING:
    from micro.case import Array, Bound

BITS = {
    "f16": 16,
    "bf16": 16,
    "tf32": 32,
    "e4m3": 8,
    "e5m2": 8,
    "s8": 8,
    "u8": 8,
    "f32": 32,
    "s32": 32,
}
INTEGERS = {"s8", "u8", "s32"}
FP8 = {"e4m3", "e5m2"}
THREADS = 128


def elements(rng: np.random.Generator, name: str, count: int, kind: str) -> Array:
    """Bits of so many numbers in 32-bit words: "small" integers, or "normal" ones of any mantissa."""
    bits = BITS[name]
    if name in INTEGERS:
        wide = rng.integers(0, 1 << min(bits, 24) if kind == "normal" else 4, count, np.uint64)
    elif kind == "small":
        wide = _bits(rng.integers(-3, 4, count).astype(np.float32), name)
    elif name in FP8:  # every magnitude up to 2, by bits
        top = 0x40
        wide = rng.integers(0, top, count, np.uint64) | rng.integers(
            0, 2, count, np.uint64
        ) << np.uint64(7)
    else:
        wide = _bits(rng.standard_normal(count).astype(np.float32), name)
    return wide.astype(f"u{bits // 8}").view(np.uint32)


def _bits(values: Array, name: str) -> Array:
    """Of numbers that fit the type, or are cut to it."""
    if name == "f16":
        return values.astype(np.float16).view(np.uint16)
    if name == "bf16":
        return values.view(np.uint32) >> np.uint32(16)
    if name in {"f32", "tf32"}:
        return values.view(np.uint32)
    exponent, mantissa = (4, 3) if name == "e4m3" else (5, 2)
    fraction, power = np.frexp(np.abs(values))  # 0.5 <= fraction < 1: small integers have few bits
    field = power + (1 << exponent - 1) - 2
    code = (field << mantissa) + np.round((2 * fraction - 1) * (1 << mantissa)).astype(np.int64)
    code = np.where(values == 0, 0, code)
    return (code | np.signbit(values).astype(np.int64) << 7).astype(np.uint8)


def largest(bits: Array, name: str) -> float:
    """The largest magnitude among elements."""
    if name in {"f32", "tf32"}:
        return float(np.abs(bits.view(np.float32)).max())
    if name == "f16":
        return float(np.abs(bits.view(np.float16)).astype(np.float64).max())
    if name == "bf16":
        return float(np.abs((bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)).max())
    return 3.0 if name not in FP8 else 3.5  # small integers, or below 0x40: 1.875 and 1.75


def unit(a: str, d: str) -> float:
    """Of one addend against the largest product: the accumulator's last kept bit."""
    if d == "f16":
        return 2.0**-10
    return 2.0**-13 if a in FP8 else 2.0**-23


def sum_bound(k: int, a: str, b: str, d: str) -> Bound:
    """`k` products and the accumulator."""

    def bound(inputs: list[Array], result: Array) -> Array:
        top = max(largest(inputs[0], a) * largest(inputs[1], b), 1.0)
        return np.full(result.shape, (k + 1) * unit(a, d) * top) + np.abs(result) * unit(a, d)

    return bound


def as_numbers(d: str):  # type: ignore[no-untyped-def]  # noqa: ANN201
    """Result words as numbers; two f16 a word."""
    return lambda result: np.asarray(
        result.view(np.float16 if d == "f16" else np.float32), np.float64
    )


# --- mma.sync -----------------------------------------------------------------------------------------------------------


def mma_case(k: int, a: str, b: str, d: str, kind: str, extra: str = "") -> Case:
    """One mma.sync of each of four warps: registers from the inputs, D to the output."""
    counts = {
        "a": 16 * k * BITS[a] // 32 // 32,
        "b": 8 * k * BITS[b] // 32 // 32,
        "c": 2 if d == "f16" else 4,
    }
    start = {"a": 10, "b": 20, "c": 30}
    loads = [
        f"mad.lo.u32 %r1, t, {count}, {r}; mul.wide.u32 %d1, %r1, 4; add.u64 %d1, %d1, IN{i}; ld.global.u32 %r{start[name] + r}, [%d1];"
        for i, (name, count) in enumerate(counts.items())
        for r in range(count)
    ]
    regs = {
        name: "{" + ", ".join(f"%r{start[name] + r}" for r in range(count)) + "}"
        for name, count in counts.items()
    }
    results = [f"%r{40 + r}" for r in range(counts["c"])]
    kinds = f"{d}.{a}.{b}.{d}"
    floats = d == "f32"
    before, after = "", ""
    if floats:
        before = "".join(f"mov.b32 %f{r}, %r{30 + r};" for r in range(4))
        after = "".join(f"mov.b32 %r{40 + r}, %f{10 + r};" for r in range(4))
        regs["c"], d_regs = "{%f0, %f1, %f2, %f3}", "{%f10, %f11, %f12, %f13}"
    else:
        d_regs = "{" + ", ".join(results) + "}"
    op = f"mma.sync.aligned.m16n8k{k}.row.col{extra}.{kinds} {d_regs}, {regs['a']}, {regs['b']}, {regs['c']};"
    stores = "".join(
        f"mad.lo.u32 %r1, t, {counts['c']}, {r}; mul.wide.u32 %d1, %r1, 4; add.u64 %d1, %d1, OUT; st.global.u32 [%d1], {register};"
        for r, register in enumerate(results)
    )

    def inputs(rng: np.random.Generator) -> list[Array]:
        return [
            elements(rng, t, THREADS * n * 32 // BITS[t], kind)
            for t, n in zip((a, b, d), counts.values(), strict=True)
        ]

    exact = a in INTEGERS or kind == "small"
    return Case(
        f"mma_k{k}_{d}_{a}_{b}_{kind}{extra.replace('.', '_')}",
        "\n".join([*loads, before, op, after, stores]),
        ((THREADS, counts["c"]), "u4"),
        inputs,
        threads=THREADS,
        bound=None if exact else sum_bound(k, a, b, d),
        values=None if exact else as_numbers(d),
    )


_MMA = [
    *(mma_case(k, "f16", "f16", d, kind) for k in (8, 16) for d in ("f32", "f16") for kind in ("small", "normal")),
    *(mma_case(k, "bf16", "bf16", "f32", kind) for k in (8, 16) for kind in ("small", "normal")),
    *(mma_case(k, "tf32", "tf32", "f32", kind) for k in (4, 8) for kind in ("small", "normal")),
    *(mma_case(32, a, b, "f32", kind) for a, b in (("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e5m2", "e5m2")) for kind in ("small", "normal")),
    *(mma_case(k, a, b, "s32", "normal") for k in (16, 32) for a, b in (("s8", "s8"), ("u8", "u8"), ("s8", "u8"))),
    mma_case(32, "s8", "s8", "s32", "normal", ".satfinite"),
]  # fmt: skip

# --- ldmatrix, stmatrix, movmatrix ----------------------------------------------------------------------------------------

_MATRICES = (
    ".shared .align 1024 .b8 s[4096];\n.reg .b32 s0; mov.u32 s0, s;\n"
    + copy_in(2048)
    + "bar.sync 0; mad.lo.u32 %r1, lane, 16, s0; mad.lo.u32 %r1, warp, 512, %r1;\n"
)


def _transfers() -> Case:
    """Every form, each result to a place of its own."""
    lines, place = [_MATRICES], 0
    for trans in ("", ".trans"):
        for count in (1, 2, 4):
            regs = [f"%r{10 + i}" for i in range(count)]
            lines.append(
                f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{', '.join(regs)}}}, [%r1];"
            )
            for register in regs:
                lines.append(
                    f"mad.wide.u32 %d1, t, 4, OUT; st.global.u32 [%d1+{4 * THREADS * place}], {register};"
                )
                place += 1
    lines.append(
        "movmatrix.sync.aligned.m8n8.trans.b16 %r20, %r10; mad.wide.u32 %d1, t, 4, OUT;"
        f"st.global.u32 [%d1+{4 * THREADS * place}], %r20;"
    )
    place += 1
    lines.append("add.u32 %r2, %r1, 2048;")
    for trans in ("", ".trans"):
        for count in (1, 2, 4):
            regs = [f"%r{10 + i}" for i in range(count)]
            read = "mad.lo.u32 %r3, warp, 512, s0; mad.lo.u32 %r3, lane, 16, %r3; ld.shared.v4.u32 {%r30, %r31, %r32, %r33}, [%r3+2048];"
            lines.append("st.shared.v4.u32 [%r2], {t, t, t, t}; bar.warp.sync 0xffffffff;")
            lines.append(
                f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r2], {{{', '.join(regs)}}}; bar.warp.sync 0xffffffff; {read} bar.warp.sync 0xffffffff;"
            )
            for word in range(4):
                lines.append(f"st.global.u32 [%d1+{4 * THREADS * place}], %r{30 + word};")
                place += 1
    return Case(
        "matrices",
        "\n".join(lines),
        ((place, THREADS), "u4"),
        lambda rng: [rng.integers(0, 2**32, 512, np.uint32)],
        threads=THREADS,
    )


# --- wgmma ----------------------------------------------------------------------------------------------------------------

A_BYTES = 8192
_SWIZZLES = {"none": (0, 256), "128B": (1, 1024), "64B": (2, 512), "32B": (3, 256)}
"""Number in the descriptor; bytes between groups of eight rows, for operands of 32 bytes a row where nothing is swizzled."""


def _descriptor(swizzle: str, *, mn_major: bool) -> int:
    """All but the address. MN-major: 128-byte swizzle, neighbouring 64 elements 2048 bytes apart, 8 k 1024."""
    number, stride = _SWIZZLES[swizzle]
    leading = 2048 if mn_major else 128
    return number << 62 | (stride >> 4) << 32 | (leading >> 4) << 16


def wgmma_case(
    n: int, a: str, b: str, d: str, kind: str = "normal", *, swizzle: str = "128B", trans: tuple[int, int] = (0, 0), signs: tuple[int, int] = (1, 1),
    registers: bool = False, extra: str = "", steps: int = 1,
) -> Case:  # fmt: skip
    """Products of `steps` times k from shared memory that is the inputs' image; D begins with the third input.

    Args:
        registers: A comes from registers, those of the first input's words.
        steps: 32 bytes further along k each; only a 128-byte swizzle has room for four.
    """
    k = 256 // BITS[a]
    count = n // 4 if d == "f16" else n // 2
    floats = d == "f32"
    b_bytes = max(n * _SWIZZLES[swizzle][1] // 8, 2048 * -(-n // 64) if trans[1] else 0)
    size = A_BYTES + b_bytes
    prefix = "%f" if floats else "%r"
    first = 20
    names = [f"{prefix}{first + r}" for r in range(count)]
    loads = "".join(
        f"ld.global.u32 %r1, [%d1+{4 * THREADS * r}]; mov.b32 {name}, %r1;"
        for r, name in enumerate(names)
    )
    a_regs = (
        "".join(f"ld.global.u32 %r{10 + r}, [%d2+{4 * THREADS * r}];" for r in range(4))
        if registers
        else ""
    )
    products = []
    for step in range(steps):
        left = "{%r10, %r11, %r12, %r13}" if registers else f"%d{10 + step}"
        tail = "" if a in INTEGERS else f", {signs[0]}, {signs[1]}"
        if BITS[a] == 16:
            tail += f", {trans[1]}" if registers else f", {trans[0]}, {trans[1]}"
        products.append(
            f"add.u64 %d{10 + step}, %d4, {2 * step}; add.u64 %d{20 + step}, %d5, {2 * step};"
        )
        products.append(
            f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{d}.{a}.{b}{extra} {{{', '.join(names)}}}, {left}, %d{20 + step}, %p1{tail};"
        )
    addresses, multiplies = products[::2], products[1::2]
    body = f"""{linear()} .shared .align 1024 .b8 s[{size}];\n.reg .b32 s0; mov.u32 s0, s; setp.eq.u32 %p1, t, t;
    {copy_in(size)} mad.wide.u32 %d1, t, 4, IN1; mad.wide.u32 %d2, t, 4, IN2; {loads} {a_regs}
    fence.proxy.async; bar.sync 0;
    cvt.u64.u32 %d4, s0; shr.u64 %d4, %d4, 4; add.u64 %d5, %d4, {A_BYTES >> 4}; or.b64 %d4, %d4, {_descriptor(swizzle, mn_major=bool(trans[0])):#x}; or.b64 %d5, %d5, {_descriptor(swizzle, mn_major=bool(trans[1])):#x};
    {" ".join(addresses)}
    wgmma.fence.sync.aligned;
    {" ".join(multiplies)}
    wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
    mad.wide.u32 %d1, t, 4, OUT;
    """
    for r, name in enumerate(names):
        body += f"mov.b32 %r1, {name}; st.global.u32 [%d1+{4 * THREADS * r}], %r1;\n"

    def inputs(rng: np.random.Generator) -> list[Array]:
        image = np.concatenate(
            [
                elements(rng, a, A_BYTES * 8 // BITS[a], kind),
                elements(rng, b, b_bytes * 8 // BITS[b], kind),
            ]
        )
        start = elements(rng, d, THREADS * count * 32 // BITS[d], "small")
        return [image, start, elements(rng, a, THREADS * 4 * 32 // BITS[a], kind)]

    def bound(given: list[Array], result: Array) -> Array:
        image, _, own = given
        cut = A_BYTES // 4
        return sum_bound(k * steps, a, b, d)(
            [own if registers else image[:cut], image[cut:]], result
        )

    exact = a in INTEGERS or kind == "small"
    words = [f"wgmma_n{n}_{d}_{a}_{b}_{kind}_{swizzle}"]
    words += (
        ["registers"] * registers
        + [f"trans{trans[0]}{trans[1]}"] * (trans != (0, 0))
        + [f"signs{signs[0]}{signs[1]}"] * (signs != (1, 1))
    )
    words += [f"steps{steps}"] * (steps > 1) + [extra[1:]] * bool(extra)
    return Case(
        "_".join(words), body, ((count, THREADS), "u4"), inputs, threads=THREADS,
        bound=None if exact else bound, values=None if exact else as_numbers(d),
    )  # fmt: skip


_WGMMA = [
    *(wgmma_case(n, "bf16", "bf16", "f32", kind, steps=4) for n in (8, 24, 64, 256) for kind in ("small", "normal")),
    *(wgmma_case(n, "f16", "f16", "f32", "normal", steps=2) for n in (16, 128)),
    *(wgmma_case(n, "f16", "f16", "f16", kind) for n in (8, 96) for kind in ("small", "normal")),
    *(wgmma_case(n, "tf32", "tf32", "f32", kind, steps=4) for n in (8, 64) for kind in ("small", "normal")),
    *(wgmma_case(32, a, b, "f32", kind, steps=4) for a, b in (("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e5m2", "e5m2")) for kind in ("small", "normal")),
    *(wgmma_case(16, "e4m3", "e5m2", "f16", kind) for kind in ("small", "normal")),
    *(wgmma_case(n, a, b, "s32", steps=4) for n, a, b in ((8, "s8", "s8"), (64, "u8", "u8"), (16, "s8", "u8"), (24, "u8", "s8"))),
    wgmma_case(32, "s8", "s8", "s32", extra=".satfinite"),
    *(wgmma_case(48, "bf16", "bf16", "f32", "small", swizzle=mode) for mode in ("none", "32B", "64B")),
    *(wgmma_case(32, "e4m3", "e4m3", "f32", "small", swizzle=mode) for mode in ("none", "64B")),
    *(wgmma_case(16, "s8", "s8", "s32", swizzle=mode) for mode in ("none", "32B")),
    *(wgmma_case(n, "bf16", "bf16", "f32", "small", trans=trans) for n in (64, 128) for trans in ((0, 1), (1, 0), (1, 1))),
    wgmma_case(192, "f16", "f16", "f32", "normal", trans=(1, 1)),
    *(wgmma_case(16, "f16", "f16", "f32", "small", signs=signs) for signs in ((-1, 1), (1, -1), (-1, -1))),
    *(wgmma_case(32, t, t, "s32" if t == "s8" else "f32", "small", registers=True) for t in ("bf16", "f16", "tf32", "e4m3", "s8")),
    wgmma_case(64, "bf16", "bf16", "f32", "normal", registers=True, trans=(0, 1)),
]  # fmt: skip

CASES = [*_MMA, _transfers(), *_WGMMA]
