"""Devices: the loader's errors, and chip numbers against datasheets, manuals and recorded runs."""

from __future__ import annotations

import csv
import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tilewright.device import (
    BUILTIN_DIR,
    KINDS,
    from_tables,
    known_devices,
    load,
)
from tilewright.errors import DeviceDataError, TilewrightError, UnknownName, UnknownValue

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "tests" / "data" / "h200"
BUILTIN = ["a100", "b200", "b300", "gb200", "h100_sxm", "h200", "rtx_pro_6000", "thor"]


def tables(name: str = "b200") -> dict[str, Any]:
    return tomllib.loads((BUILTIN_DIR / f"{name}.toml").read_text(encoding="utf-8"))


def measured(value: object, unit: str) -> dict[str, Any]:
    return {"value": value, "unit": unit, "kind": "measured", "source": "a test"}


def records(name: str) -> list[list[str]]:
    with (RECORDS / name).open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


# what ships


def test_known_devices() -> None:
    assert known_devices() == BUILTIN


@pytest.mark.parametrize("name", BUILTIN)
def test_every_builtin_loads_under_its_own_name(name: str) -> None:
    assert load(name).name == name


@pytest.mark.parametrize("name", BUILTIN)
def test_every_fact_says_how_it_is_known(name: str) -> None:
    device = load(name)
    for fact in device.facts.values():
        assert fact.kind in KINDS
        assert len(fact.source) > 3, fact.name


OVERHEADS = {
    "launch_us",
    "cluster_sync_cycles",
    "atomic_cycles",
    "clc_latency_cycles",
    "cta_turnover_cycles",
    "cta_start_cycles",
    "tile_overhead_cycles",
}


@pytest.mark.parametrize("name", BUILTIN)
def test_only_overheads_are_assumed_and_then_with_a_range(name: str) -> None:
    for fact in load(name).facts.values():
        if fact.kind == "assumed":
            assert fact.name in OVERHEADS
            assert fact.plausible is not None, fact.name
            assert fact.source.startswith("assumed: "), fact.name


# numbers typed from NVIDIA's documents

DATASHEET_TFLOPS = [
    # HGX B200: 4.5 PF fp16, 9 PF fp8, 9 POPS int8, 18 PF fp4, 2.2 PF tf32, all sparse
    ("b200", "bf16", 2250, None),
    ("b200", "fp16", 2250, None),
    ("b200", "fp8_e4m3", 4500, None),
    ("b200", "int8", 4500, None),
    ("b200", "nvfp4", 9000, None),
    ("b200", "tf32", 1100, None),
    # GB200 NVL72, one GPU: 5, 10, 10, 20, 2.5, all sparse
    ("gb200", "bf16", 2500, None),
    ("gb200", "fp8_e5m2", 5000, None),
    ("gb200", "int8", 5000, None),
    ("gb200", "nvfp4", 10000, None),
    ("gb200", "tf32", 1250, None),
    # HGX B300, an eighth: 36 PF fp16 and 72 PF fp8 sparse, 108 PF fp4 dense
    ("b300", "bf16", 2250, None),
    ("b300", "fp8", 4500, None),
    ("b300", "nvfp4", 13500, None),
    # H100 whitepaper, dense, at its tensor boost clock; the H200 has the same peaks
    ("h100_sxm", "bf16", 989.4, None),
    ("h100_sxm", "tf32", 494.7, None),
    ("h100_sxm", "fp8", 1978.9, None),
    ("h100_sxm", "int8", 1978.9, None),
    ("h200", "bf16", 989.4, 1830),
    ("h200", "tf32", 494.7, 1830),
    ("h200", "fp8", 1978.9, 1830),
    ("h200", "int8", 1978.9, 1830),
    # A100 datasheet, dense
    ("a100", "bf16", 312, None),
    ("a100", "tf32", 156, None),
    ("a100", "int8", 624, None),
    # RTX PRO 6000: 4000 AI TOPS, sparse FP4
    ("rtx_pro_6000", "nvfp4", 2000, None),
    # Jetson T5000: 1035 dense FP4, 517 dense FP8, sparse FP16 517, sparse INT8 1035
    ("thor", "nvfp4", 1035, None),
    ("thor", "fp8", 517, None),
    ("thor", "fp16", 258.5, None),
    ("thor", "int8", 517.5, None),
]


