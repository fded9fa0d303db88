"""Write a folder that needs nothing of this package: kernel, launchers, test, benchmark, plan.

The folder is made beside its place and renamed into it: it is there whole or not at all.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from tilewright.draft import Options
from tilewright.emit.candidates import find_candidates
from tilewright.emit.configs import Extras, check_problem, find_paths
from tilewright.emit.constants import launch_constants, render_header, render_json
from tilewright.emit.readme import readme_values
from tilewright.emit.sections import render_kernel
from tilewright.errors import BadInput
from tilewright.plan import make_plan
from tilewright.plan_model import Plan
from tilewright.problem import Gemm, GroupedGemm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tilewright.device import Device
    from tilewright.emit.configs import AbsentPath, AnyPath, KernelPath
    from tilewright.problem import Matmul, Workload

COPIED = (
    "launcher.py",
    "paths.py",
    "driver.py",
    "arrays.py",
    "launcher.cpp",
    "driver.h",
    "test_kernel.py",
    "bench.py",
)
"""Files that are the same in every folder: what differs is in launch.json and launch.h."""

MARK = "launch.json"
"""A folder with this file, which names this package, is one of ours and may be replaced with `force`."""


@dataclass(frozen=True)
class Emitted:
    """What was written.

    Attributes:
        files: names in `folder`.
        paths: of the kernel, the plan's own first; absent: those without a kernel, and why.
    """

    folder: Path
    files: tuple[str, ...]
    paths: tuple[AnyPath, ...]
    absent: tuple[AbsentPath, ...]
    plan: Plan


def emit(
    work: Workload | Plan,
    device: Device,
    out: Path | str,
    *,
    options: Options | None = None,
    has_c: bool = False,
    has_bias: bool = False,
    force: bool = False,
) -> Emitted:
    """Write a folder with the kernel of a problem, or of a plan, on a device.

    Args:
        work: a problem, which is planned first, or a plan for `device`.
        options: of the planning; only with a problem.
        has_c, has_bias: the epilogue adds beta * C, a bias a column.
        force: replace what is in `out`.
    Raises:
        Unsupported: no kernel does this; names what exists.
        BadInput: `out` is in the way or cannot be written.
        TilewrightError: of planning.
    """
    folder = Path(out)
    check_place(folder, force=force)
    problem, plan = _planned(work, device, options)
    paths, absent = find_paths(problem, plan, device, Extras(has_c, has_bias))
    files = render_files(problem, plan, paths, absent)
    write_folder(folder, files)
    return Emitted(folder, tuple(sorted(files)), tuple(paths), tuple(absent), plan)


def _planned(work: Workload | Plan, device: Device, options: Options | None) -> tuple[Matmul, Plan]:
    if not isinstance(work, Plan):
        check_problem(work)
        return work, make_plan(work, device, options or Options())  # type: ignore[return-value]
    if work.device["name"] != device.name:
        raise BadInput(
            f"the plan is for {work.device['name']}, not {device.name}",
            given=device.name,
            allowed=str(work.device["name"]),
        )
    return problem_of(work), work


def problem_of(plan: Plan) -> Matmul:
    """The problem that a plan is for.

    Raises:
        BadInput: one that no kernel computes.
    """
    known: dict[str, type[Gemm | GroupedGemm]] = {"gemm": Gemm, "grouped-gemm": GroupedGemm}
    kind = str(plan.problem["kind"])
    if kind not in known:
        raise BadInput(
            f"a plan of {kind} has no kernel; there are {', '.join(known)}",
            given=kind,
            allowed=", ".join(known),
        )
    return known[kind].of(plan.problem)


def render_files(
    problem: Matmul, plan: Plan, paths: list[KernelPath], absent: list[AbsentPath]
) -> dict[str, str]:
    """Every file of the folder by name."""
    title = describe(problem)
    constants = launch_constants(problem, paths, absent, find_candidates(problem, paths[0]))
    return {
        "kernel.cu": render_kernel(title, paths, absent),
        "launch.json": render_json(constants),
        "launch.h": render_header(constants),
        "plan.json": plan.model_dump_json(indent=2) + "\n",
        "README.md": Template(read_template("README.md")).substitute(
            readme_values(title, plan, paths, absent, constants)
        ),
        **{name: read_template(name) for name in COPIED},
    }


def describe(problem: Matmul) -> str:
    """The problem in one line."""
    if isinstance(problem, GroupedGemm):
        free = f"n {problem.n}, " + (
            f"k {problem.k}" if problem.grouped == "m" else f"m {problem.m}"
        )
        what = f"grouped GEMM of {len(problem.counts)} groups along {problem.grouped}, {free}"
    else:
        batch = f", batch {problem.batch}" if problem.batch > 1 else ""
        what = f"GEMM {problem.m}x{problem.n}x{problem.k}{batch}"
    return f"{what}, {problem.dtype} to {problem.out_dtype}"


def read_template(name: str) -> str:
    """A file of templates/."""
    return (resources.files("tilewright.emit") / "templates" / name).read_text(encoding="utf-8")


def check_place(folder: Path, *, force: bool) -> None:
    """Refuse a place where something else lies.

    Raises:
        BadInput
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise BadInput(f"--out {folder} is a file", given=folder, allowed="a folder")
    if not any(folder.iterdir()):
        return
    if not is_ours(folder):
        raise BadInput(
            f"--out {folder} holds files that were not emitted here; name an empty or a new folder",
            given=folder,
        )
    if not force:
        raise BadInput(
            f"--out {folder} was emitted before; --force replaces it",
            given=folder,
            nearest="--force",
        )


def is_ours(folder: Path) -> bool:
    """Whether the folder was written by `emit`."""
    try:
        constants: Any = json.loads((folder / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(constants, dict) and "tilewright" in constants


def write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Write all files or none: into a folder beside, then renamed.

    Raises:
        BadInput: the place cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
            fresh = Path(scratch) / "new"
            fresh.mkdir()
            for name, text in files.items():
                (fresh / name).write_text(text, encoding="utf-8")
            if folder.exists():
                folder.rename(Path(scratch) / "old")
            try:
                fresh.rename(folder)
            except OSError:
                if (Path(scratch) / "old").exists():
                    (Path(scratch) / "old").rename(folder)
                raise
    except OSError as error:
        raise BadInput(
            f"--out {folder} cannot be written: {error.strerror}", given=folder
        ) from None
