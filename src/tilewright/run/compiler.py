"""Compile CUDA C++ with NVRTC: cubin, PTX and what each kernel uses; no GPU and no driver.

Registers, spills, stack and shared memory are what ptxas says of each function (`--ptxas-options=-v`,
read from the program's log). Results are kept in the user's cache by a hash of everything that goes into
them. A source that includes files is compiled each time: the hash does not see those files.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.errors import TilewrightError, UnknownName
from tilewright.run.bindings import call, import_nvrtc

if TYPE_CHECKING:
    from collections.abc import Sequence

NO_CACHE = "--no-cache"
"""NVRTC has a cache of its own, from which the log comes back empty. Seen: NVRTC 13.0 beside a driver."""

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_READS_FILES = re.compile(r"#\s*(include|embed)")
_CACHED_FILES = ("kernel.ptx", "log.txt", "kernel.cubin")


class CompileFailed(TilewrightError):
    """The compiler refused the source or an option; the message ends with its own words."""


@dataclass(frozen=True, slots=True)
class FunctionUse:
    """What one compiled function uses, in the words of ptxas.

    Attributes:
        name: the mangled name, as cuModuleGetFunction wants it.
        is_kernel: an entry point; otherwise a device function that was not inlined, whose registers
            count in its callers.
        registers: 32-bit registers a thread; 0 for device functions.
        stack_bytes: local memory a thread that the function's own frame takes.
        spill_store_bytes, spill_load_bytes: code size of the register spills, as ptxas counts them.
        static_smem_bytes: static shared memory a CTA, without the system's reserved part.
    """

    name: str
    is_kernel: bool
    registers: int = 0
    stack_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    static_smem_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Compiled:
    """One source compiled for one architecture.

    Attributes:
        toolkit: NVRTC's version, "13.0".
        seconds: wall-clock time; of reading the cache when `cached`.
    """

    arch: str
    toolkit: str
    cubin: bytes
    ptx: str
    log: str
    functions: tuple[FunctionUse, ...]
    seconds: float
    cached: bool


ARCH_SPECIFIC = {"sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121"}
"""Those with a form of its own instructions, like sm_90a."""


def compile_source(
    source: str, name: str, arch: str, options: Sequence[str] = (), *, use_cache: bool = True
) -> Compiled:
    """Compile for one architecture.

    Args:
        name: shown in messages; a path lets `#include "x.h"` find files beside it.
        arch: "sm_90a", "sm_100a", …
        options: further NVRTC options, like "--maxrregcount=128".
    Raises:
        MissingCuda: no NVRTC.
        CompileFailed: with the compiler's messages.
    """
    start = time.perf_counter()
    nvrtc = import_nvrtc()
    toolkit = "{}.{}".format(*call(nvrtc.nvrtcVersion))
    folder = cache_dir() / cache_key(source, name, arch, options, toolkit)
    keep = use_cache and is_self_contained(source, options)
    found = _read_cache(folder) if keep else None
    ptx, log, cubin = found or _compile(nvrtc, source, name, arch, options)
    if keep and found is None:
        _write_cache(folder, (ptx, log, cubin))
    text = log.decode(errors="replace")
    return Compiled(
        arch=arch,
        toolkit=toolkit,
        cubin=cubin,
        ptx=ptx.decode(),
        log=text,
        functions=parse_log(text),
        seconds=time.perf_counter() - start,
        cached=found is not None,
    )


def parse_log(log: str) -> tuple[FunctionUse, ...]:
    """What ptxas said of each function, kernels first named by "Compiling entry function"."""
    kernels = set(_ENTRY.findall(log))
    found: dict[str, FunctionUse] = {}
    name = ""
    for line in log.splitlines():
        if match := _PROPERTIES.search(line):
            name = match[1]
            found[name] = FunctionUse(name, name in kernels)
        elif match := _SPILLS.search(line):
            stack, stores, loads = map(int, match.groups())
            found[name] = replace(
                found[name], stack_bytes=stack, spill_store_bytes=stores, spill_load_bytes=loads
            )
        elif match := _REGISTERS.search(line):
            shared = _SHARED.search(line)
            found[name] = replace(
                found[name],
                registers=int(match[1]),
                static_smem_bytes=int(shared[1]) if shared else 0,
            )
    return tuple(found.values())


def _compile(
    nvrtc: Any, source: str, name: str, arch: str, options: Sequence[str]
) -> tuple[bytes, bytes, bytes]:
    """PTX, log and cubin."""
    program = call(nvrtc.nvrtcCreateProgram, source.encode(), name.encode(), 0, [], [])
    try:
        flags = [f"--gpu-architecture={arch}", "--ptxas-options=-v", NO_CACHE, *options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [f.encode() for f in flags])
        log = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        if int(status) and b"--gpu-architecture" in log:
            known = {f"sm_{number}" for number in call(nvrtc.nvrtcGetSupportedArchs)}
            raise UnknownName(
                "architecture", arch, known | {f"{each}a" for each in known & ARCH_SPECIFIC}
            )
        if int(status):
            raise CompileFailed(
                f"{name} does not compile for {arch} ({status.name})\n{log.decode(errors='replace')}",
                given=name,
            )
        if not call(nvrtc.nvrtcGetCUBINSize, program):
            raise CompileFailed(
                f"{arch} is a virtual architecture, which gives no cubin; name a real one, like "
                f"{arch.replace('compute_', 'sm_')}",
                given=arch,
                nearest=arch.replace("compute_", "sm_"),
            )
        ptx = _read(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
        cubin = b" " * call(nvrtc.nvrtcGetCUBINSize, program)
        call(nvrtc.nvrtcGetCUBIN, program, cubin)
        return ptx, log, cubin
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _read(size: Any, get: Any, program: Any) -> bytes:
    """A text of NVRTC's, without its closing zero byte."""
    text: bytes = b" " * call(size, program)
    call(get, program, text)
    return text.rstrip(b"\0 \n")


def cache_dir() -> Path:
    """Where compiled kernels are kept: $XDG_CACHE_HOME/tilewright/nvrtc, or the same in ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "tilewright" / "nvrtc"


def cache_key(source: str, name: str, arch: str, options: Sequence[str], toolkit: str) -> str:
    """SHA-256 of everything that decides the result."""
    parts = json.dumps([source, name, arch, list(options), toolkit])
    return hashlib.sha256(parts.encode()).hexdigest()


def is_self_contained(source: str, options: Sequence[str]) -> bool:
    """Whether source and options are all that the compiler reads."""
    return not _READS_FILES.search(source) and not any("include" in o for o in options)


def _read_cache(folder: Path) -> tuple[bytes, bytes, bytes] | None:
    try:
        ptx, log, cubin = ((folder / file).read_bytes() for file in _CACHED_FILES)
    except OSError:
        return None
    return ptx, log, cubin


def _write_cache(folder: Path, contents: Sequence[bytes]) -> None:
    """Write beside, then rename: another process sees all three files or none. Best effort."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as scratch:
            fresh = Path(scratch) / "entry"
            fresh.mkdir()
            for file, content in zip(_CACHED_FILES, contents, strict=True):
                (fresh / file).write_bytes(content)
            fresh.rename(folder)
    except OSError:
        return  # no writable cache, or another process was first: the result stands without it
