"""The command line as a user meets it: output, exit codes, errors, files."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).parent.parent / "data"


def run(
    *args: str, columns: int = 100, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tilewright", *args]
    env = {**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False, cwd=cwd)  # noqa: S603


def test_plan_prints_five_parts() -> None:
    done = run("plan", "gemm", "--m", "8192", "--n", "8192", "--k", "8192", "--device", "b200")
    assert done.returncode == 0, done.stderr
    for part in (
        "Conclusion:",
        "Evidence:",
        "Contract",
        "Minimal validation",
        "Risks and fallback",
        "Numbers and where they come from",
        "Barrier ledger",
    ):
        assert part in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_any_width(columns: int) -> None:
    done = run(
        "plan",
        "gemm",
        "--m",
        "512",
        "--n",
        "512",
        "--k",
        "512",
        "--device",
        "h200",
        columns=columns,
    )
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= columns


def test_json_and_markdown() -> None:
    args = ("plan", "gemm", "--m", "1024", "--n", "1024", "--k", "1024", "--device", "h200")
    plan = json.loads(run(*args, "--json").stdout)
    assert plan["conclusion"]["cta_group"] == 1
    markdown = run(*args, "--markdown").stdout
    assert markdown.startswith("## Conclusion: GEMM 1024x1024x1024 bf16")
    tables = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(tables) > 40
    assert json.loads(run("schema").stdout)["title"] == "Plan"


def test_verify_exits_zero_when_nothing_is_refuted() -> None:
    done = run(
        "plan", "grouped-gemm", "--counts", "1528,3516,0,508", "--n", "4096", "--k", "4096",
        "--device", "b200", "--verify",
    )  # fmt: skip
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert all(line.startswith("ok") for line in lines)
    assert any("tile map" in line for line in lines)


def test_costs_go_round(tmp_path: Path) -> None:
    costs = tmp_path / "costs.csv"
    args = ("plan", "attention", "--seqlens", "1000,3000", "--heads", "8", "--head-dim", "128")
    done = run(*args, "--causal", "--device", "h200", "--costs", str(costs))
    assert done.returncode == 0, done.stderr
    simulated = run(
        "simulate",
        str(costs),
        "--device",
        "h200",
        "--threads",
        "384",
        "--smem-bytes",
        "200000",
        "--json",
    )
    found = json.loads(simulated.stdout)
    assert set(found) == {"single_tile", "static", "static_blocked", "dynamic_atomic", "stream_k"}
    assert found["static"]["makespan_us"] > 0


def test_residency_rows() -> None:
    rows = json.loads(
        run(
            "residency", "--device", "h200", "--threads", "128", "--smem-bytes", "204800", "--json"
        ).stdout
    )
    assert [row["cluster_size"] for row in rows] == list(range(1, 17))
    assert {row["cluster_size"]: row["resident_clusters"] for row in rows}[4] == 30
    assert [row["portable"] for row in rows] == [True] * 8 + [False] * 8
    text = run("residency", "--device", "h200", "--clusters", "1,16").stdout
    assert "NonPortableClusterSizeAllowed" in text


def test_grid_barrier_is_refused() -> None:
    common = ("residency", "--device", "b200", "--smem-bytes", "204800", "--clusters", "2")
    assert run(*common, "--grid-barrier", "74").returncode == 0
    refused = run(*common, "--grid-barrier", "74", "--busy-sms", "1")
    assert refused.returncode == 2
    assert "Launch at most 73" in refused.stderr


def test_topology_from_counts() -> None:
    """The row published for one B200 (page "The B200 SM"), eight CTAs an SM."""
    row = "1:1184,2:592,4:284,8:142,12:87,16:66"
    done = run("topology", row, "--slots", "8")
    assert done.returncode == 0
    assert "[20, 20, 20, 18, 18, 18, 18, 10, 2, 2, 2]" in done.stdout
    assert "The only one" in done.stdout
    few = run("topology", "1:132,2:66", "--gpc-sms-max", "18")
    assert "Not unique" in few.stdout
    for bad in ("1:132,2:10", "1-132", "2:66"):
        refused = run("topology", bad)
        assert (refused.returncode, refused.stdout) == (2, "")


def test_preferred_and_fallback_clusters() -> None:
    """H200: 30 clusters of four leave twelve SMs, in GPCs of 18 and in pairs: six clusters of two."""
    common = ("residency", "--device", "h200", "--smem-bytes", "200000", "--fallback", "2,1,1")
    done = run(*common, "--preferred", "4,1,1", "--grid", "8,1,1")
    assert done.returncode == 0
    assert "30 + 6" in done.stdout
    refused = run(*common, "--preferred", "4,2,1", "--grid", "6,4,1")
    assert refused.returncode == 2
    assert "on x (6 % 4)" in refused.stderr


def test_simulate_without_a_device() -> None:
    """NVIDIA/Fuser#4546: 16 equal tiles on 15 slots take two rounds however they are handed out."""
    found = json.loads(run("simulate", "16x1000", "--workers", "15", "--json").stdout)
    assert found["static"]["makespan_us"] == found["dynamic_atomic"]["makespan_us"] == 2.0


