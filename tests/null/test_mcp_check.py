"""The MCP server's check: kernels run on the emulator as the command line runs them, within bounds, and no file outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from mcp import Client

import mcp_client
from audit_pairs import text_of as text_of_kernel
from console import run
from mcp_client import SCRATCH, call, http_server, is_running, refuse, workers_of
from ptx_lines import kernel

pytestmark = pytest.mark.anyio

anyio_backend, http, client = mcp_client.anyio_backend, mcp_client.http, mcp_client.client

COUNTS = {
    "grid": 16,
    "args": ["counts"],
    "arrays": {"counts": {"dtype": "u32", "shape": [16], "expect": 1}},
}
AS_TOML = 'grid = 16\nargs = ["counts"]\n[arrays.counts]\ndtype = "u32"\nshape = [16]\nexpect = 1\n'
CLEAN, WRONG, STUCK = (text_of_kernel(name) for name in ("CLC-03_ok", "CLC-12_bad", "CLC-03_bad"))
SCHEDULES = 1000
"""A minute of schedules."""


@pytest.fixture(scope="module", autouse=True)
def files() -> None:
    """What the servers' allowed folder holds: kernels, launches, arrays, ways out."""
    sub = SCRATCH / "sub"
    sub.mkdir()
    (SCRATCH / "clean.ptx").write_text(CLEAN)
    (SCRATCH / "wrong.ptx").write_text(WRONG)
    (SCRATCH / "stuck.ptx").write_text(STUCK)
    (SCRATCH / "launch.toml").write_text(AS_TOML)
    np.save(sub / "ones.npy", np.ones(16, np.uint32))
    np.save(sub / "large.npy", np.zeros(2**22, np.uint32))
    (sub / "launch.toml").write_text(AS_TOML.replace("expect = 1", 'expect_file = "ones.npy"'))
    (sub / "out.toml").write_text(AS_TOML.replace("expect = 1", 'expect_file = "../../out.npy"'))
    for name in ("out.npy", "out.toml", "out.ptx"):
        target = SCRATCH.parent / f"{SCRATCH.name}-{name}"
        target.write_text(AS_TOML)
        (SCRATCH / name).symlink_to(target)


async def test_it_answers_what_the_command_prints(client: Client) -> None:
    """A clean kernel, one with a wrong result, one that deadlocks: text with a launch, file with a launch file."""
    launch = str(SCRATCH / "launch.toml")
    for name, text in (("clean", CLEAN), ("wrong", WRONG), ("stuck", STUCK)):
        file = str(SCRATCH / f"{name}.ptx")
        line = f"tilewright check {file} --args {launch} --schedules 6 --json"
        printed = json.loads(run(line, SCRATCH).out)
        found = await call(client, "check", file=file, launch_file=launch, schedules=6)
        assert {key: found[key] for key in printed} == printed
        same = await call(client, "check", ptx=text, launch=COUNTS, schedules=6)
        assert same["summary"] == found["summary"]
        ids = [finding["id"] for finding in same["findings"]]
        assert ids == {"clean": [], "wrong": ["RESULT"], "stuck": ["DEADLOCK"]}[name]
        assert same["verdict"] == ("fail" if ids else "pass")


async def test_a_failure_comes_with_what_replays_it(client: Client) -> None:
    found = await call(client, "check", ptx=WRONG, launch=COUNTS, schedules=9)
    assert found["seed"] == found["replay"]["seed"] > 0
    again = await call(client, "check", ptx=WRONG, launch=COUNTS, schedules=1, **found["replay"])
    assert (again["findings"], again["replay"]) == (found["findings"], found["replay"])
    clean = await call(client, "check", ptx=CLEAN, launch=COUNTS, schedules=2)
    assert (clean["replay"], clean["last_steps"]) == (None, [])
    stuck = await call(client, "check", ptx=STUCK, launch=COUNTS)
    assert all(step.startswith("cluster ") for step in stuck["last_steps"])
    assert len(stuck["last_steps"]) > 1


async def test_files_of_a_launch_lie_beside_it(client: Client) -> None:
    """Of one that is no file: in the first folder that was allowed, like every other name."""
    beside = str(SCRATCH / "sub" / "launch.toml")
    found = await call(client, "check", ptx=CLEAN, launch_file=beside, schedules=1)
    assert found["verdict"] == "pass"
    counts = {"shape": [16], "expect_file": "ones.npy"}
    told = await refuse(client, "check", ptx=CLEAN, launch={**COUNTS, "arrays": {"counts": counts}})
    assert "ones.npy cannot be opened" in told
    counts["expect_file"] = str(SCRATCH / "sub" / "ones.npy")
    launch = {**COUNTS, "arrays": {"counts": counts}}
    found = await call(client, "check", ptx=CLEAN, launch=launch, schedules=1)
    assert found["verdict"] == "pass"


