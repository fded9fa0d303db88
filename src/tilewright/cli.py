"""The command line: parse, call, print.

Exit codes: 0 done; 1 findings or a refuted validation; 2 misuse or bad input. Errors go to standard error and name
what was given, what is allowed and the nearest thing that works.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright import __version__
from tilewright.cli_agent import mcp, skill_app
from tilewright.cli_audit import audit
from tilewright.cli_bench import bench_app, calibrate, check_app
from tilewright.cli_check import check
from tilewright.cli_emit import emit_app
from tilewright.cli_gate import gate
from tilewright.cli_options import (
    BudgetOption,
    BusyOption,
    DepthOption,
    DeviceOption,
    HtmlOption,
    JsonOption,
    TraceOption,
    parse_triple,
    print_blocks,
    print_written,
    write_text,
)
from tilewright.cli_plan import plan_app
from tilewright.cli_run import run_app
from tilewright.cli_sweep import sweep
from tilewright.errors import BadInput, TilewrightError, UnknownName

if TYPE_CHECKING:
    from pydantic import BaseModel

app = typer.Typer(
    name="tilewright",
    help="Plan and emit cluster-persistent GPU kernels: an auditable decision from a workload and a device.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(plan_app, name="plan")
app.add_typer(emit_app, name="emit")
app.add_typer(check_app, name="run")
app.add_typer(bench_app, name="bench")
app.command()(calibrate)
app.command()(audit)
app.command()(check)
app.command()(gate)
app.command()(mcp)
app.command()(sweep)
app.add_typer(skill_app, name="skill")
app.add_typer(run_app)  # its commands stand beside the others


@app.command()
def residency(
    device: DeviceOption,
    threads: Annotated[int, typer.Option(help="Threads a CTA.")] = 256,
    smem_bytes: Annotated[int, typer.Option(help="Shared memory a CTA.")] = 0,
    regs: Annotated[int, typer.Option(help="Registers a thread.")] = 32,
    tmem_columns: Annotated[int, typer.Option(help="TMEM columns a CTA.")] = 0,
    clusters: Annotated[str, typer.Option(help="Cluster sizes: 1-16, or 1,2,4.")] = "1-16",
    busy_sms: BusyOption = 0,
    sm_budget: BudgetOption = None,
    nonportable: Annotated[
        bool, typer.Option("--nonportable/--portable", help="The non-portable attribute is set.")
    ] = True,
    grid_barrier: Annotated[
        int | None, typer.Option(help="Refuse unless a barrier over so many clusters can end.")
    ] = None,
    grid: Annotated[
        str | None, typer.Option(help="Grid in CTAs, to check against --preferred and --fallback.")
    ] = None,
    preferred: Annotated[str | None, typer.Option(help="Preferred cluster shape: x,y,z.")] = None,
    fallback: Annotated[str | None, typer.Option(help="Fallback cluster shape: x,y,z.")] = None,
    as_json: JsonOption = False,
) -> None:
    """CTAs an SM and clusters resident on the chip, with the limiting resource."""
    from tilewright.device import load
    from tilewright.report.tables import preferred_document, residency_document, residency_rows
    from tilewright.residency import CtaResources, check_cluster_chain, check_grid_barrier

    chip = load(device)
    cta = CtaResources(threads, smem_bytes, regs, tmem_columns)
    large, small = parse_triple("--preferred", preferred), parse_triple("--fallback", fallback)
    if large is not None and small is not None:
        check_cluster_chain(parse_triple("--grid", grid) or large, large, small)
        print_blocks(preferred_document(cta, large, small, chip))
        return
    found = residency_rows(
        cta, _sizes(clusters), chip, busy_sms=busy_sms, sm_budget=sm_budget, nonportable=nonportable
    )
    if grid_barrier is not None:
        for row in found:
            check_grid_barrier(grid_barrier, row)
    if as_json:
        from dataclasses import asdict

        typer.echo(json.dumps([asdict(row) for row in found], indent=2))
    else:
        print_blocks(residency_document(found, cta, chip))


@app.command()
def topology(
    counts: Annotated[
        str,
        typer.Argument(help="Resident clusters by size, as the driver reports: 1:132,2:66,4:30."),
    ],
    slots: Annotated[
        int, typer.Option(help="CTAs an SM of the kernel that was asked about; 8 for a tiny one.")
    ] = 1,
    gpc_sms_max: Annotated[int, typer.Option(help="SMs of the largest possible GPC.")] = 20,
) -> None:
    """GPC sizes of a unit, recovered from cudaOccupancyMaxActiveClusters at several cluster sizes."""
    from tilewright.report.tables import topology_document
    from tilewright.topology import recover_topology

    resident: dict[int, int] = {}
    for pair in counts.split(","):
        size, _, clusters = pair.partition(":")
        if not (size.strip().isdigit() and clusters.strip().isdigit()):
            raise BadInput(f'"{pair}" is not of the form size:clusters, like 4:30', given=pair)
        resident[int(size)] = int(clusters)
    found = recover_topology(resident, slots_per_sm=slots, gpc_sms_max=gpc_sms_max)
    if not found:
        raise BadInput(
            f"no split into GPCs of at most {gpc_sms_max} SMs gives {counts} at {slots} CTAs an SM",
            given=counts,
        )
    print_blocks(topology_document(found))


def _sizes(text: str) -> list[int]:
    sizes: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.strip().isdigit() or (last and not last.strip().isdigit()):
            raise BadInput(
                f'--clusters "{text}" is not a range like 1-16 or a list like 1,2,4', given=text
            )
        sizes += range(int(first), int(last or first) + 1)
    if not sizes:
        raise BadInput(f'--clusters "{text}" names no size', given=text)
    return sizes


@app.command()
def simulate(
    costs: Annotated[
        str,
        typer.Argument(help="CSV with one column cost_cycles or cost_us, or 594x20000,30x90000."),
    ],
    device: Annotated[
        str | None, typer.Option("--device", "-d", help="Device or TOML file.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Slots of the pure model, instead of a device.")
    ] = None,
    cluster: Annotated[str, typer.Option("--cluster", help="x,y,z in CTAs.")] = "1,1,1",
    threads: int = 256,
    smem_bytes: int = 0,
    regs: int = 32,
    tmem_columns: int = 0,
    prologue_cycles: Annotated[
        int, typer.Option(help="Spent once by every CTA before its first tile.")
    ] = 0,
    scheduler: Annotated[str, typer.Option(help="A scheduler, or all.")] = "all",
    order: Annotated[str, typer.Option(help="given or longest-first.")] = "given",
    busy_sms: BusyOption = 0,
    busy_us: Annotated[
        float | None, typer.Option(help="How long they are held; for good unless given.")
    ] = None,
    sms: Annotated[int | None, typer.Option("--sms", help="SMs that this kernel may use.")] = None,
    clc_depth: DepthOption = 1,
    html: HtmlOption = None,
    trace: TraceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tail, fairness and makespan of tile costs under each scheduler."""
    from tilewright.device import load
    from tilewright.launch import Launch, simulate_launch
    from tilewright.lists import parse_costs
    from tilewright.report.tables import simulation_document

    launch = Launch(
        cluster_shape=parse_triple("--cluster", cluster) or (1, 1, 1),
        threads=threads,
        smem_bytes=smem_bytes,
        regs=regs,
        tmem_columns=tmem_columns,
        prologue_cycles=prologue_cycles,
        busy_sms=busy_sms,
        busy_us=busy_us,
        sm_budget=sms,
        workers=workers,
        clc_depth=clc_depth,
    )
    chip = None if device is None else load(device)
    drawn = html is not None or trace is not None
    found = simulate_launch(
        parse_costs(costs), chip, launch, scheduler=scheduler, order=order, record=drawn
    )
    if html is not None:
        from tilewright.report.simulation_page import render_simulation_page

        write_text(html, render_simulation_page(found))
    if trace is not None:
        from tilewright.report.trace import render_trace

        write_text(trace, render_trace(found.timelines))
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2))
        return
    print_blocks(simulation_document(found))
    print_written(html, trace)


