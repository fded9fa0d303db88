"""What runs kernels on the GPU at hand: `run` checks a plan's, `bench` times its options, `calibrate` fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli_options import (
    DeviceOption,
    JsonOption,
    TraceOption,
    print_blocks,
    print_written,
    write_text,
)
from tilewright.cli_plan import READERS, Asked, add_command

GpuOption = Annotated[int, typer.Option("--gpu", help="Which of the GPUs that this process sees.")]

check_app = typer.Typer(
    help="Compile a plan's kernel for the GPU at hand and compare its output with a float64 reference.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
bench_app = typer.Typer(
    help="Time a plan's options side by side on the GPU at hand, and a library where PyTorch is there.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _check(
    asked: Asked, gpu: GpuOption = 0, trace: TraceOption = None, as_json: JsonOption = False
) -> None:
    from dataclasses import asdict

    from tilewright.device import load
    from tilewright.run.bench import check_problem_on
    from tilewright.run.document import check_document
    from tilewright.run.gpu import Gpu

    with Gpu(gpu) as unit:
        chip = load(asked.device)
        kernel, checked = check_problem_on(unit, asked.problem, chip, asked.options)
        name = unit.name
        if trace is not None:
            from tilewright.report.trace import render_trace
            from tilewright.run.traced import trace_problem_on

            found = trace_problem_on(unit, asked.problem, chip, asked.options)
            write_text(trace, render_trace(found))
    if as_json:
        typer.echo(
            json.dumps({"gpu": name, "kernel": kernel, "passed": checked.passed, **asdict(checked)})
        )
    else:
        print_blocks(check_document(name, kernel, checked))
        print_written(trace)
    if not checked.passed:
        raise typer.Exit(1)


def _bench(
    asked: Asked,
    gpu: GpuOption = 0,
    candidates: Annotated[int, typer.Option(min=1, help="Options to measure.")] = 6,
    rounds: Annotated[int, typer.Option(min=3, help="Launches of each.")] = 15,
    as_json: JsonOption = False,
) -> None:
    from tilewright.device import load
    from tilewright.run.bench import bench_problem
    from tilewright.run.document import bench_document
    from tilewright.run.gpu import Gpu

    with Gpu(gpu) as unit:
        record = bench_problem(
            unit,
            asked.problem,
            load(asked.device),
            asked.options,
            candidates=candidates,
            rounds=rounds,
        )
    if as_json:
        typer.echo(record.to_json())
    else:
        print_blocks(bench_document(record))
    if any((row.worst or 0) > 1 for row in record.rows):
        raise typer.Exit(1)


for _name in ("gemm", "grouped-gemm"):
    add_command(check_app, _name, READERS[_name], _check)
    add_command(bench_app, _name, READERS[_name], _bench)


def calibrate(
    device: DeviceOption,
    save: Annotated[
        Path | None, typer.Option(help="Write a device file (.toml) with the fitted values.")
    ] = None,
    gpu: GpuOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Fit the schedulers' overheads to the GPU at hand: spinning tiles under each of them."""
    from tilewright.device import load
    from tilewright.run.calibrate import calibrate_gpu, render_toml
    from tilewright.run.device_file import check_place, write_device_file
    from tilewright.run.document import calibration_document
    from tilewright.run.gpu import Gpu

    chip = load(device)
    if save is not None:
        check_place(save)
    with Gpu(gpu) as unit:
        record = calibrate_gpu(unit, chip, f"tilewright calibrate --device {device}")
    if save is not None:
        write_device_file(render_toml(record, device), save)
    if as_json:
        typer.echo(record.to_json())
        return
    print_blocks(calibration_document(record))
    if save is not None:
        typer.echo(f"Written: {save}. Plan with it with --device {save}")