async def test_what_is_not_emulated_is_named(client: Client) -> None:
    """A verdict, as the command prints one; the command's exit code is 2."""
    text = kernel("tex.2d.v4.f32.f32 {%f0,%f1,%f2,%f3}, [t, {%f0,%f1}];")
    launch = {"grid": 1, "args": ["a"], "arrays": {"a": {"shape": 4}}}
    found = await call(client, "check", ptx=text, launch=launch)
    assert (found["verdict"], found["schedules"]) == ("unsupported", 0)
    assert found["message"] == "<ptx>:11:1: `tex.2d.v4.f32.f32` is not emulated"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"launch": {**COUNTS, "grids": 4}}, 'unknown argument of launch "grids"; known: args, arrays, block'),
        ({"launch": {**COUNTS, "grid": [0]}}, "launch.grid.0: Input should be greater than or equal to 1 (given: 0)"),
        ({"launch": {**COUNTS, "grid": 15}, "ptx": text_of_kernel("CLC-10_bad")}, "not a multiple of the cluster's"),
        ({"launch": {**COUNTS, "args": ["count"]}}, 'unknown array "count"; known: counts. Did you mean "counts"?'),
        ({"launch": {**COUNTS, "args": []}}, "0 arguments for 1 parameters"),
        ({"launch": {"args": []}}, "the launch has no grid"),
        ({"launch": {**COUNTS, "block": [2048, 1, 1]}}, "block"),
        ({"launch": {**COUNTS, "smem_bytes": 10**6}}, "less than or equal to 232448 (given: 1000000)"),
        ({"launch": {**COUNTS, "arrays": {"counts": {"shape": [16], "dtype": "u33"}}}}, 'unknown dtype of an array "u33"'),
        ({"launch": {**COUNTS, "arrays": {"counts": {}}}}, "launch.arrays.counts: no shape, and no file"),
        ({"ptx": "no ptx"}, "<ptx>:1:1"),
        ({"ptx": None}, "exactly one of ptx, file and plan"),
        ({"file": "k.ptx"}, "exactly one of ptx, file and plan"),
        ({"ptx": None, "file": "k.cubin"}, "neither .ptx nor .cu"),
        ({"launch": None}, "exactly one of launch and launch_file"),
        ({"launch_file": "launch.toml"}, "exactly one of launch and launch_file"),
        ({"ptx": None, "plan": "plan.json"}, "a plan goes with schedules, seed and races alone"),
        ({"ptx": None, "launch": None, "plan": "published.toml"}, "not the output of tilewright plan --json"),
        ({"launch": None, "launch_file": "published.toml"}, "key of published.toml"),
        ({"schedules": 0}, "schedules: Input should be greater than or equal to 1"),
        ({"schedules": 1001}, "schedules: Input should be less than or equal to 1000"),
        ({"decline_at": [-1]}, "decline_at.0"),
    ],
)  # fmt: skip
async def test_errors(client: Client, changed: dict[str, Any], says: str) -> None:
    given = {"ptx": CLEAN, "launch": COUNTS, **changed}
    assert says in await refuse(
        client, "check", **{k: v for k, v in given.items() if v is not None}
    )


OUTSIDE = [
    "../../README.md", "/etc/passwd", str(Path(__file__)), str(SCRATCH / "out.npy"), str(SCRATCH / "sub/../../x.npy"),
]  # fmt: skip


@pytest.mark.parametrize(
    "name", OUTSIDE, ids=["above", "absolute", "this file", "a link", "a way back up"]
)
async def test_no_file_outside(client: Client, name: str) -> None:
    """Everything that names a file: the kernel, a plan, a launch file, the arrays' files; links too."""
    where = "outside the folders allowed"
    for kind in (".ptx", ".cu"):
        out = str(SCRATCH / "out.ptx") if name.endswith("out.npy") else f"{name}{kind}"
        assert where in await refuse(client, "check", file=out, launch=COUNTS, arch="sm_100a")
    assert where in await refuse(client, "check", plan=name)
    assert where in await refuse(client, "check", ptx=CLEAN, launch_file=name)
    for key, shape in (("file", {}), ("expect_file", {"shape": [16]})):
        launch = {**COUNTS, "arrays": {"counts": {**shape, key: name}}}
        assert where in await refuse(client, "check", ptx=CLEAN, launch=launch)


async def test_a_launch_file_names_no_file_outside(client: Client) -> None:
    told = await refuse(client, "check", ptx=CLEAN, launch_file=str(SCRATCH / "sub" / "out.toml"))
    assert "out.npy is outside the folders allowed" in told


