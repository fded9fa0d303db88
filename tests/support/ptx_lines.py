"""A few lines of PTX as a kernel of one or more warps, run on the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.emulate import Report, launch

HEADER = ".version 9.0\n.target sm_100a\n.address_size 64\n"


def kernel(body: str, parameters: int = 1, *, cluster: int = 1, threads: int = 32) -> str:
    """An entry whose parameters p0, p1, … are in %d0, %d1, …; %tid is `t`, and registers are there to use."""
    declared = ", ".join(f".param .u64 p{i}" for i in range(parameters))
    loads = "\n".join(f"ld.param.u64 %d{i}, [p{i}];" for i in range(parameters))
    clusters = f".reqnctapercluster {cluster}, 1, 1\n" if cluster > 1 else ""
    return (
        f"{HEADER}.visible .entry k({declared})\n.reqntid {threads}, 1, 1\n{clusters}{{\n"
        ".reg .pred %p<16>; .reg .b16 %h<16>; .reg .b32 %r<64>; .reg .f32 %f<16>; "
        ".reg .b64 %d<32>; .reg .f64 %g<8>; .reg .b128 %q<4>;\n.reg .b32 t;\n"
        f"mov.u32 t, %tid.x;\n{loads}\n{body}\nret;\n}}\n"
    )


def run(text: str, *args: Any, grid: int = 1, **options: Any) -> Report:
    return launch(text, grid=grid, args=list(args), **options)


def compute(line: str, types: tuple[str, ...], *inputs: np.ndarray[Any, Any]) -> Any:
    """One instruction on 32 lanes: `line` reads a, b, c and writes x; the types are x's and theirs."""
    sizes = [np.dtype(dtype_of(t)).itemsize for t in types]
    out = np.zeros(32, dtype_of(types[0]))
    names = "xabc"
    body = [f".reg .{t.replace('f16', 'b16')} {n};" for t, n in zip(types, names, strict=False)]
    for i, size in enumerate(sizes):
        body += [f"mad.wide.u32 %d{8 + i}, t, {size}, %d{i};"]
    for i, t in enumerate(types[1:], start=1):
        body.append(f"ld.global.{t.replace('f16', 'b16')} {names[i]}, [%d{8 + i}];")
    body += [line, f"st.global.{types[0].replace('f16', 'b16')} [%d8], x;"]
    run(kernel("\n".join(body), len(types)), out, *inputs)
    return out


def dtype_of(type_: str) -> Any:
    kind = {"u": "u", "b": "u", "s": "i", "f": "f"}[type_[0]]
    return np.dtype(f"{kind}{int(type_[1:]) // 8}")