@app.command()
def devices(
    name: Annotated[
        str | None, typer.Argument(help="A device, or a TOML file of your own.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """The known devices, or every value of one with its kind and source."""
    from tilewright.device import known_devices, load
    from tilewright.report.tables import device_document, devices_document

    if name is None:
        chips = [load(known) for known in known_devices()]
        if as_json:
            typer.echo(json.dumps([chip.name for chip in chips]))
        else:
            print_blocks(devices_document(chips))
        return
    chip = load(name)
    if as_json:
        facts = {
            fact.name: {
                "value": fact.value,
                "unit": fact.unit,
                "kind": fact.kind,
                "source": fact.source,
                "plausible": fact.plausible,
                "note": fact.note,
            }
            for fact in chip.facts.values()
        }
        typer.echo(
            json.dumps({"name": chip.name, "product": chip.product, "facts": facts}, indent=2)
        )
    else:
        print_blocks(device_document(chip))


@app.command()
def schema(
    of: Annotated[str, typer.Argument(help="plan or audit: whose --json.")] = "plan",
) -> None:
    """The JSON schema of `plan --json` or `audit --json`."""
    from tilewright.audit.json_model import AuditReport
    from tilewright.plan_model import Plan

    models: dict[str, type[BaseModel]] = {"plan": Plan, "audit": AuditReport}
    if of not in models:
        raise UnknownName("output", of, models)
    typer.echo(json.dumps(models[of].model_json_schema(), indent=2))


def _version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; known errors become exit code 2 here and nowhere else."""
    try:
        app()
    except TilewrightError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
