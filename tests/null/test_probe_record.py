"""A probe of one H200, replayed without it: its topology, its device file, and what refuses to run.

`probe.json` is `tilewright probe --json` of that unit, `probe.toml` what `--save` wrote in the same run.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright import Gemm, load, make_plan
from tilewright.cli import main
from tilewright.errors import BadInput, DeviceDataError, Unsupported
from tilewright.run.compiler import parse_log
from tilewright.run.device_file import (
    check_place,
    find_base,
    render_device_file,
    save_device_file,
)
from tilewright.run.record import Counts, ProbeRecord, find_gpc_sms, slots_per_sm
from tilewright.topology import clusters_resident

DATA = Path(__file__).parent.parent / "data" / "h200"
RECORD = ProbeRecord.from_json((DATA / "probe.json").read_text(encoding="utf-8"))
UNIT = load(DATA / "probe.toml")
SMS = RECORD.attributes["multiprocessor_count"]


def recorded_counts() -> list[Counts]:
    assert RECORD.one_cta_per_sm is not None
    assert RECORD.tiny is not None
    return [RECORD.one_cta_per_sm, RECORD.tiny]


def test_the_recorded_counts_have_one_topology() -> None:
    assert find_gpc_sms(RECORD, UNIT.gpc_sms_max or 20) == [UNIT.gpc_sms]
    assert find_gpc_sms(RECORD, 20) == [UNIT.gpc_sms], "larger groups change nothing"


@pytest.mark.parametrize("counts", recorded_counts(), ids=["one CTA an SM", "tiny"])
def test_that_topology_gives_every_recorded_count(counts: Counts) -> None:
    assert set(range(1, 17)) <= set(counts.clusters)
    slots = slots_per_sm(counts, SMS)
    assert slots == min(8, counts.ctas_per_sm)
    for size, resident in counts.clusters.items():
        assert clusters_resident(UNIT.gpc_sms or (), slots, size) == resident, size


def test_counts_agree_with_the_other_record_of_this_topology() -> None:
    """occupancy.csv came from a CUDA program; the probe asked the driver through NVRTC's cubin."""
    assert UNIT.gpc_sms == load("h200").gpc_sms, "the probed unit has the topology of occupancy.csv"
    with (DATA / "occupancy.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["ctas_per_sm"] == "1"]
    compared = 0
    for row in rows:
        if row["status"] == "cudaSuccess":
            size = int(row["cluster_x"]) * int(row["cluster_y"]) * int(row["cluster_z"])
            said = recorded_counts()[0].clusters.get(size, 0)  # 32 is past what the probe asks
            assert said == int(row["resident_clusters"]), row
            compared += 1
    assert compared > 100


def test_the_device_file_follows_from_the_record() -> None:
    text = (DATA / "probe.toml").read_text(encoding="utf-8")
    assert render_device_file(RECORD) == text
    assert {table["kind"] for table in tomllib.loads(text).values() if isinstance(table, dict)} == {
        "queried",
        "measured",
        "derived",
    }


def test_each_probed_value_says_where_it_was_read() -> None:
    for table in tomllib.loads((DATA / "probe.toml").read_text(encoding="utf-8")).values():
        if isinstance(table, dict):
            assert RECORD.gpu in table["record"]
            assert RECORD.driver in table["record"]
            assert RECORD.date in table["record"]


def test_measured_values_agree_with_the_cuda_programs() -> None:
    """h200.toml has the same quantities from CUDA programs on the same product: within 5 %.

    L2 bandwidth within 10 %: the program behind memory.csv read 4 MiB 100 times in 60 us, of which some are the
    launch; the probe reads 16 GiB each time.
    """
    known = load("h200")
    for name in (
        "l2_latency_cycles",
        "hbm_latency_cycles",
        "hbm_read_gbps",
        "cluster_sync_cycles",
        "dsmem_latency_cycles",
        "smem_latency_cycles",
    ):
        assert getattr(UNIT, name) == pytest.approx(getattr(known, name), rel=0.05), name
    assert UNIT.l2_bandwidth_gbps == pytest.approx(known.l2_bandwidth_gbps, rel=0.10)


def test_the_device_file_plans_a_gemm() -> None:
    gemm = Gemm(m=8192, n=8192, k=8192, dtype="bf16")
    ours, known = make_plan(gemm, UNIT), make_plan(gemm, load("h200"))
    assert ours.conclusion.cluster_shape == known.conclusion.cluster_shape
    assert ours.conclusion.tile == known.conclusion.tile


def test_json_round_trip() -> None:
    assert ProbeRecord.from_json(RECORD.to_json()) == RECORD


def test_ambiguous_counts_leave_the_topology_unknown(tmp_path: Path) -> None:
    few = [
        replace(c, clusters={s: n for s, n in c.clusters.items() if s < 3})
        for c in recorded_counts()
    ]
    record = replace(RECORD, one_cta_per_sm=few[0], tiny=few[1])
    assert len(find_gpc_sms(record, 18)) > 1
    save_device_file(record, tmp_path / "unit.toml")
    assert load(tmp_path / "unit.toml").gpc_sms is None


def test_a_contradiction_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "unit.toml"
    path.write_text("what was there\n")
    attributes = RECORD.attributes | {"max_shared_memory_per_block_optin": 1 << 20}
    with pytest.raises(DeviceDataError, match="leaves no room"):
        save_device_file(replace(RECORD, attributes=attributes), path)
    assert path.read_text() == "what was there\n"
    assert list(tmp_path.iterdir()) == [path], "no scratch file stays"


def test_places_that_cannot_be_saved_to(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"ends in \.toml"):
        check_place(tmp_path / "unit.json")
    with pytest.raises(BadInput, match="not a folder"):
        check_place(tmp_path / "missing" / "unit.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(BadInput, match="not a folder"):
        check_place(tmp_path / "folder.toml")
    check_place(Path("unit.toml"))


@pytest.mark.parametrize(
    ("gpu", "capability", "base"),
    [
        ("NVIDIA H200", (9, 0), "h200"),
        ("NVIDIA H100 80GB HBM3", (9, 0), "h100_sxm"),
        ("NVIDIA B200", (10, 0), "b200"),
        ("NVIDIA GB200", (10, 0), "gb200"),
        ("NVIDIA B300 SXM6 AC", (10, 3), "b300"),
    ],
)
def test_the_nearest_known_device(gpu: str, capability: tuple[int, int], base: str) -> None:
    assert find_base(gpu, capability).name == base


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"compute capability 8.9, .* known: 10.0"):
        find_base("NVIDIA L4", (8, 9))


@pytest.mark.parametrize("command", [["probe"], ["compile", "k.cu", "--arch", "sm_90a"]])
def test_without_the_extra(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One clear line that names the extra, and exit code 2."""
    (tmp_path / "k.cu").write_text("__global__ void k() {}\n")
    monkeypatch.chdir(tmp_path)
    for name in ("cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(sys, "argv", ["tilewright", *command])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    message = capsys.readouterr().err
    assert "pip install 'tilewright[cuda]'" in message
    assert message.count("\n") == 1


def test_planning_imports_neither_cuda_nor_this_package() -> None:
    code = (
        "import sys, tilewright, tilewright.cli\n"
        "plan = tilewright.make_plan(tilewright.Gemm(m=128, n=8192, k=8192, dtype='bf16'), tilewright.load('b200'))\n"
        "assert not [m for m in sys.modules if m.split('.')[0] == 'cuda' or m.startswith('tilewright.run')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603  (our own code)


def test_what_ptxas_says_is_read() -> None:
    """A log of NVRTC 13.5: a kernel held to 32 registers, and a function that was not inlined."""
    log = """\
ptxas info    : Overriding maximum register limit 256 for 'big' with  32 of maxrregcount option
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'big' for 'sm_100a'
ptxas info    : Function properties for big
ptxas         .     720 bytes stack frame, 984 bytes spill stores, 1128 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 720 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compile time = 174.281 ms
ptxas info    : Function properties for _Z1gPii
ptxas         .     16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
"""
    kernel, function = parse_log(log)
    assert (kernel.name, kernel.is_kernel, kernel.registers) == ("big", True, 32)
    assert (kernel.spill_store_bytes, kernel.spill_load_bytes) == (984, 1128)
    assert (kernel.stack_bytes, kernel.static_smem_bytes) == (720, 1024)
    assert (function.name, function.is_kernel, function.spill_store_bytes) == ("_Z1gPii", False, 8)
