"""A sweep on a real Ray cluster of two nodes that this test starts, with a worker and a node killed in the middle.

    bash scripts/test-sweep

Two raylets of one machine are two nodes: each has its own workers, object store and resources. Needs the extra `sweep`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ray.cluster_utils import Cluster

import ray
from tilewright.device import load
from tilewright.errors import BadInput
from tilewright.problem import Gemm
from tilewright.sweep import sweep
from tilewright.sweep.on_ray import run_tasks_on_ray
from tilewright.sweep.processes import Task
from tilewright.sweep.rows import Row, read_rows
from tilewright.sweep.store import read_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

DEVICES = {name: load(name) for name in ("b200", "h200")}
BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes of one CPU each."""
    made: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.add_node(num_cpus=1)
    made.wait_for_nodes()
    yield made
    made.shutdown()


def rows_of(count: int) -> list[Row]:
    return [
        Row(f"r{i}", "layer", f"r{i}", problem=Gemm(m=64 * i, n=512, k=256))
        for i in range(1, count + 1)
    ]


def test_the_answers_are_those_of_processes(cluster: Cluster, tmp_path: Path) -> None:
    rows = rows_of(40)
    devices = list(DEVICES.values())
    there = sweep(rows, devices, tmp_path / "ray.csv", processes=1, ray=cluster.address)
    here = sweep(rows, devices, tmp_path / "here.csv", processes=2)
    assert (there.asked, there.failed) == (80, [])
    assert [{**x, "seconds": 0} for x in there.lines] == [{**x, "seconds": 0} for x in here.lines]
    again = sweep(rows, devices, tmp_path / "ray.csv", processes=1, ray=cluster.address)
    assert (again.asked, again.known) == (0, 80)


def ray_workers() -> list[int]:
    """Processes of this user that run a chunk of rows."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"ray::_answer_all" in line.read_bytes():
                found.append(int(line.parent.name))
        except OSError:
            continue
    return found


def test_a_killed_worker_loses_nothing(cluster: Cluster) -> None:
    tasks = [
        Task(row.where, row.problem, name)
        for row in rows_of(200)
        for name in DEVICES
        if row.problem
    ]
    tasks = [task._replace(key=f"{task.key} {task.device}") for task in tasks]
    killed: list[int] = []

    def kill() -> None:
        for _ in range(400):
            busy = ray_workers()
            if busy:
                os.kill(busy[0], signal.SIGKILL)
                killed.append(busy[0])
                return
            time.sleep(0.05)

    killer = threading.Thread(target=kill)
    killer.start()
    found = list(run_tasks_on_ray(tasks, DEVICES, address=cluster.address, seconds=60))
    killer.join()
    assert killed
    assert sorted(each.key for each in found) == sorted(task.key for task in tasks)
    assert [each.error for each in found if each.error] == []


def test_two_thousand_problems_on_two_devices(cluster: Cluster, tmp_path: Path) -> None:
    """The layers of public models by the command line; a node leaves in the middle; the second run asks nothing."""
    sys.path.insert(0, str(BENCH))
    try:
        from bench_sweep import model_rows  # noqa: PLC0415  (a script, not a package)
    finally:
        sys.path.remove(str(BENCH))
    rows = model_rows(tmp_path)
    assert len(rows) >= 2000
    extra = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    command = [
        sys.executable, "-m", "tilewright", "sweep", "models.json", "--device", "b200,h200", "--out", "all.parquet",
        "--ray", cluster.address, "--summary", "all.md",
    ]  # fmt: skip
    environment: dict[str, Any] = {**os.environ, "COLUMNS": "110"}
    process = subprocess.Popen(  # noqa: S603
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    journal = tmp_path / "all.parquet.part"
    while not journal.exists() or journal.read_bytes().count(b"\n") < 300:
        assert process.poll() is None
        time.sleep(0.2)
    cluster.remove_node(extra, allow_graceful=False)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    lines = read_lines(tmp_path / "all.parquet")
    assert len(lines) == 2 * len(rows)
    assert not [line["error"] for line in lines if line["error"]]
    assert "Where clusters pay" in (tmp_path / "all.md").read_text(encoding="utf-8")
    again = subprocess.run(  # noqa: S603
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert "(0 plans made, " in again.stdout
    assert json.loads(lines[0]["problem"])
    assert len(read_rows(tmp_path / "models.json")) == len(rows)


def test_no_cluster_there() -> None:
    ray.shutdown()
    with pytest.raises(BadInput, match="no Ray cluster there"):
        list(
            run_tasks_on_ray(
                [Task("a", Gemm(m=8, n=8, k=8), "b200")], DEVICES, address="127.0.0.1:1", seconds=60
            )
        )