async def test_a_plan_names_no_device_file_outside(client: Client, tmp_path: Path) -> None:
    line = "tilewright plan gemm --m 256 --n 256 --k 64 --device h200 --json"
    plan = json.loads(run(line, tmp_path).out)
    plan["device"]["name"] = str(tmp_path / "other.toml")
    (SCRATCH / "planned.json").write_text(json.dumps(plan))
    told = await refuse(client, "check", plan=str(SCRATCH / "planned.json"))
    assert "outside the folders allowed" in told


@pytest.mark.parametrize(
    ("launch", "says"),
    [
        ({**COUNTS, "arrays": {"counts": {"shape": [2**40]}}}, "the arrays have 4398046511104 bytes; at most 67108864"),
        ({**COUNTS, "arrays": {"counts": {"shape": [2**13, 2**13], "dtype": "e4m3", "expect": 0}}}, "134217728 bytes"),
        ({**COUNTS, "arrays": {f"a{i}": {"file": str(SCRATCH / "sub/large.npy")} for i in range(5)}}, "at most 67108864"),
        ({**COUNTS, "arrays": {f"a{i}": {"shape": 1} for i in range(65)}}, "launch.arrays"),
        ({**COUNTS, "grid": [2**30, 4, 1]}, "the grid has 4294967296 CTAs; at most 16384"),
    ],
)  # fmt: skip
async def test_too_much_is_refused_before_it_is_taken(
    client: Client, launch: dict[str, Any], says: str
) -> None:
    assert says in await refuse(client, "check", ptx=CLEAN, launch=launch)


async def test_a_header_does_not_decide_how_much_memory_is_taken(client: Client) -> None:
    """A .npy of a few bytes that says it has 2^50."""
    whole = (SCRATCH / "sub" / "ones.npy").read_bytes()
    (SCRATCH / "sub" / "liar.npy").write_bytes(
        whole.replace(b"(16,), }" + b" " * 14, b"(1125899906842624,), }")
    )
    launch = {**COUNTS, "arrays": {"counts": {"file": str(SCRATCH / "sub" / "liar.npy")}}}
    told = await refuse(client, "check", ptx=CLEAN, launch=launch)
    assert "is not a readable .npy file: buffer is smaller than requested size" in told


async def test_progress_after_each_schedule(client: Client) -> None:
    heard: list[str | None] = []
    last = anyio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        assert (progress >= 0, total) == (True, None)
        heard.append(message)
        if message == "5 of 5 schedules done":
            last.set()

    arguments = {"ptx": CLEAN, "launch": COUNTS, "schedules": 5}
    await client.call_tool("check", arguments, progress_callback=hear)
    with anyio.fail_after(10):
        await last.wait()
    said = [message for message in heard if message != "waiting for a worker"]
    assert list(dict.fromkeys(said)) == [f"{n} of 5 schedules done" for n in range(1, 6)]


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_check_is_cancelled_between_schedules(transport: str) -> None:
    """Its process is killed and the next call is answered by another."""
    started = anyio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        assert (progress >= 0, total) == (True, None)
        if message and "schedules done" in message:
            started.set()

    arguments = {"ptx": CLEAN, "launch": COUNTS, "schedules": SCHEDULES}
    with http_server("--workers", "1") as (process, url):
        server = mcp_client.parameters("--workers", "1") if transport == "stdio" else url
        async with Client(server) as client:
            async with anyio.create_task_group() as group:

                async def ask() -> None:
                    await client.call_tool("check", arguments, progress_callback=hear)

                group.start_soon(ask)
                with anyio.fail_after(60):
                    await started.wait()
                busy = workers_of(process.pid)
                group.cancel_scope.cancel()
            with anyio.fail_after(60):  # the whole of it takes longer
                found = await call(client, "check", ptx=CLEAN, launch=COUNTS, schedules=1)
            assert found["verdict"] == "pass"
            assert not any(map(is_running, busy))
            assert busy or transport == "stdio"


async def test_a_check_that_takes_too_long_is_stopped() -> None:
    async with mcp_client.stdio_client("--seconds", "3") as client:
        arguments = {"ptx": CLEAN, "launch": COUNTS, "schedules": SCHEDULES}
        assert "check took more than 3 s and was stopped" in await refuse(
            client, "check", **arguments
        )


async def test_a_kernel_that_never_ends_or_takes_all_memory() -> None:
    """A finding after a million steps in one warp; an error of the call, whose process is replaced."""
    async with mcp_client.stdio_client("--workers", "1") as client:
        launch = {"grid": 1, "args": [0]}
        found = await call(client, "check", ptx=kernel("L: bra L;"), launch=launch, schedules=1)
        assert [finding["id"] for finding in found["findings"]] == ["HANG"]
        large = kernel("").replace(".visible", f".global .align 4 .b8 x[{1 << 36}];\n.visible")
        told = await refuse(client, "check", ptx=large, launch=launch, schedules=1)
        assert "of memory" in told
        found = await call(client, "check", ptx=CLEAN, launch=COUNTS, schedules=1)
        assert found["verdict"] == "pass"
