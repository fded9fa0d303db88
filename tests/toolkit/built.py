"""Kernels compiled for a test, and what ptxas, their PTX and their SASS say of them.

No test looks at a register's name or at the order of two blocks: values are followed, opcodes are counted.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.kernels.source import assemble
from tilewright.run.compiler import Compiled, compile_source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.kernels.config import GemmConfig

RANK_READS = {
    "const u32 rank = cluster_size > 1 ? cluster_rank() : 0;": "constexpr u32 rank = {};",
    "if constexpr (clustered) rank = cluster_rank();": "if constexpr (clustered) rank = {};",
}
"""The only look at its rank of a GEMM kernel and of the harness, and what a constant in its place looks like."""

REGISTERS_PER_CTA = 65_536
"""Source: CUDA C++ Programming Guide, technical specifications table, every capability from 8.0 on."""


def build_gemm(config: GemmConfig, arch: str, rank: int | None = None) -> Compiled:
    """A GEMM kernel; with its rank put in for it where one is given: masks are then constants."""
    source = assemble(config.kernel, config.render())
    if rank is not None:
        source = with_rank(source, rank)
    return compile_source(source, config.kernel, arch, use_cache=False)


def with_rank(source: str, rank: int) -> str:
    """The source as CTA `rank` of its cluster sees it, in every section that looks."""
    changed = source
    for look, constant in RANK_READS.items():
        changed = changed.replace(look, constant.format(rank))
    assert changed != source
    assert "= cluster_rank()" not in changed, "a look at the rank that RANK_READS does not know"
    return changed


def faults(found: Compiled, entry: str, threads: int) -> list[str]:
    """What of a compiled kernel must not be, in words; empty for a clean one.

    Warnings count, C75.. of ptxas with them: wgmma made serial, setmaxnreg ignored.

    Args:
        threads: of a CTA, which its registers must suffice for.
    """
    kernels = [use for use in found.functions if use.is_kernel]
    if [use.name for use in kernels] != [entry]:
        return [f"its kernels are {[use.name for use in kernels]}, not {entry}"]
    said = [
        f"{use.name}: {amount} bytes {what}"
        for use in found.functions
        for what, amount in (
            ("spill stores", use.spill_store_bytes),
            ("spill loads", use.spill_load_bytes),
            ("stack", use.stack_bytes),
            ("static shared memory", use.static_smem_bytes),
        )
        if amount
    ]
    (kernel,) = kernels
    if kernel.registers * threads > REGISTERS_PER_CTA:
        said.append(f"{kernel.registers} registers for each of {threads} threads")
    said += [
        line
        for line in found.log.splitlines()
        if re.search(r"warning\s*[:#]|C75\d\d", line, re.IGNORECASE)
    ]
    return said


# --- SASS -------------------------------------------------------------------------------------------------------------


@cache
def nvdisasm() -> str:
    """The disassembler: the `sass` extra's, or the toolkit's on the path."""
    try:
        files = metadata.files("nvidia-cuda-nvdisasm") or ()
    except metadata.PackageNotFoundError:
        files = ()
    installed = [str(file.locate()) for file in files if file.stem == "nvdisasm"]
    program = next(iter(installed), None) or shutil.which("nvdisasm")
    assert program is not None, "no nvdisasm: pip install '.[sass]'"
    return program


def opcodes(found: Compiled) -> tuple[str, ...]:
    """The kernel's SASS, an opcode with its modifiers an instruction."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(found.cubin)
        command = [nvdisasm(), "-c", str(file)]
        text = subprocess.run(command, capture_output=True, check=True, text=True).stdout  # noqa: S603
    return tuple(re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@\S+\s+)?([A-Z][\w.]*)", text, re.MULTILINE))


def main_loop_spills(found: Compiled) -> list[str]:
    """Local memory touched between the first and the last product of a main loop, in words.

    Products and what lies between them: ptxas keeps a loop's instructions together.
    """
    code = opcodes(found)
    products = [at for at, opcode in enumerate(code) if "MMA" in opcode]
    inside = code[products[0] : products[-1]]
    return [f"{each} in the main loop" for each in inside if each.startswith(("LDL", "STL"))]


# --- PTX --------------------------------------------------------------------------------------------------------------


def constants(ptx: str) -> Iterator[tuple[str, dict[str, int]]]:
    """Each line of the PTX with the constants that its registers hold there.

    A register's value is the last number moved into it, and a sum's the distance from the dynamic shared
    memory's start. The kernel's prologue has no loop around what is read here.
    """
    known: dict[str, int] = {}
    for line in ptx.splitlines():
        text = line.strip().rstrip(";")
        if match := re.match(r"mov\.[bu](?:16|32)\s+(%\w+), (-?\d+)$", text):
            known[match[1]] = int(match[2])
        elif match := re.match(r"mov\.[bu]32\s+(%\w+), (%\w+)$", text):
            known[match[1]] = known.get(match[2], 0)
        elif match := re.match(r"add\.s32\s+(%\w+), (%\w+), (-?\d+)$", text):
            known[match[1]] = known.get(match[2], 0) + int(match[3])
        yield text, known


def barrier_counts(ptx: str) -> list[int]:
    """The counts that mbarrier.init is given, in the order of the barriers' addresses."""
    counts: dict[int, int] = {}
    for text, known in constants(ptx):
        if match := re.match(r"mbarrier\.init\S* \[(%\w+)\], (%\w+)$", text):
            counts[known[match[1]]] = known[match[2]]
    return [counts[offset] for offset in sorted(counts)]


def operands(ptx: str, instruction: str) -> list[int]:
    """The last operand of each `instruction` that has one behind its address, a constant."""
    found = []
    for text, known in constants(ptx):
        if match := re.match(re.escape(instruction) + r".*, (%?\w+)$", text):
            found.append(known[match[1]] if match[1].startswith("%") else int(match[1]))
    return found
