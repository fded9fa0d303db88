"""The command line: parse, call, print.

Exit codes: 0 done; 1 a refuted validation; 2 misuse or bad input. Errors go to standard error and name
what was given, what is allowed and the nearest thing that works.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright import __version__
from tilewright.errors import BadInput, TilewrightError

if TYPE_CHECKING:
    from tilewright.device import Device
    from tilewright.draft import Options
    from tilewright.problem import Workload

app = typer.Typer(
    name="tilewright",
    help="Plan cluster-persistent GPU kernels: an auditable decision from a workload and a device.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
plan_app = typer.Typer(
    help="Decide a workload: cluster or not, which tile map, which scheduler, what it needs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(plan_app, name="plan")

DeviceOption = Annotated[
    str, typer.Option("--device", "-d", help="Name of a device, or a TOML file of your own.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
MarkdownOption = Annotated[bool, typer.Option("--markdown", help="Print Markdown.")]
ClusterOption = Annotated[
    str | None, typer.Option("--cluster", help="Only this cluster shape: x,y,z in CTAs.")
]
CtaGroupOption = Annotated[int | None, typer.Option(help="Only this cta_group: 1 or 2.")]
TileOption = Annotated[
    str | None, typer.Option("--tile", help="Only this tile of one CTA (not of the pair): m,n.")
]
BusyOption = Annotated[int, typer.Option(help="SMs that foreign kernels hold.")]
BudgetOption = Annotated[int | None, typer.Option(help="SMs that this kernel may use.")]
SwapOption = Annotated[
    bool, typer.Option("--swap/--no-swap", help="Allow a kernel of the transposed product.")
]
DepthOption = Annotated[int, typer.Option(help="CLC requests that a worker keeps ahead.")]
VerifyOption = Annotated[
    bool, typer.Option("--verify", help="Check the plan instead of printing it; exit 1 if refuted.")
]
CostsOption = Annotated[
    Path | None, typer.Option("--costs", help="Write the tile costs to this CSV.")
]


def _triple(name: str, text: str | None) -> tuple[int, int, int] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not 1 <= len(parts) <= 3 or not all(p.strip().isdigit() and int(p) > 0 for p in parts):
        raise BadInput(
            f'{name} "{text}" is not one to three positive numbers like 2,1,1',
            given=text,
            allowed="x,y,z",
        )
    x, y, z = ([int(p) for p in parts] + [1, 1])[:3]
    return x, y, z


def _options(
    cluster: str | None,
    cta_group: int | None,
    tile: str | None,
    busy_sms: int,
    sm_budget: int | None,
    swap: bool,
    clc_depth: int,
) -> Options:
    from tilewright.candidates import Busy
    from tilewright.draft import Options

    shape = _triple("--tile", tile)
    return Options(
        cluster_shape=_triple("--cluster", cluster),
        cta_group=cta_group,
        tile=None if shape is None else shape[:2],
        busy=Busy(busy_sms, sm_budget),
        allow_swap=swap,
        clc_depth=clc_depth,
    )


def _plan(
    problem: Workload,
    device: str,
    options: Options,
    as_json: bool,
    markdown: bool,
    verify: bool,
    costs: Path | None,
) -> None:
    """What every `plan` command does with its problem."""
    from tilewright.device import load
    from tilewright.plan import draft_of, make_plan

    chip = load(device)
    if verify:
        _verify(problem, chip, options, as_json)
        return
    if costs is not None:
        cycles = draft_of(problem, chip, options).work.persistent_cycles
        _write(costs, "\n".join(["cost_cycles", *(str(round(c)) for c in cycles)]) + "\n")
        typer.echo(f"{len(cycles)} tile costs written to {costs}")
        return
    plan = make_plan(problem, chip, options)
    if as_json:
        typer.echo(plan.model_dump_json(indent=2))
        return
    from tilewright.report.document import plan_document

    if markdown:
        from tilewright.report.markdown import render_markdown

        typer.echo(render_markdown(plan_document(plan)), nl=False)
    else:
        _print(plan_document(plan))


def _print(blocks: Any) -> None:
    from rich.console import Console

    from tilewright.report.text import print_document

    print_document(blocks, Console(soft_wrap=False, highlight=False))


def _verify(problem: Workload, device: Device, options: Options, as_json: bool) -> None:
    from tilewright.plan import draft_of
    from tilewright.verify import verify

    results = verify(draft_of(problem, device, options), problem)
    if as_json:
        typer.echo(
            json.dumps([{"check": r.check, "passed": r.passed, "seen": r.seen} for r in results])
        )
    else:
        for r in results:
            typer.echo(f"{'ok  ' if r.passed else 'FAIL'} {r.check}: {r.seen}")
    if not all(r.passed for r in results):
        raise typer.Exit(1)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}", given=path) from None


@plan_app.command("gemm")
def plan_gemm(
    m: Annotated[int, typer.Option(help="Rows of A and D.")],
    n: Annotated[int, typer.Option(help="Rows of B, columns of D.")],
    k: Annotated[int, typer.Option(help="Columns of A and B.")],
    device: DeviceOption,
    dtype: Annotated[
        str, typer.Option(help="bf16, fp16, tf32, fp8, fp8_e5m2, mxfp8, nvfp4, int8.")
    ] = "bf16",
    out_dtype: Annotated[
        str | None, typer.Option(help="bf16 (int32 for int8) unless given.")
    ] = None,
    batch: int = 1,
    layout_a: Annotated[str, typer.Option(help="Contiguous axis of A: k or m.")] = "k",
    layout_b: Annotated[str, typer.Option(help="Contiguous axis of B: k or n.")] = "k",
    epilogue_bytes: Annotated[
        float, typer.Option(help="Bytes an output element that the epilogue reads.")
    ] = 0.0,
    cluster: ClusterOption = None,
    cta_group: CtaGroupOption = None,
    tile: TileOption = None,
    busy_sms: BusyOption = 0,
    sm_budget: BudgetOption = None,
    swap: SwapOption = True,
    clc_depth: DepthOption = 1,
    as_json: JsonOption = False,
    markdown: MarkdownOption = False,
    verify: VerifyOption = False,
    costs: CostsOption = None,
) -> None:
    """A dense or batched GEMM: D[m, n] = A[m, k] . B[n, k]."""
    from tilewright.problem import Gemm

    problem = Gemm.of(
        {
            "m": m,
            "n": n,
            "k": k,
            "batch": batch,
            "layout_a": layout_a,
            "layout_b": layout_b,
            "dtype": dtype,
            "epilogue_bytes": epilogue_bytes,
            **({} if out_dtype is None else {"out_dtype": out_dtype}),
        }
    )
    options = _options(cluster, cta_group, tile, busy_sms, sm_budget, swap, clc_depth)
    _plan(problem, device, options, as_json, markdown, verify, costs)


@plan_app.command("grouped-gemm")
def plan_grouped(
    counts: Annotated[
        str, typer.Option(help="Ragged extents: 1528,3516,508 or a CSV or JSON file of one list.")
    ],
    n: Annotated[int, typer.Option(help="Columns of every output.")],
    device: DeviceOption,
    k: Annotated[int | None, typer.Option(help="Columns of A and B, for --grouped m.")] = None,
    m: Annotated[int | None, typer.Option(help="Rows of every output, for --grouped k.")] = None,
    grouped: Annotated[str, typer.Option(help="Ragged axis: m or k.")] = "m",
    dtype: str = "bf16",
    out_dtype: str | None = None,
    layout_a: str = "k",
    layout_b: str = "k",
    epilogue_bytes: float = 0.0,
    cluster: ClusterOption = None,
    cta_group: CtaGroupOption = None,
    tile: TileOption = None,
    busy_sms: BusyOption = 0,
    sm_budget: BudgetOption = None,
    swap: SwapOption = True,
    clc_depth: DepthOption = 1,
    as_json: JsonOption = False,
    markdown: MarkdownOption = False,
    verify: VerifyOption = False,
    costs: CostsOption = None,
) -> None:
    """A grouped GEMM (MoE): one GEMM a group, ragged along M or along K."""
    from tilewright.problem import GroupedGemm, parse_integers

    problem = GroupedGemm.of(
        {
            "counts": parse_integers("counts", counts),
            "grouped": grouped,
            "m": m,
            "n": n,
            "k": k,
            "dtype": dtype,
            "layout_a": layout_a,
            "layout_b": layout_b,
            "epilogue_bytes": epilogue_bytes,
            **({} if out_dtype is None else {"out_dtype": out_dtype}),
        }
    )
    options = _options(cluster, cta_group, tile, busy_sms, sm_budget, swap, clc_depth)
    _plan(problem, device, options, as_json, markdown, verify, costs)


@plan_app.command("attention")
def plan_attention(
    seqlens: Annotated[
        str, typer.Option(help="Query lengths: 100,200,4096 or a CSV or JSON file of one list.")
    ],
    heads: Annotated[int, typer.Option(help="Query heads.")],
    head_dim: Annotated[int, typer.Option(help="64 to 256.")],
    device: DeviceOption,
    kv_heads: Annotated[int | None, typer.Option(help="As many as heads unless given.")] = None,
    seqlens_k: Annotated[
        str | None, typer.Option(help="Key lengths, where they differ from --seqlens.")
    ] = None,
    causal: Annotated[bool, typer.Option("--causal")] = False,
    window: Annotated[int | None, typer.Option(help="Keys that a query sees back.")] = None,
    dtype: str = "bf16",
    cluster: ClusterOption = None,
    busy_sms: BusyOption = 0,
    sm_budget: BudgetOption = None,
    clc_depth: DepthOption = 1,
    as_json: JsonOption = False,
    markdown: MarkdownOption = False,
    verify: VerifyOption = False,
    costs: CostsOption = None,
) -> None:
    """Attention forward over sequences of their own lengths."""
    from tilewright.problem import Attention, parse_dtype, parse_integers

    problem = Attention.of(
        {
            "seqlens": parse_integers("seqlens", seqlens),
            "seqlens_k": None if seqlens_k is None else parse_integers("seqlens_k", seqlens_k),
            "heads": heads,
            "kv_heads": heads if kv_heads is None else kv_heads,
            "head_dim": head_dim,
            "causal": causal,
            "window": window,
            "dtype": parse_dtype(dtype),
        }
    )
    options = _options(cluster, None, None, busy_sms, sm_budget, True, clc_depth)
    _plan(problem, device, options, as_json, markdown, verify, costs)


@plan_app.command("tiles")
def plan_tiles(
    file: Annotated[
        str, typer.Argument(help="CSV with one column cost_cycles or cost_us, or 1024x91669.")
    ],
    device: DeviceOption,
    cluster: Annotated[str, typer.Option("--cluster", help="x,y,z in CTAs.")] = "1,1,1",
    threads: int = 256,
    smem_bytes: int = 0,
    regs: int = 64,
    busy_sms: BusyOption = 0,
    sm_budget: BudgetOption = None,
    clc_depth: DepthOption = 1,
    as_json: JsonOption = False,
    markdown: MarkdownOption = False,
    verify: VerifyOption = False,
    costs: CostsOption = None,
) -> None:
    """A list of tile costs: which scheduler, what residency, what tail."""
    from tilewright.problem import TileList, parse_costs

    problem = TileList.of(
        {
            **parse_costs(file),
            "cluster_shape": _triple("--cluster", cluster),
            "threads": threads,
            "smem_bytes": smem_bytes,
            "regs": regs,
        }
    )
    options = _options(None, None, None, busy_sms, sm_budget, True, clc_depth)
    _plan(problem, device, options, as_json, markdown, verify, costs)


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
    as_json: JsonOption = False,
) -> None:
    """CTAs an SM and clusters resident on the chip, with the limiting resource."""
    from tilewright.device import load
    from tilewright.report.tables import residency_document, residency_rows
    from tilewright.residency import CtaResources, check_grid_barrier

    chip = load(device)
    cta = CtaResources(threads, smem_bytes, regs, tmem_columns)
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
        _print(residency_document(found, cta, chip))


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
        str, typer.Argument(help="CSV with one column cost_cycles or cost_us, or 1024x91669.")
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
    as_json: JsonOption = False,
) -> None:
    """Tail, fairness and makespan of tile costs under each scheduler."""
    from tilewright.launch import Launch, simulate_launch
    from tilewright.problem import parse_costs
    from tilewright.report.tables import simulation_document

    launch = Launch(
        cluster_shape=_triple("--cluster", cluster) or (1, 1, 1),
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
    found = simulate_launch(parse_costs(costs), device, launch, scheduler=scheduler, order=order)
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2))
    else:
        _print(simulation_document(found))


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
            _print(devices_document(chips))
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
        _print(device_document(chip))


@app.command()
def schema() -> None:
    """The JSON schema of `plan --json`."""
    from tilewright.plan_model import Plan

    typer.echo(json.dumps(Plan.model_json_schema(), indent=2))


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
