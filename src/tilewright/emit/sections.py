"""kernel.cu: one file with a section a path; the target that it is compiled for picks one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilewright.emit.configs import AbsentPath, AnyPath

RULE = "// " + "=" * 100


def render_kernel(title: str, paths: Sequence[AnyPath], absent: Sequence[AbsentPath]) -> str:
    """The text of kernel.cu."""
    lines = [f"// {title}", f"// Emitted by Tilewright {__version__}. Sections:", "//"]
    lines += [
        f"//   {path.kind.name:<10} {', '.join(architectures(path)):<18} {path.what}"
        for path in paths
    ]
    lines += [f"//   {name:<10} none: {why}" for name, why in absent]
    lines.append("//")
    for index, path in enumerate(paths):
        lines += ["", RULE, f"// {path.kind.name}: {path.kernel}", RULE]
        lines.append(_guard(path, first=index == 0))
        lines.append(path.source())
    if paths[-1].kind.guard:
        lines += ["#elif defined(__CUDA_ARCH__)", f'#error "{_no_section(paths)}"']
    if any(path.kind.guard for path in paths):
        lines.append("#endif")
    return "\n".join(lines) + "\n"


def architectures(path: AnyPath) -> list[str]:
    """What the section is compiled for; "or later" where newer ones do as well."""
    names = [f"sm_{major}{minor}{path.kind.arch_suffix}" for major, minor in path.capabilities]
    return [f"{names[0]} or later"] if path.kind.or_later else names


def _guard(path: AnyPath, *, first: bool) -> str:
    if path.kind.guard:
        return f"#{'if' if first else 'elif'} {path.kind.guard}"
    return "" if first else "#else"


def _no_section(paths: Sequence[AnyPath]) -> str:
    known = [name for path in paths for name in architectures(path)]
    return f"no section of this file is for this architecture; compile for {', '.join(known)}"
