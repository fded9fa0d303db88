"""The commands that need the `cuda` extra: compile and probe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from tilewright.cli_options import JsonOption, print_blocks
from tilewright.errors import BadInput

run_app = typer.Typer(rich_markup_mode=None)


@run_app.command()
def probe(
    save: Annotated[
        Path | None, typer.Option(help="Write a device file (.toml) for --device.")
    ] = None,
    gpu: Annotated[int, typer.Option(help="Which of the GPUs that this process sees.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Read the GPU at hand: limits, clusters resident, GPC sizes, latencies, bandwidths."""
    from tilewright.run.device_file import check_place, save_device_file
    from tilewright.run.document import probe_document
    from tilewright.run.probe import probe_gpu

    if save is not None:
        check_place(save)
    record = probe_gpu(gpu)
    if save is not None:
        save_device_file(record, save)
    if as_json:
        typer.echo(record.to_json())
        return
    print_blocks(probe_document(record))
    if save is not None:
        typer.echo(f"Written: {save}. Plan for this unit with --device {save}")


@run_app.command(name="compile")
def compile_file(
    file: Annotated[Path, typer.Argument(help="CUDA C++ source, or a folder of tilewright emit.")],
    arch: Annotated[
        list[str] | None,
        typer.Option(
            help="Real architecture, like sm_90a; repeatable. An emitted folder's own unless given."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for FILE.ARCH.cubin and FILE.ARCH.ptx; an emitted folder takes its cubins itself."
        ),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="NVRTC option, like --maxrregcount=64; repeatable.")
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Compile again.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compile with NVRTC, no GPU needed: registers, spills and shared memory of each kernel.

    The kernel of an emitted folder must not spill: exit code 1.
    """
    from dataclasses import asdict

    from tilewright.run.compiler import compile_source
    from tilewright.run.document import compile_document

    emitted = _read_emitted(file) if file.is_dir() else None
    if emitted is not None:
        arch, out, file = arch or emitted.architectures, out or file, file / "kernel.cu"
    if not arch:
        raise BadInput(
            f"{file}: name what to compile for with --arch", allowed="sm_80, sm_90a, sm_100a, …"
        )
    source = _read(file)
    results = [
        compile_source(source, str(file), each, option or [], use_cache=not no_cache)
        for each in dict.fromkeys(arch)
    ]
    written: list[str] = []
    if out is not None:
        for result in results:
            written += _write(out, f"{file.stem}.{result.arch}", result.cubin, result.ptx)
    if as_json:
        rows = [
            {
                "arch": r.arch,
                "toolkit": r.toolkit,
                "seconds": round(r.seconds, 3),
                "cached": r.cached,
                "functions": [asdict(use) for use in r.functions],
            }
            for r in results
        ]
        typer.echo(json.dumps({"file": str(file), "results": rows, "written": written}, indent=2))
    else:
        print_blocks(compile_document(str(file), results, written))
        for line in emitted.smem if emitted is not None else ():
            typer.echo(line)
    spilled = {r.arch for r in results for use in r.functions if use.spill_store_bytes}
    if emitted is not None and spilled:
        typer.echo(f"spills: {', '.join(sorted(spilled))}", err=True)
        raise typer.Exit(1)


class _EmittedFolder(NamedTuple):
    """What `compile` reads of launch.json: targets, and the shared memory that a launch asks for."""

    architectures: list[str]
    smem: list[str]


def _read_emitted(folder: Path) -> _EmittedFolder:
    try:
        paths = json.loads((folder / "launch.json").read_text(encoding="utf-8"))["paths"]
        return _EmittedFolder(
            [
                f"sm_{major}{minor}{path['arch_suffix']}"
                for path in paths
                for major, minor in path["capabilities"]
            ],
            [
                f"{path['name']}: {path['smem_bytes']} bytes of dynamic shared memory a CTA, "
                f"{path['threads']} threads"
                for path in paths
            ],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{folder} is not a folder of tilewright emit: launch.json {error}", given=folder
        ) from None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file} is not a readable source: {error}", given=file) from None


def _write(folder: Path, stem: str, cubin: bytes, ptx: str) -> list[str]:
    """Write both forms and name them."""
    files = {folder / f"{stem}.cubin": cubin, folder / f"{stem}.ptx": ptx.encode()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in files.items():
            path.write_bytes(content)
    except OSError as error:
        raise BadInput(
            f"--out {folder} cannot be written: {error.strerror}", given=folder
        ) from None
    return [str(path) for path in files]
