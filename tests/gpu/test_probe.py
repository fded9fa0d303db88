"""The probe on the GPU at hand. Without one these fail: they run only when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tilewright.device import load
from tilewright.run.device_file import find_base, save_device_file
from tilewright.run.probe import probe_gpu
from tilewright.run.record import ProbeRecord, find_gpc_sms

if TYPE_CHECKING:
    from pathlib import Path

    from tilewright.device import Device

pytestmark = pytest.mark.gpu

SAME = (
    "smem_per_sm_bytes",
    "smem_per_cta_max_bytes",
    "smem_reserved_per_cta_bytes",
    "regs_per_sm",
    "threads_per_sm",
    "threads_per_cta_max",
    "warps_per_sm",
    "ctas_per_sm_max",
    "cluster_size_max",
)
"""Limits of a compute capability: the driver must agree with the device file."""


@pytest.fixture(scope="module")
def record() -> ProbeRecord:
    return probe_gpu()


@pytest.fixture(scope="module")
def unit(record: ProbeRecord, tmp_path_factory: pytest.TempPathFactory) -> Device:
    path: Path = tmp_path_factory.mktemp("probe") / "unit.toml"
    save_device_file(record, path)
    return load(path)


def test_the_driver_agrees_with_the_device_file(record: ProbeRecord, unit: Device) -> None:
    base = find_base(record.gpu, record.compute_capability)
    assert {n: getattr(unit, n) for n in SAME} == {n: getattr(base, n) for n in SAME}


def test_one_topology_gives_every_count(record: ProbeRecord, unit: Device) -> None:
    if record.tiny is None:
        pytest.fail("this GPU has no clusters: the probe's topology part cannot be tested here")
    assert find_gpc_sms(record, unit.gpc_sms_max or 20) == [unit.gpc_sms]


def test_measurements_are_possible(record: ProbeRecord, unit: Device) -> None:
    """Bounds that no GPU of these architectures can leave: a wrong unit or a dead kernel would."""
    assert unit.hbm_read_gbps is not None
    assert unit.hbm_bandwidth_gbps is not None
    assert 0.5 * unit.hbm_bandwidth_gbps < unit.hbm_read_gbps < unit.hbm_bandwidth_gbps
    assert (unit.l2_bandwidth_gbps or 0) > unit.hbm_read_gbps
    assert 100 < (unit.l2_latency_cycles or 0) < (unit.hbm_latency_cycles or 0) < 3000
    assert (unit.smem_latency_cycles or 0) < (unit.dsmem_latency_cycles or 0)
    assert unit.sm_clock_mhz <= 1.01 * record.attributes["clock_rate"] / 1e3
    for measurement in record.measurements:
        assert min(measurement.samples) > 0, measurement
