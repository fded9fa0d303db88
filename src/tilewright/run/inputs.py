"""PTX from whatever a user has: .ptx, .cu, a cubin or fatbin with PTX in it, a folder of these, standard input."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tilewright.errors import BadInput
from tilewright.run.bindings import MissingCuda
from tilewright.run.compiler import compile_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

KINDS = (".ptx", ".cu", ".cubin", ".fatbin")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)")
_TOLD = re.compile(r"^(UTC|UGETNEXT|UTMA|HGMMA|QGMMA|SYNCS|UCGABAR|USETMAXREG|ELECT)")


class PtxText(NamedTuple):
    """One PTX text.

    Attributes:
        name: of the file that it came from.
        sources: texts by the names that findings may use.
    """

    name: str
    ptx: str
    sources: dict[str, str]


class SassFacts(NamedTuple):
    """What a cubin without PTX says: how often each instruction of the protocol is there."""

    name: str
    instructions: dict[str, int]


def find_inputs(paths: Iterable[str]) -> list[str]:
    """Files named, and those of the known kinds in folders named; "-" is standard input.

    Raises:
        BadInput: no such file, an unknown kind, a folder without any.
    """
    found: list[str] = []
    for given in paths:
        path = Path(given)
        if given == "-":
            found.append(given)
        elif path.is_dir():
            inside = sorted(str(f) for f in path.rglob("*") if f.suffix in KINDS)
            if not inside:
                raise BadInput(
                    f"{given} holds no {', '.join(KINDS)} file",
                    given=given,
                    allowed=", ".join(KINDS),
                )
            found += inside
        elif path.suffix in KINDS:
            found.append(given)
        else:
            raise BadInput(
                f"{given} is none of {', '.join(KINDS)}, a folder of these, or - for PTX on standard input",
                given=given,
                allowed=", ".join(KINDS),
            )
    return found


def read_input(given: str, arch: str | None, options: Sequence[str] = ()) -> PtxText | SassFacts:
    """One input's PTX, or what its machine code says.

    Args:
        arch: to compile .cu for.
    Raises:
        BadInput, MissingCuda, CompileFailed
    """
    if given == "-":
        text = sys.stdin.read()
        return PtxText("<stdin>", text, {"<stdin>": text})
    path = Path(given)
    if path.suffix in {".cubin", ".fatbin"}:
        return _read_binary(path)
    text = _read(path)
    if path.suffix == ".ptx":
        return PtxText(given, text, {given: text})
    if arch is None:
        raise BadInput(
            f"{given}: name what to compile for with --arch, like sm_100a or sm_90a",
            allowed="sm_90a, sm_100a, …",
            nearest="sm_100a",
        )
    ptx = compile_source(text, given, arch, ["--generate-line-info", *options]).ptx
    name = f"{given}.{arch}.ptx"
    return PtxText(name, ptx, {given: text, name: ptx})


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadInput(f"no file {path}", given=path) from None
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{path} is no text: byte {error.start} is not UTF-8; machine code is read from .cubin and .fatbin",
            given=path,
        ) from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}", given=path) from None


def _read_binary(path: Path) -> PtxText | SassFacts:
    if not path.exists():
        raise BadInput(f"no file {path}", given=path)
    ptx = _tool("cuobjdump", "--dump-ptx", str(path))
    begin = ptx.find(".version")
    if begin >= 0:
        text = ptx[begin:]
        return PtxText(str(path), text, {str(path): text})
    counts: dict[str, int] = {}
    for match in _INSTRUCTION.finditer(_tool("nvdisasm", str(path))):
        if _TOLD.match(match[1]):
            counts[match[1]] = counts.get(match[1], 0) + 1
    return SassFacts(str(path), dict(sorted(counts.items())))


def _tool(name: str, *args: str) -> str:
    """Run one of NVIDIA's binary tools: of the extra's packages, or of the PATH.

    Raises:
        MissingCuda: names the extra.
        BadInput: the tool refuses the file.
    """
    command = _find_tool(name)
    done = subprocess.run([command, *args], capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode and not done.stdout:
        raise BadInput(f"{name} {args[-1]}: {done.stderr.strip()}", given=args[-1])
    return done.stdout


def _find_tool(name: str) -> str:
    for folder in map(Path, sys.path):
        packaged = folder / "nvidia" / "cu13" / "bin" / name
        if packaged.is_file():
            return str(packaged)
    found = shutil.which(name)
    if found is None:
        raise MissingCuda(f"reading machine code needs {name}: pip install 'tilewright[sass]'")
    return found