def test_devices() -> None:
    listed = json.loads(run("devices", "--json").stdout)
    assert {"b200", "gb200", "b300", "h100_sxm", "h200", "a100", "rtx_pro_6000", "thor"} <= set(
        listed
    )
    facts = json.loads(run("devices", "b200", "--json").stdout)["facts"]
    assert facts["sm_count"]["value"] == 148
    assert all(fact["source"] for fact in facts.values())
    assert "SMs" in run("devices").stdout


def test_a_device_of_ones_own(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(
        'base = "b200"\nname = "mine"\n[clc_latency_cycles]\nvalue = 900\nunit = "cycles"\n'
        'kind = "measured"\nsource = "my bench"\n'
    )
    plan = json.loads(
        run(
            "plan",
            "gemm",
            "--m",
            "4096",
            "--n",
            "4096",
            "--k",
            "4096",
            "--device",
            str(mine),
            "--json",
        ).stdout
    )
    assert plan["device"]["name"] == "mine"
    [latency] = [e for e in plan["evidence"] if e["name"] == "mine.clc_latency_cycles"]
    assert (latency["value"], latency["kind"]) == (900, "measured")


PLANS = (
    "gemm --m 1024 --n 2048 --k 512 --dtype fp8 --batch 2 --device b200",
    "grouped-gemm --counts 100,0,300 --n 512 --k 512 --device h200",
    "grouped-gemm --counts 0,64,128 --grouped k --m 256 --n 512 --device b200",
    "attention --seqlens 500,1500 --heads 4 --kv-heads 2 --head-dim 64 --causal --device b200",
)


@pytest.mark.parametrize("plan", PLANS)
def test_the_commands_of_a_plan_run(plan: str, tmp_path: Path) -> None:
    """Correctness, boundary and, where they are ours, experiment commands, as the plan prints them."""
    made = run("plan", *plan.split(), "--json")
    assert made.returncode == 0, made.stderr
    validation = json.loads(made.stdout)["validation"]
    checks = [check for part in validation.values() for check in part]
    commands = [c for check in checks for c in check["command"].split(" && ")]
    ours = [shlex.split(c) for c in commands if c.startswith("tilewright ")]
    assert len(ours) >= 5
    for command in ours:
        done = run(*command[1:], cwd=tmp_path)
        assert done.returncode == 0, (command, done.stderr)
    assert all(check["refuted_if"] for check in checks)


GEMM = ("plan", "gemm", "--device", "b200")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (
            (*GEMM, "--m", "0", "--n", "8", "--k", "8"),
            "m: Input should be greater than 0 (given: 0)",
        ),
        ((*GEMM, "--m", "-5", "--n", "8", "--k", "8"), "greater than 0"),
        ((*GEMM, "--m", "8", "--n", "8", "--k", "100"), "Pad to 96 or 104"),
        ((*GEMM, "--m", "8", "--n", "8", "--k", "8", "--dtype", "fp7"), 'unknown dtype "fp7"'),
        ((*GEMM, "--m", "8", "--n", "8", "--k", "8", "--cluster", "0,1"), "positive numbers"),
        ((*GEMM, "--m", "8", "--n", "8", "--k", "8", "--cluster", "32"), "at most 16"),
        ((*GEMM, "--m", "8", "--n", "8", "--k", "8", "--sm-budget", "0"), "SM budget of 0"),
        ((*GEMM, "--m", "8", "--n", "8", "--k", "8", "--busy-sms", "999"), "999 busy SMs"),
        (
            ("plan", "gemm", "--m", "8", "--n", "8", "--k", "8", "--device", "b2000"),
            'Did you mean "b200"?',
        ),
        (
            ("plan", "gemm", "--m", "8", "--n", "8", "--k", "8", "--device", "no.toml"),
            "no device file",
        ),
        (("plan", "tiles", "none.csv", "--device", "b200"), "no file none.csv"),
        (("plan", "tiles", "4x100", "--device", "b200", "--smem-bytes", "999999"), "allows 232448"),
        (
            ("plan", "grouped-gemm", "--counts", "1,x", "--n", "8", "--k", "8", "--device", "b200"),
            '"x"',
        ),
        (("residency", "--device", "a100", "--clusters", "2"), "no thread block clusters"),
        (("residency", "--device", "thor", "--clusters", "16"), "at most 8"),
        (("residency", "--device", "h200", "--clusters", "16", "--portable"), "NonPortable"),
        (("residency", "--device", "h200", "--clusters", "a-b"), "not a range"),
        (("simulate", "4x100"), "give --device, or --workers"),
        (("simulate", "4x100", "--workers", "0"), "0 workers"),
        (("simulate", "4x100", "--workers", "2", "--scheduler", "magic"), "unknown scheduler"),
        (("simulate", "4x100", "--workers", "2", "--order", "best"), "unknown order"),
    ],
)
def test_bad_input_is_exit_code_2(args: tuple[str, ...], says: str) -> None:
    done = run(*args)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout


def test_a_million_groups(tmp_path: Path) -> None:
    counts = tmp_path / "counts.csv"
    counts.write_text("\n".join(["8"] * 1_000_000))
    done = run(
        "plan",
        "grouped-gemm",
        "--counts",
        str(counts),
        "--n",
        "64",
        "--k",
        "64",
        "--device",
        "b200",
    )
    assert done.returncode == 2
    assert "1000000 entries; at most 131072" in done.stderr


def test_a_hundred_thousand_groups(tmp_path: Path) -> None:
    counts = tmp_path / "counts.json"
    counts.write_text(json.dumps([i % 300 for i in range(100_000)]))
    done = run(
        "plan", "grouped-gemm", "--counts", str(counts), "--n", "256", "--k", "512", "--device", "b200",
        "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["conclusion"]["predicted_us"] > 0


def test_nothing_is_written_for_a_bad_plan(tmp_path: Path) -> None:
    out = tmp_path / "costs.csv"
    done = run(*GEMM, "--m", "0", "--n", "8", "--k", "8", "--costs", str(out))
    assert done.returncode == 2
    assert not out.exists()
    nowhere = run(
        *GEMM, "--m", "8", "--n", "8", "--k", "8", "--costs", str(tmp_path / "no" / "c.csv")
    )
    assert nowhere.returncode == 2
    assert "cannot be written" in nowhere.stderr


def test_importing_the_package_is_light() -> None:
    """`import tilewright` needs neither CUDA nor numpy until something is planned."""
    code = "import sys, tilewright; print([m for m in ('numpy', 'pydantic', 'cuda') if m in sys.modules])"
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_one_part_of_a_plan() -> None:
    """The part alone equals the part of the whole, as data, text and Markdown."""
    whole = json.loads(run(*GEMM, "--m", "4096", "--n", "4096", "--k", "4096", "--json").stdout)
    args = (*GEMM, "--m", "4096", "--n", "4096", "--k", "4096", "--part")
    assert json.loads(run(*args, "contract.tmem", "--json").stdout) == whole["contract"]["tmem"]
    assert json.loads(run(*args, "risks", "--json").stdout) == whole["risks"]
    assert f"columns: {whole['contract']['tmem']['columns']}" in run(*args, "contract.tmem").stdout
    assert run(*args, "contract.tmem", "--markdown").stdout.startswith("## contract.tmem")
    wrong = run(*args, "contract.barrier")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert 'unknown part of contract "barrier"' in wrong.stderr
    assert 'Did you mean "barriers"?' in wrong.stderr
    assert 'unknown part of risks "0"' in run(*args, "risks.0").stderr
