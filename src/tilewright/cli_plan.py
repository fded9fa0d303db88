"""The `plan` commands: one a kind of problem.

Each kind has a reader, a function whose parameters are the options that say the problem; `add_command` joins
it to what is done with the problem, here `plan`, in `cli_emit` emit.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tilewright.cli_options import (
    BudgetOption,
    BusyOption,
    ClusterOption,
    CostsOption,
    CtaGroupOption,
    DepthOption,
    DeviceOption,
    HtmlOption,
    JsonOption,
    MarkdownOption,
    PartOption,
    SchedulerOption,
    SwapOption,
    TileOption,
    TraceOption,
    VerifyOption,
    parse_scheduler,
    parse_triple,
    print_blocks,
    print_written,
    write_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilewright.device import Device
    from tilewright.draft import Draft, Options
    from tilewright.plan_model import Plan
    from tilewright.problem import Workload

plan_app = typer.Typer(
    help="Decide a workload: cluster or not, which tile map, which scheduler, what it needs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Asked(NamedTuple):
    """What the options of a command say: the problem, the device's name, what the user fixed."""

    problem: Workload
    device: str
    options: Options


def add_command(
    group: typer.Typer, name: str, read: Callable[..., Asked], finish: Callable[..., object]
) -> None:
    """A command with the options of both: `read` makes what is asked, `finish` does it."""
    readers = inspect.signature(read, eval_str=True).parameters
    finishers = dict(inspect.signature(finish, eval_str=True).parameters)
    finishers.pop("asked")

    def command(**given: object) -> object:
        asked = read(**{option: given[option] for option in readers})
        return finish(asked, **{option: given[option] for option in finishers})

    options = [
        option.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for option in (*readers.values(), *finishers.values())
    ]
    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    command.__doc__ = read.__doc__
    group.command(name)(command)


def _options(
    cluster: str | None,
    cta_group: int | None,
    tile: str | None,
    busy_sms: int,
    sm_budget: int | None,
    swap: bool,
    scheduler: str | None,
    clc_depth: int,
) -> Options:
    from tilewright.candidates import Busy
    from tilewright.draft import Options

    shape = parse_triple("--tile", tile)
    return Options(
        cluster_shape=parse_triple("--cluster", cluster),
        cta_group=cta_group,
        tile=None if shape is None else shape[:2],
        busy=Busy(busy_sms, sm_budget),
        allow_swap=swap,
        scheduler=parse_scheduler(scheduler),
        clc_depth=clc_depth,
    )


def _plan(
    asked: Asked,
    as_json: JsonOption = False,
    markdown: MarkdownOption = False,
    html: HtmlOption = None,
    trace: TraceOption = None,
    verify: VerifyOption = False,
    costs: CostsOption = None,
    part: PartOption = None,
) -> None:
    """What every `plan` command does with its problem."""
    from tilewright.device import load
    from tilewright.plan import draft_of, plan_of

    problem, device, options = asked
    chip = load(device)
    if verify:
        _verify(problem, chip, options, as_json)
        return
    if costs is not None:
        cycles = draft_of(problem, chip, options).work.persistent_cycles
        write_text(costs, "\n".join(["cost_cycles", *(str(round(c)) for c in cycles)]) + "\n")
        typer.echo(f"{len(cycles)} tile costs written to {costs}")
        return
    draft = draft_of(problem, chip, options)
    plan = plan_of(draft, problem, chip)
    if html is not None or trace is not None:
        _write_views(draft, plan, chip, html, trace)
    found = None if part is None else plan.part(part)
    if as_json:
        text = plan.model_dump_json(indent=2) if part is None else json.dumps(found, indent=2)
        typer.echo(text)
        return
    if html is not None or trace is not None:
        typer.echo(plan.conclusion.summary)
        print_written(html, trace)
        return
    from tilewright.report.document import part_document, plan_document

    document = plan_document(plan) if part is None else part_document(part, found)
    if markdown:
        from tilewright.report.markdown import render_markdown

        typer.echo(render_markdown(document), nl=False)
    else:
        print_blocks(document)


def _write_views(
    draft: Draft, plan: Plan, device: Device, html: Path | None, trace: Path | None
) -> None:
    from tilewright.schedule import schedulers_for

    timelines = draft.timelines(schedulers_for(device), device)
    if html is not None:
        from tilewright.report.plan_page import render_plan_page

        write_text(html, render_plan_page(plan, timelines, draft.tiles))
    if trace is not None:
        from tilewright.report.trace import render_trace

        write_text(trace, render_trace(timelines))


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


def read_gemm(
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
    scheduler: SchedulerOption = None,
    clc_depth: DepthOption = 1,
) -> Asked:
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
    options = _options(cluster, cta_group, tile, busy_sms, sm_budget, swap, scheduler, clc_depth)
    return Asked(problem, device, options)


def read_grouped(
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
    scheduler: SchedulerOption = None,
    clc_depth: DepthOption = 1,
) -> Asked:
    """A grouped GEMM (MoE): one GEMM a group, ragged along M or along K."""
    from tilewright.lists import parse_integers
    from tilewright.problem import GroupedGemm

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
    options = _options(cluster, cta_group, tile, busy_sms, sm_budget, swap, scheduler, clc_depth)
    return Asked(problem, device, options)


def read_attention(
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
    scheduler: SchedulerOption = None,
    clc_depth: DepthOption = 1,
) -> Asked:
    """Attention forward over sequences of their own lengths."""
    from tilewright.lists import parse_integers
    from tilewright.problem import Attention, parse_dtype

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
    options = _options(cluster, None, None, busy_sms, sm_budget, True, scheduler, clc_depth)
    return Asked(problem, device, options)


def read_tiles(
    file: Annotated[
        str,
        typer.Argument(help="CSV with one column cost_cycles or cost_us, or 594x20000,30x90000."),
    ],
    device: DeviceOption,
    cluster: Annotated[str, typer.Option("--cluster", help="x,y,z in CTAs.")] = "1,1,1",
    threads: int = 256,
    smem_bytes: int = 0,
    regs: int = 64,
    busy_sms: BusyOption = 0,
    sm_budget: BudgetOption = None,
    scheduler: SchedulerOption = None,
    clc_depth: DepthOption = 1,
) -> Asked:
    """A list of tile costs: which scheduler, what residency, what tail."""
    from tilewright.lists import parse_costs
    from tilewright.problem import TileList

    problem = TileList.of(
        {
            **parse_costs(file),
            "cluster_shape": parse_triple("--cluster", cluster),
            "threads": threads,
            "smem_bytes": smem_bytes,
            "regs": regs,
        }
    )
    options = _options(None, None, None, busy_sms, sm_budget, True, scheduler, clc_depth)
    return Asked(problem, device, options)


READERS: dict[str, Callable[..., Asked]] = {
    "gemm": read_gemm,
    "grouped-gemm": read_grouped,
    "attention": read_attention,
    "tiles": read_tiles,
}

for _name, _read in READERS.items():
    add_command(plan_app, _name, _read, _plan)
