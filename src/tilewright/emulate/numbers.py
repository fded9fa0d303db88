"""The floating-point formats of tensor cores: bits to float32 and back, with PTX rounding.

Every format here is a sign, an exponent and a mantissa with subnormals; they differ in what the largest exponent
means. Values travel as float32 (or float64, where a sum is still exact), bits as unsigned integers. Rounding is
done on the mantissa scaled to an integer, which is exact in float64 for any float32.

Left out: stochastic rounding (`.rs`), which needs the random bits of the instruction.

Source: PTX ISA, "Alternate Floating-Point Data Formats" and `cvt`; OCP Microscaling Formats (MX) 1.0, section 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tilewright.errors import UnknownName

if TYPE_CHECKING:
    from numpy.typing import NDArray

Rounding = Literal["rn", "rz", "rm", "rp", "rna"]
"""To nearest even, towards zero, down, up, to nearest with ties away from zero."""


@dataclass(frozen=True, slots=True)
class Format:
    """Where the bits of a number lie.

    Attributes:
        storage_bits: of the register or byte that holds one; the number lies in its low bits.
        special: what the largest exponent means: infinities and NaNs ("ieee"), one NaN of each sign above the
            largest number ("nan"), or numbers like the others ("none").
        dropped_bits: low bits that do not count; tf32 lies in the high 19 bits of a float32.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    storage_bits: int
    special: Literal["ieee", "nan", "none"] = "ieee"
    dropped_bits: int = 0

    @property
    def bias(self) -> int:
        """What is taken from the exponent field."""
        return (1 << self.exponent_bits - 1) - 1

    @property
    def smallest_exponent(self) -> int:
        """Power of two of the smallest normal number; subnormals share its unit."""
        return 1 - self.bias

    @property
    def largest(self) -> float:
        """The largest finite number."""
        field = (1 << self.exponent_bits) - 1 - (self.special == "ieee")
        mantissa = (1 << self.mantissa_bits) - 1 - (self.special == "nan")
        return float(2.0 ** (field - self.bias) * (1 + mantissa / (1 << self.mantissa_bits)))

    @property
    def nan_bits(self) -> int:
        """The NaN that conversions give; a format without one gives its largest number."""
        return (1 << self.exponent_bits + self.mantissa_bits) - 1 << self.dropped_bits

    @property
    def storage(self) -> Any:
        """The numpy type of its bits."""
        return {8: np.uint8, 16: np.uint16, 32: np.uint32}[self.storage_bits]


FORMATS = {
    form.name: form
    for form in (
        Format("f16", 5, 10, 16),
        Format("bf16", 8, 7, 16),
        Format("tf32", 8, 10, 32, dropped_bits=13),
        Format("f32", 8, 23, 32),
        Format("e5m2", 5, 2, 8),
        Format("e4m3", 4, 3, 8, "nan"),
        Format("e3m2", 3, 2, 8, "none"),
        Format("e2m3", 2, 3, 8, "none"),
        Format("e2m1", 2, 1, 8, "none"),
    )
}


def format_of(name: str) -> Format:
    """The format of a PTX type without its dot.

    Raises:
        UnknownName
    """
    if name not in FORMATS:
        raise UnknownName("floating-point format", name, FORMATS)
    return FORMATS[name]


def decode(bits: NDArray[Any], name: str) -> NDArray[np.float32]:
    """What the bits mean. Bits above an element's own are ignored, and tf32 drops the low 13.

    Raises:
        UnknownName
    """
    form = format_of(name)
    if name == "f32":
        return np.asarray(bits, np.uint32).view(np.float32)
    if name == "tf32":
        kept = bits.astype(np.uint32) >> form.dropped_bits << form.dropped_bits
        return kept.view(np.float32)
    if name == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if name == "f16":
        return np.asarray(bits.astype(np.uint16).view(np.float16), np.float32)
    table = _decoded(form)
    found: NDArray[np.float32] = table[bits.astype(np.uint8) & (len(table) - 1)]
    return found


@cache
def _decoded(form: Format) -> NDArray[np.float32]:
    """The number of every pattern of an 8-bit container; bits above the sign do not count."""
    codes = np.arange(1 << 1 + form.exponent_bits + form.mantissa_bits)
    fields = codes >> form.mantissa_bits & (1 << form.exponent_bits) - 1
    fraction = (codes & (1 << form.mantissa_bits) - 1) / (1 << form.mantissa_bits)
    exponents = np.maximum(fields, 1) - form.bias
    values = (fraction + (fields > 0)) * 2.0**exponents
    if form.special == "ieee":
        last = fields == (1 << form.exponent_bits) - 1
        values = np.where(last, np.where(fraction == 0, np.inf, np.nan), values)
    elif form.special == "nan":
        values = np.where(codes & form.nan_bits == form.nan_bits, np.nan, values)
    sign = np.where(codes >> form.exponent_bits + form.mantissa_bits & 1, -1.0, 1.0)
    return np.asarray(sign * values, np.float32)


