"""Rules of tcgen05.mma's descriptors: shapes and types in the instruction descriptor, layouts of shared memory.

The instruction descriptor is checked where it is a constant, the shared memory descriptor where the bits in
question are. Block-scaled kinds have a descriptor of their own, which is not modelled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.audit.rules import Outcome, rule
from tilewright.audit.tcgen05 import cta_group
from tilewright.audit.trace import BitTracer
from tilewright.ptx.nodes import Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tilewright.audit.kernel import Kernel
    from tilewright.audit.trace import Bits
    from tilewright.ptx.flow import Op

TYPES = {
    "f16": ({0: "f16", 1: "f32"}, {0: "f16", 1: "bf16"}),
    "tf32": ({1: "f32"}, {2: "tf32"}),
    "f8f6f4": ({0: "f16", 1: "f32"}, {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}),
    "i8": ({2: "s32"}, {0: "u8", 1: "s8"}),
}
"""Codes of D, and of A and B, by kind; PTX ISA 9.1, 9.7.16.4.2."""

SWIZZLES = {0: "none", 1: "128B with 32B atoms", 2: "128B", 4: "64B", 6: "32B"}
"""Codes of bits 61 to 63 of the shared memory descriptor."""


# --- the instruction descriptor -------------------------------------------------------------------


@rule(
    "TC-16", "error", section="9.7.16.4.2",
    help="encode M >> 4 in bits 24-28, N >> 3 in bits 17-22, the types of the kind, and zero elsewhere",
)  # fmt: skip
def instruction_descriptor(kernel: Kernel) -> Iterator[Outcome]:
    """The instruction descriptor names a shape and types that the kind and the CTA group have."""
    seen: set[tuple[str, int]] = set()
    unknown: Op | None = None
    for op in kernel.ops("tcgen05.mma"):
        kind = kind_of(op)
        value = kernel.value(op, "idesc")
        number = None if value is None else value.number()
        if kind not in TYPES or number is None:
            unknown = unknown or op
            continue
        shape = f"{op.entry} {cta_group(op)} {kind}", number & 0xFFFFFFFF
        if shape in seen:
            continue
        seen.add(shape)
        for problem in _descriptor_problems(op, kind, number & 0xFFFFFFFF):
            yield kernel.finding(
                "TC-16",
                f"instruction descriptor 0x{number & 0xFFFFFFFF:08x} of .kind::{kind} with"
                f" .cta_group::{cta_group(op)}: {problem}",
                op,
            )
    if unknown is not None:
        why = (
            "the instruction descriptor is not a constant"
            if kind_of(unknown) in TYPES
            else f"the descriptor of .kind::{kind_of(unknown)} is not modelled"
        )
        yield kernel.undecided("TC-16", why, unknown)


def kind_of(op: Op) -> str:
    """`f16` of `.kind::f16`; "" without."""
    words = op.node.opcode.modifiers
    return next((word[6:] for word in words if word.startswith("kind::")), "")


def shape_of(idesc: int) -> tuple[int, int]:
    """M and N of an instruction descriptor."""
    return (idesc >> 24 & 31) << 4, (idesc >> 17 & 63) << 3


def _descriptor_problems(op: Op, kind: str, idesc: int) -> Iterator[str]:
    m, n = shape_of(idesc)
    ws = op.is_a("tcgen05.mma.ws")
    rows, fits_n, allowed_n = _shapes(kind, cta_group(op) or 1, ws=ws, sparse=op.has("sp"))
    if m not in rows:
        yield f"M is {m}, allowed are {' and '.join(map(str, rows))}"
    if not fits_n(n):
        yield f"N is {n}, allowed is {allowed_n}"
    d, ab = TYPES[kind]
    for name, code, known in (
        ("D", idesc >> 4 & 3, d),
        ("A", idesc >> 7 & 7, ab),
        ("B", idesc >> 10 & 7, ab),
    ):
        if code not in known:
            choices = ", ".join(f"{c} {t}" for c, t in known.items())
            yield f"the type of {name} is {code}, which the kind does not have ({choices})"
    reserved = [bit for bit in (6, 23, 29) if idesc >> bit & 1]
    if not ws:
        reserved += [bit for bit in (30, 31) if idesc >> bit & 1]
    if kind != "i8":
        reserved += [3] if idesc >> 3 & 1 else []
    if reserved:
        yield f"reserved bits must be zero, set: {', '.join(map(str, sorted(reserved)))}"
    if bool(idesc >> 2 & 1) != op.has("sp"):
        yield f"bit 2 says {'sparse' if idesc >> 2 & 1 else 'dense'}, the instruction does not"


def _shapes(
    kind: str, group: int, *, ws: bool, sparse: bool
) -> tuple[tuple[int, ...], Callable[[int], bool], str]:
    """Allowed M, whether an N is allowed, and the same for the reader; PTX ISA 9.1, 9.7.16.2.1."""
    if ws:
        sizes = (64, 128) if sparse else (64, 128, 256)
        return (32, 64, 128), sizes.__contains__, " or ".join(map(str, sizes))
    rows = (64, 128) if group == 1 else (128, 256)
    if kind == "i8":
        if group == 1:
            small = (8, 24)
            return rows, lambda n: n in small or _steps(n, 16), "8, 16, 24, then steps of 16 to 256"
        return rows, lambda n: _steps(n, 32), "a multiple of 32 up to 256"
    step = 8 * group
    return rows, lambda n: _steps(n, step), f"a multiple of {step} from {step} to 256"


def _steps(n: int, step: int) -> bool:
    return step <= n <= 256 and n % step == 0


# --- the shared memory descriptor -----------------------------------------------------------------


@rule(
    "TC-20", "error", section="9.7.16.4.1",
    help="set bits 46-48 to 001, bits 53-60 to zero and the swizzle to one of 0, 1, 2, 4, 6",
)  # fmt: skip
def shared_memory_descriptor(kernel: Kernel) -> Iterator[Outcome]:
    """Shared memory descriptors carry the fixed bits, and a swizzle that exists."""
    seen: set[str] = set()
    undecided = False
    tracer = BitTracer(kernel)
    for op in kernel.ops("tcgen05.mma", "tcgen05.cp"):
        for role in ("a", "b", "descriptor"):
            operand = op.role(role)
            if operand is None or isinstance(operand, Memory):
                continue
            bits = tracer.of(operand, op)
            if bits.field(46, 3) is None and not undecided:
                undecided = True
                yield kernel.undecided(
                    "TC-20", "the fixed bits of a shared memory descriptor are not known", op
                )
            for problem in _layout_problems(bits):
                if problem not in seen:
                    seen.add(problem)
                    yield kernel.finding(
                        "TC-20", f"shared memory descriptor of {role.upper()}: {problem}", op
                    )


def _layout_problems(bits: Bits) -> Iterator[str]:
    version = bits.field(46, 3)
    if version is not None and version != 1:
        yield f"bits 46-48 are {version:03b}, they must be 001"
    swizzle = bits.field(61, 3)
    if swizzle is not None and swizzle not in SWIZZLES:
        yield f"the swizzle is {swizzle}, defined are {', '.join(map(str, SWIZZLES))}"
    fixed = bits.field(53, 8)
    if fixed:
        yield f"bits 53-60 are {fixed:08b}, they must be zero"
