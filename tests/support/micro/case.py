"""One micro-kernel: its PTX, its launch, its inputs, and how its result is compared.

Every kernel has one parameter, a struct: tensor maps of 128 bytes, then the address of the output, then those of
the inputs. Its body finds `MAP0`, … (addresses of the maps), `OUT`, `IN0`, …, and `t`, `warp`, `lane`, `rank`, `cta`,
with registers to use: %p, %h (16 bits), %r, %f, %d (64 bits), %g (binary64), %q (128 bits).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Inputs = Callable[[np.random.Generator], list[Array]]
Expected = Callable[[list[Array]], Array]
Values = Callable[[Array], Array]
"""A result as numbers that can be subtracted."""
Bound = Callable[[list[Array], Array], Array]
"""Inputs and the recorded numbers -> what the emulator's may differ by, element by element."""

VERSION = "8.4"
"""Of the PTX: a driver of CUDA 12.4 reads it."""

_HEADER = f".version {VERSION}\n.target sm_90a\n.address_size 64\n"
_REGISTERS = (
    ".reg .pred %p<32>; .reg .b16 %h<32>; .reg .b32 %r<300>; .reg .f32 %f<300>; .reg .b64 %d<40>; "
    ".reg .f64 %g<8>; .reg .b128 %q<4>;\n.reg .b32 t, warp, lane, rank, cta;\n"
)
MAP_BYTES = 128


@dataclass(frozen=True)
class TensorBox:
    """The tensor map of one input, or of the output, innermost dimension first.

    Attributes:
        tensor: index of the input; -1 is the output.
        dtype: as the driver names it, in lower case: "uint8", "bfloat16".
        dims, strides_bytes, box, steps: as cuTensorMapEncodeTiled wants them.
        swizzle: "none", "32B", "64B", "128B".
    """

    tensor: int
    dtype: str
    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...] = ()
    swizzle: str = "none"
    nan_fill: bool = False


@dataclass(frozen=True)
class Case:
    """A kernel with everything that a run of it needs.

    Attributes:
        body: PTX between the prologue and `ret`; braces may be used.
        output: shape and type of the result, zero before the launch.
        inputs: arrays from a seeded generator.
        ctas, cluster, threads: of the launch, in x; cluster 0 is a launch without the attribute.
        maps: tensor maps that the parameter begins with.
        module: PTX before the entry; `directives` after its parameter.
        expected: the result by numpy, where that is easy.
        bound: None where results are equal bit for bit.
        values: the result as numbers, before it is held against the bound.
        fault: the rule by which the emulator stops this kernel, which a GPU ends as an error; else empty.
    """

    name: str
    body: str
    output: tuple[tuple[int, ...], str]
    inputs: Inputs = field(default=lambda _rng: [])
    ctas: int = 1
    cluster: int = 0
    threads: int = 32
    smem_bytes: int = 0
    maps: tuple[TensorBox, ...] = ()
    module: str = ""
    directives: str = ""
    expected: Expected | None = None
    bound: Bound | None = None
    values: Values | None = None
    fault: str = ""

    def arrays(self, seed: int = 0) -> list[Array]:
        """The inputs; the same for everybody who has the seed."""
        digits = hashlib.sha256(self.name.encode()).digest()[:4]
        return self.inputs(np.random.default_rng([seed, int.from_bytes(digits, "little")]))

    @property
    def ptx(self) -> str:
        """The whole module; its entry is `micro`."""
        count = len(self.arrays())
        size = MAP_BYTES * len(self.maps) + 8 * (1 + count)
        names = ["OUT", *(f"IN{i}" for i in range(count))]
        lines = [f".reg .b64 {name};" for name in names]
        first = MAP_BYTES * len(self.maps)
        lines += [f"ld.param.u64 {name}, [p+{first + 8 * i}];" for i, name in enumerate(names)]
        for i in range(len(self.maps)):
            lines += [
                f".reg .b64 MAP{i};",
                f"mov.b64 MAP{i}, p; cvta.param.u64 MAP{i}, MAP{i}; add.u64 MAP{i}, MAP{i}, {128 * i};",
            ]
        cluster = f".reqnctapercluster {self.cluster}, 1, 1\n" if self.cluster else ""
        return (
            f"{_HEADER}{self.module}\n.visible .entry micro(.param .align 64 .b8 p[{size}])\n"
            f".reqntid {self.threads}, 1, 1\n{cluster}{self.directives}\n{{\n{_REGISTERS}"
            "mov.u32 t, %tid.x; shr.u32 warp, t, 5; and.b32 lane, t, 31; mov.u32 rank, %cluster_ctarank; "
            "mov.u32 cta, %ctaid.x;\n" + "\n".join(lines) + f"\n{self.body}\nret;\n}}\n"
        )

    def inputs_digest(self, seed: int) -> str:
        """Of the inputs: another numpy may draw others."""
        whole = hashlib.sha256()
        for array in self.arrays(seed):
            whole.update(array.tobytes())
        return whole.hexdigest()[:16]

    @property
    def digest(self) -> str:
        """Of what was run: a record of another text is no record of this case."""
        launch = f"{self.ctas} {self.cluster} {self.threads} {self.smem_bytes} {self.maps}"
        return hashlib.sha256((self.ptx + launch).encode()).hexdigest()[:16]

    def named(self, suffix: str, **changes: Any) -> Case:
        """A variant."""
        return replace(self, name=f"{self.name}_{suffix}", **changes)


# --- pieces of PTX ------------------------------------------------------------------------------------------------------


def at(base: str, index: str, size: int, to: str) -> str:
    """`to` = base + size * index, 64 bits."""
    return f"mad.wide.u32 {to}, {index}, {size}, {base};"


def linear(to: str = "%r0") -> str:
    """The number of this thread in the grid."""
    return f"{{ .reg .b32 n; mov.u32 n, %ntid.x; mad.lo.u32 {to}, cta, n, t; }}"


def store(value: str, type_: str = "u32", index: str = "%r0") -> str:
    """OUT[index] = value."""
    size = int(re.sub(r"\D", "", type_)) // 8
    return f"{{ .reg .b64 at; {at('OUT', index, size, 'at')} st.global.{type_} [at], {value}; }}"


def load(to: str, type_: str, index: str = "%r0", array: str = "IN0") -> str:
    """to = array[index]."""
    size = int(re.sub(r"\D", "", type_)) // 8
    return f"{{ .reg .b64 at; {at(array, index, size, 'at')} ld.global.{type_} {to}, [at]; }}"


def once(lines: str, thread: int = 0) -> str:
    """Only one thread."""
    return (
        f"{{ .reg .pred one; setp.ne.u32 one, t, {thread}; @one bra OVER; {{ {lines} }} OVER: }}\n"
    )


def wait(barrier: str, parity: str | int) -> str:
    """Until the phase of this parity has completed."""
    return (
        f"{{ .reg .pred done; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [{barrier}], {parity}; "
        "@!done bra AGAIN; }\n"
    )


CLUSTER_SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n"
INIT = "fence.mbarrier_init.release.cluster; fence.proxy.async;"