def encode(
    values: NDArray[Any],
    name: str,
    rounding: Rounding = "rn",
    *,
    satfinite: bool = False,
    relu: bool = False,
) -> NDArray[Any]:
    """Numbers to bits, as `cvt` does.

    What does not fit becomes infinity, NaN in a format without infinity, the largest number in one without
    either; with a rounding that points the other way, the largest number.

    Args:
        values: float32; or float64, for which `rna` may err where the mantissa has more than 52 bits.
        satfinite: what does not fit, and infinity, become the largest finite number of their sign.
        relu: what is negative becomes zero. NaN loses its sign.
    Returns:
        As many bits as `Format.storage_bits`.
    Raises:
        UnknownName
    """
    form = format_of(name)
    with np.errstate(invalid="ignore"):  # numpy warns of signalling NaNs
        wide = np.asarray(values, np.float64)
    nan = np.isnan(wide)
    negative = np.signbit(wide) & ~nan
    magnitude = np.where(nan, 0.0, np.abs(wide))
    units, exponent = _rounded(magnitude, negative, form, rounding)
    infinite = np.isinf(magnitude)
    over = infinite | (np.ldexp(units, exponent) > form.largest)

    # An exponent field of 0 and of 1 have the same unit: the leading one of a normal number carries into it.
    field = (exponent + form.mantissa_bits - form.smallest_exponent).astype(np.int64)
    bits = (field << form.mantissa_bits) + np.where(over, 0, units).astype(np.int64)
    largest_bits = _largest_bits(form)
    away = (rounding in {"rn", "rna"}) | infinite
    if rounding in {"rm", "rp"}:
        away = infinite | (negative == (rounding == "rm"))
    overflowed = form.nan_bits >> form.dropped_bits
    if form.special == "ieee":
        overflowed = ((1 << form.exponent_bits) - 1) << form.mantissa_bits
    if satfinite or form.special == "none":
        overflowed = largest_bits
    bits = np.where(over, np.where(away, overflowed, largest_bits), bits)
    bits |= negative.astype(np.int64) << form.exponent_bits + form.mantissa_bits
    if relu:
        bits = np.where(negative, 0, bits)
    bits = np.where(nan, form.nan_bits >> form.dropped_bits, bits)
    return (bits << form.dropped_bits).astype(form.storage)


def _largest_bits(form: Format) -> int:
    field = (1 << form.exponent_bits) - 1 - (form.special == "ieee")
    mantissa = (1 << form.mantissa_bits) - 1 - (form.special == "nan")
    return field << form.mantissa_bits | mantissa


def _rounded(
    magnitude: NDArray[np.float64], negative: NDArray[np.bool_], form: Format, rounding: Rounding
) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Magnitudes as whole units, and the power of two of the unit of each."""
    finite = np.where(np.isinf(magnitude), 0.0, magnitude)
    _, above = np.frexp(finite)  # finite = f * 2^above, f in [0.5, 1)
    above = np.where(finite == 0, form.smallest_exponent, above - 1)
    exponent = np.maximum(above, form.smallest_exponent) - form.mantissa_bits
    scaled = np.ldexp(finite, -exponent)
    if rounding == "rn":
        return np.rint(scaled), exponent
    if rounding == "rna":
        return np.floor(scaled + 0.5), exponent
    if rounding == "rz":
        return np.floor(scaled), exponent
    up = negative if rounding == "rm" else ~negative
    return np.where(up, np.ceil(scaled), np.floor(scaled)), exponent


def decode_scale(bits: NDArray[Any]) -> NDArray[np.float32]:
    """ue8m0, a power of two: 2^(bits - 127), 255 is NaN."""
    exponents = bits.astype(np.int32)
    return np.where(exponents == 255, np.nan, np.ldexp(1.0, exponents - 127)).astype(np.float32)


def encode_scale(values: NDArray[Any], rounding: Literal["rz", "rp"] = "rz") -> NDArray[np.uint8]:
    """Magnitudes to ue8m0: rounded towards zero or up to a power of two, 2^-127 to 2^127; NaN is 255."""
    magnitude = np.abs(np.asarray(values, np.float64))
    nan = np.isnan(magnitude)
    bounded = np.clip(np.where(nan, 1.0, magnitude), 2.0**-127, 2.0**127)
    fraction, above = np.frexp(bounded)
    exponents = above - 1
    if rounding == "rp":
        exponents = exponents + (fraction > 0.5)
    return np.where(nan, 255, exponents + 127).astype(np.uint8)