@pytest.mark.parametrize(("name", "dtype", "tflops", "clock_mhz"), DATASHEET_TFLOPS)
def test_datasheet_peak(name: str, dtype: str, tflops: float, clock_mhz: float | None) -> None:
    device = load(name)
    rate = device.tensor_rate(dtype)
    assert rate is not None
    got = device.sm_count * rate * (clock_mhz or device.sm_clock_mhz) / 1e6
    rounding = 0.025 if dtype == "tf32" else 0.01  # tf32 is printed with two digits
    assert got == pytest.approx(tflops, rel=rounding)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("a100", "fp8"),  # NVIDIA A100 datasheet: no FP8 row
        ("a100", "nvfp4"),
        ("h100_sxm", "nvfp4"),  # H100 whitepaper: no FP4 row
        ("h200", "nvfp4"),
        ("h200", "mxfp8"),  # PTX ISA: wgmma has no block scale
    ],
)
def test_what_a_device_lacks_has_no_rate(name: str, dtype: str) -> None:
    assert load(name).tensor_rate(dtype) is None


# CUDA C++ Programming Guide, technical specifications per compute capability
# cc: KiB of shared memory an SM, a CTA; warps, CTAs an SM
LIMITS = {
    (8, 0): (164, 163, 64, 32),
    (9, 0): (228, 227, 64, 32),
    (10, 0): (228, 227, 64, 32),
    (10, 3): (228, 227, 64, 32),
    (11, 0): (228, 227, 48, 24),
    (12, 0): (100, 99, 48, 24),
}


@pytest.mark.parametrize("name", BUILTIN)
def test_sm_limits_are_the_programming_guides(name: str) -> None:
    device = load(name)
    smem_sm, smem_cta, warps, ctas = LIMITS[device.compute_capability]
    assert device.smem_per_sm_bytes == smem_sm * 1024
    assert device.smem_per_cta_max_bytes == smem_cta * 1024
    assert device.warps_per_sm == warps
    assert device.threads_per_sm == 32 * warps
    assert device.ctas_per_sm_max == ctas
    assert device.regs_per_sm == 65536
    assert device.regs_per_thread_max == 255


# PTX ISA, target notes of each instruction. multicast on sm_120: legal, but CUTLASS's and quack's
# documents say the hardware has none.
CAPABILITIES = (
    "clusters",
    "tma",
    "multicast",
    "wgmma",
    "tcgen05",
    "cta_group_2",
    "clc",
    "clc_multicast",
    "setmaxnreg",
)
MATRIX = {
    "sm_80": "no  no  no  no  no  no  no  no  no ",
    "sm_90a": "yes yes yes yes no  no  no  no  yes",
    "sm_100a": "yes yes yes no  yes yes yes yes yes",
    "sm_103a": "yes yes yes no  yes yes yes yes yes",
    "sm_110a": "yes yes yes no  yes yes yes yes yes",
    "sm_120a": "yes yes no  no  no  no  yes yes yes",
}


@pytest.mark.parametrize("name", BUILTIN)
def test_capabilities_are_the_ptx_manuals(name: str) -> None:
    device = load(name)
    got = {c: getattr(device, c) for c in CAPABILITIES}
    want = {
        c: word == "yes" for c, word in zip(CAPABILITIES, MATRIX[device.arch].split(), strict=True)
    }
    assert got == want


@pytest.mark.parametrize(
    ("name", "portable", "largest"),
    [
        ("a100", 1, 1),
        ("h100_sxm", 8, 16),  # NVIDIA Hopper Tuning Guide
        ("h200", 8, 16),
        ("b200", 8, 16),  # NVIDIA Blackwell Tuning Guide
        ("gb200", 8, 16),
        ("b300", 8, 16),
        ("rtx_pro_6000", 8, 8),  # Dao-AILab/quack, AI/sm120_hardware.md
        ("thor", 8, 8),  # jax-ml/jax#33720
    ],
)
def test_cluster_sizes(name: str, portable: int, largest: int) -> None:
    device = load(name)
    assert device.cluster_size_portable_max == portable
    assert device.cluster_size_max == largest


# facts against recorded runs


def clusters_that_fit(groups: tuple[int, ...], ctas_per_sm: int, size: int) -> int:
    return sum(ctas_per_sm * sms // size for sms in groups if sms >= size)


def test_b200_groups_give_the_published_row() -> None:
    # "The B200 SM", section 4.5: max active clusters of a tiny kernel, eight CTAs an SM
    groups = load("b200").gpc_sms
    assert groups is not None
    row = [clusters_that_fit(groups, 8, size) for size in (1, 2, 4, 8, 12, 16)]
    assert row == [1184, 592, 284, 142, 87, 66]


def test_h200_groups_give_every_row_of_its_driver() -> None:
    device = load("h200")
    assert device.gpc_sms is not None
    assert device.cluster_ctas_per_sm_max is not None
    rows = [r for r in records("occupancy.csv")[1:] if r[-1] == "cudaSuccess"]
    assert len(rows) > 500
    for x, y, z, _, _, resident, ctas_per_sm, _ in rows:
        slots = min(device.cluster_ctas_per_sm_max, int(ctas_per_sm))
        size = int(x) * int(y) * int(z)
        assert clusters_that_fit(device.gpc_sms, slots, size) == int(resident)


@pytest.mark.parametrize(
    ("fact", "record", "where"),
    [
        ("cluster_sync_cycles", "cluster_sync_cycles", ""),
        ("atomic_cycles", "atomic_latency_cycles", "ctas=132"),
        ("dsmem_latency_cycles", "dsmem_latency_cycles", "peer=1"),
        ("smem_latency_cycles", "dsmem_latency_cycles", "peer=0"),
        ("dsmem_bytes_per_cycle", "dsmem_bytes_per_clk_per_sm", "cluster=2 stride16B=1"),
        ("launch_us", "empty_kernel_us", "ctas=132"),
    ],
)
def test_h200_facts_lie_within_their_record(fact: str, record: str, where: str) -> None:
    pattern = re.compile(rf"(^| ){re.escape(where)}\b")
    values = [
        float(value)
        for name, at, value in records("latency.csv")
        if name == record and (not where or pattern.search(at))
    ]
    assert values
    assert min(values) <= getattr(load("h200"), fact) <= max(values)


def test_h200_tensor_efficiency_is_its_best_recorded_gemm() -> None:
    device = load("h200")
    reached = max(
        float(row[3].removesuffix("TFLOPs"))
        for row in records("gemm_baseline.csv")
        if row[0] == "cublas_bf16"
    )
    peak = device.sm_count * 4096 * device.sm_clock_mhz / 1e6
    assert device.tensor_efficiency == pytest.approx(reached / peak, abs=0.005)


# the loader


def bad(change: dict[str, Any], remove: str = "") -> TilewrightError:
    data = tables() | change
    data.pop(remove, None)
    with pytest.raises(TilewrightError) as caught:
        from_tables(data, where="mine.toml")
    return caught.value


def test_unknown_device_asks_did_you_mean() -> None:
    with pytest.raises(UnknownName) as caught:
        load("b2000")
    assert caught.value.nearest == "b200"
    assert "h200" in str(caught.value)


def test_unknown_value_asks_did_you_mean() -> None:
    error = bad({"sm_cuont": measured(148, "SMs")})
    assert isinstance(error, UnknownName)
    assert error.nearest == "sm_count"


def test_wrong_unit_names_the_right_one() -> None:
    error = bad({"l2_bytes": measured(126, "MiB")})
    assert isinstance(error, DeviceDataError)
    assert error.given == "MiB"
    assert error.allowed == "bytes"


def test_unknown_kind_asks_did_you_mean() -> None:
    error = bad({"sm_count": measured(148, "SMs") | {"kind": "mesured"}})
    assert isinstance(error, UnknownName)
    assert error.nearest == "measured"


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"sm_count": 148}, "sm_count must be a table"),
        ({"sm_count": {"value": 148, "unit": "SMs"}}, "[sm_count] lacks kind, source"),
        ({"sm_count": measured(148, "SMs") | {"source": ""}}, "[sm_count] lacks source"),
        ({"sm_count": measured(148, "SMs") | {"colour": 1}}, "unknown keys colour"),
        ({"sm_count": measured(-148, "SMs")}, "value -148 is not valid"),
        ({"sm_clock_mhz": measured(float("inf"), "MHz")}, "value inf is not valid"),
        ({"sm_clock_mhz": measured(float("nan"), "MHz")}, "value nan is not valid"),
        ({"sm_count": measured(value=True, unit="SMs")}, "value True is not valid"),
        ({"clc": measured(1, "capability")}, "value 1 is not valid"),
        ({"gpc_sms": measured([], "SMs per cluster-capable group")}, "value [] is not valid"),
        ({"gpc_sms": measured([74, 74.0], "SMs per cluster-capable group")}, "is not valid"),
        ({"gpc_sms": measured([74, 73], "SMs per cluster-capable group")}, "sum to 147"),
        ({"sm_count": measured(140, "SMs")}, "sum to 148, but sm_count is 140"),
        ({"warps_per_sm": measured(48, "warps")}, "threads_per_sm 2048 is not 32 x"),
        ({"tma": measured(value=False, unit="capability")}, "multicast = true needs tma = true"),
        ({"tcgen05": measured(value=False, unit="capability")}, "cta_group_2 = true needs tcgen05"),
        ({"cluster_size_max": measured(1, "CTAs")}, "clusters = True but cluster_size_max = 1"),
        ({"cluster_size_max": measured(4, "CTAs")}, "portable_max exceeds"),
        ({"smem_per_cta_max_bytes": measured(233472, "bytes")}, "leaves no room"),
        ({"compute_capability": "ten"}, "not of the form"),
        ({"sm_count": measured(148, "SMs") | {"plausible": [1, 2]}}, "around the value 148"),
        ({"sm_count": measured(148, "SMs") | {"plausible": [148]}}, "is not [low, high]"),
    ],
)
def test_malformed_data_is_refused_with_the_reason(change: dict[str, Any], part: str) -> None:
    error = bad(change)
    assert isinstance(error, DeviceDataError)
    assert part in str(error)
    assert "mine.toml" in str(error)


@pytest.mark.parametrize("key", ["sm_count", "sm_clock_mhz", "clusters", "regs_per_sm"])
def test_a_missing_required_value_is_named(key: str) -> None:
    error = bad({}, remove=key)
    assert isinstance(error, DeviceDataError)
    assert error.given == key


@pytest.mark.parametrize("key", ["name", "product", "compute_capability", "arch"])
def test_a_missing_identity_is_named(key: str) -> None:
    assert bad({}, remove=key).given == key


def test_no_such_file_lists_the_known_devices(tmp_path: Path) -> None:
    with pytest.raises(DeviceDataError, match=r"no device file .*b200") as caught:
        load(tmp_path / "none.toml")
    assert "b200" in caught.value.allowed


def test_a_file_that_is_not_toml(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("name = b200", encoding="utf-8")
    with pytest.raises(DeviceDataError, match="not a readable TOML file"):
        load(path)


# a device of one's own


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_base_gives_all_that_the_file_does_not(tmp_path: Path) -> None:
    path = write(
        tmp_path / "mine.toml",
        """
        base = "b200"
        name = "my_b200"

        [sm_clock_mhz]
        value = 1597
        unit = "MHz"
        kind = "measured"
        source = "nvidia-smi, clock locked"
        """,
    )
    mine, b200 = load(path), load("b200")
    assert mine.name == "my_b200"
    assert mine.sm_clock_mhz == 1597
    assert mine.facts["sm_clock_mhz"].source == "nvidia-smi, clock locked"
    assert mine.compute_capability == b200.compute_capability
    assert mine.facts["sm_count"] == b200.facts["sm_count"]
    assert b200.sm_clock_mhz != 1597


def test_a_base_may_be_a_file(tmp_path: Path) -> None:
    first = write(tmp_path / "first.toml", 'base = "h200"\nname = "first"\n')
    second = write(tmp_path / "second.toml", f'base = "{first.as_posix()}"\nname = "second"\n')
    assert load(second).sm_count == 132


def test_unknown_forgets_what_the_base_says() -> None:
    sm_count = {"sm_count": measured(140, "SMs")}
    mine = from_tables({"base": "b200", "unknown": ["gpc_sms"]} | sm_count)
    assert mine.gpc_sms is None
    assert "gpc_sms" not in mine.facts
    with pytest.raises(UnknownName, match="unknown"):
        from_tables({"base": "b200", "unknown": ["gpcs"]})
    with pytest.raises(DeviceDataError, match="sm_count"):
        from_tables({"base": "b200", "unknown": ["sm_count"]})


def test_an_unknown_base_is_refused() -> None:
    with pytest.raises(UnknownName, match="b2OO"):
        from_tables({"base": "b2OO"})


def test_bases_in_a_circle_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "circle.toml"
    write(path, f'base = "{path.as_posix()}"\n')
    with pytest.raises(DeviceDataError, match="circle"):
        load(path)


# asking


def test_need_says_what_is_unknown_and_how_to_give_it() -> None:
    with pytest.raises(UnknownValue) as caught:
        load("thor").need("clc_latency_cycles", "the CLC schedule")
    assert "the CLC schedule is unknown on thor" in str(caught.value)
    assert 'base = "thor"' in str(caught.value)
    assert load("h200").need("sm_count", "anything") == 132


def test_cycles_and_microseconds() -> None:
    device = load("a100")
    assert device.cycles_to_us(1410) == 1
    assert device.us_to_cycles(2) == 2820


# docs/devices.md


def test_the_table_in_the_docs_is_the_data() -> None:
    """bench/write_device_table.py renews it."""
    path = ROOT / "bench" / "write_device_table.py"
    spec = importlib.util.spec_from_file_location("write_device_table", path)
    assert spec is not None
    assert spec.loader is not None
    script: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = (ROOT / "docs" / "devices.md").read_text(encoding="utf-8")
    assert script.render(text) == text
    rows = {line.split("|")[1].strip(" `"): line for line in text.splitlines() if "| `" in line}
    assert "233472 D" in rows["smem_per_sm_bytes"]
