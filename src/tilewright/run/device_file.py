"""A probe as a device file: what was read from the unit, over what is known of its product.

The file starts from the nearest known device of the same compute capability (`base`) and gives only what
the probe read; everything else keeps the base's value, kind and source.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import tomllib
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tilewright.device import Device, Fact, from_tables, known_devices, load
from tilewright.errors import BadInput, Unsupported
from tilewright.run.record import find_gpc_sms, slots_per_sm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.device import Kind
    from tilewright.run.record import ProbeRecord

GPC_SMS_MAX = 20
"""Largest group considered where the base does not say; that of Blackwell (docs/devices.md)."""

_UNITS = {f.name: f.metadata["unit"] for f in fields(Device) if "unit" in f.metadata}
_QUERIED = {
    "sm_count": "multiprocessor_count",
    "smem_per_sm_bytes": "max_shared_memory_per_multiprocessor",
    "smem_per_cta_max_bytes": "max_shared_memory_per_block_optin",
    "smem_reserved_per_cta_bytes": "reserved_shared_memory_per_block",
    "regs_per_sm": "max_registers_per_multiprocessor",
    "threads_per_sm": "max_threads_per_multiprocessor",
    "threads_per_cta_max": "max_threads_per_block",
    "ctas_per_sm_max": "max_blocks_per_multiprocessor",
    "l2_bytes": "l2_cache_size",
}
_METHOD = {
    "hbm_read_gbps": "16-byte loads past L1 from every SM, a buffer far larger than L2",
    "l2_bandwidth_gbps": "16-byte loads past L1 from every SM, buffers that fit L2; median of the sizes",
    "l2_latency_cycles": "dependent loads past L1, hits in L2",
    "hbm_latency_cycles": "dependent loads past L1 with L2 flushed",
    "cluster_sync_cycles": "barrier.cluster arrive and wait in one cluster; median of sizes 1 to 16",
    "smem_latency_cycles": "dependent ld.shared::cluster of a CTA's own shared memory",
    "dsmem_latency_cycles": "dependent ld.shared::cluster of a peer; median of sizes 2 to 16",
}


def find_base(gpu: str, capability: tuple[int, int]) -> Device:
    """The known device of this compute capability whose product shares most words with the GPU's name.

    Raises:
        Unsupported: no known device has this compute capability, so its granularities and matrix rates
            have no source.
    """
    known = [load(name) for name in known_devices()]
    near = [device for device in known if device.compute_capability == capability]
    if not near:
        have = sorted({".".join(map(str, d.compute_capability)) for d in known})
        raise Unsupported(
            f"{gpu} has compute capability {capability[0]}.{capability[1]}, of which no device file says "
            f"the allocation granularities and matrix rates; known: {', '.join(have)}",
            given=f"{capability[0]}.{capability[1]}",
            allowed=", ".join(have),
        )
    words = set(gpu.lower().split())
    return max(near, key=lambda device: len(words & set(device.product.lower().split())))


def probed_facts(record: ProbeRecord) -> list[Fact]:
    """What the probe says, as facts of a device file."""
    facts = [*_queried(record), *_clusters(record), *_measured(record)]
    order = list(_UNITS)
    return sorted(facts, key=lambda fact: order.index(fact.name))


def render_device_file(record: ProbeRecord) -> str:
    """The TOML text; `device.load` reads it back."""
    base = find_base(record.gpu, record.compute_capability)
    facts = probed_facts(record)
    lines = [
        f"# {record.gpu}, read by tilewright probe on {record.date}: this unit, not the product.",
        f"# Values that are not here come from {base.name} ({base.product}), with their own sources.",
        "",
        f"base = {_toml(base.name)}",
        f"name = {_toml(_slug(record.gpu))}",
        f"product = {_toml(record.gpu)}",
        'compute_capability = "{}.{}"'.format(*record.compute_capability),
        f"arch = {_toml(base.arch)}",
    ]
    if base.gpc_sms is not None and not any(fact.name == "gpc_sms" for fact in facts):
        lines.append('unknown = ["gpc_sms"]  # the counts do not settle this unit\'s')
    for fact in facts:
        lines += ["", f"[{fact.name}]", *_fact_lines(fact, record)]
    return "\n".join(lines) + "\n"


def save_device_file(record: ProbeRecord, path: Path) -> None:
    """Write a probe's file.

    Raises:
        DeviceDataError, BadInput: as `write_device_file`.
    """
    write_device_file(render_device_file(record), path)


def write_device_file(text: str, path: Path) -> None:
    """Write a device file whole or not at all, after reading it back.

    Raises:
        DeviceDataError: the values contradict each other; nothing is written.
        BadInput: the place cannot be written.
    """
    from_tables(tomllib.loads(text), where=str(path))
    try:
        handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}", given=path) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(scratch).chmod(0o644)
        Path(scratch).replace(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}", given=path) from None
    finally:
        Path(scratch).unlink(missing_ok=True)  # gone already when all went well


def check_place(path: Path) -> None:
    """Refuse a place that could not be saved to, before anything is measured.

    Raises:
        BadInput: not a .toml name, or no such writable folder.
    """
    if path.suffix != ".toml":
        raise BadInput(
            f"--save {path}: a device file's name ends in .toml",
            given=path,
            nearest=str(path.with_suffix(".toml")),
        )
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise BadInput(f"--save {path}: {path.parent} is not a folder to write to", given=path)


def _queried(record: ProbeRecord) -> Iterator[Fact]:
    says = record.attributes
    for name, attribute in _QUERIED.items():
        yield _fact(name, says[attribute], "queried", f"CU_DEVICE_ATTRIBUTE_{attribute.upper()}")
    warps = says["max_threads_per_multiprocessor"] // says["warp_size"]
    yield _fact(
        "warps_per_sm", warps, "queried", "threads an SM over CU_DEVICE_ATTRIBUTE_WARP_SIZE"
    )
    yield _fact("hbm_bytes", record.memory_bytes, "queried", "cuDeviceTotalMem")
    clock, bits = says["memory_clock_rate"], says["global_memory_bus_width"]
    if clock and bits:
        gbps = round(2 * clock * 1e3 * bits / 8 / 1e9)
        how = f"two transfers a clock of {clock / 1e3:g} MHz over {bits} bits, both as the driver says"
        yield _fact("hbm_bandwidth_gbps", gbps, "derived", how)


def _clusters(record: ProbeRecord) -> Iterator[Fact]:
    if record.tiny is None:
        return
    sms = record.attributes["multiprocessor_count"]
    how = "cuOccupancyMaxPotentialClusterSize with the non-portable attribute"
    yield _fact("cluster_size_max", record.cluster_size_max, "queried", how)
    slots = slots_per_sm(record.tiny, sms)
    if slots < record.tiny.ctas_per_sm:
        how = (
            f"cuOccupancyMaxActiveClusters of a tiny kernel: {record.tiny.clusters[1]} clusters of one; "
            f"without the attribute {record.tiny.ctas_per_sm} CTAs an SM fit"
        )
        yield _fact("cluster_ctas_per_sm_max", slots, "queried", how)
    base = find_base(record.gpu, record.compute_capability)
    found = find_gpc_sms(record, base.gpc_sms_max or GPC_SMS_MAX)
    if len(found) == 1:
        sizes = record.tiny.clusters
        how = (
            f"the only GPC sizes that give cuOccupancyMaxActiveClusters at sizes {min(sizes)} to "
            f"{max(sizes)}, for a kernel of one CTA an SM and for a tiny one"
        )
        yield _fact("gpc_sms", list(found[0]), "derived", how, note="of this unit alone")


def _measured(record: ProbeRecord) -> Iterator[Fact]:
    maximum = record.attributes["clock_rate"] / 1e3
    for entry in record.measured("sm_clock_mhz"):
        yield _fact(
            "sm_clock_mhz",
            round(entry.value),
            "measured",
            "clock64 over globaltimer while one CTA spins, not locked",
            note=f"the driver's maximum is {maximum:g} MHz; under a large GEMM the power limit lowers it",
        )
    for name, method in _METHOD.items():
        entries = record.measured(name)
        if entries:
            values = [entry.value for entry in entries]
            where = ", ".join(f"{e.value:.4g} at {e.situation}" for e in entries)
            spread = (_round(min(values)), _round(max(values))) if len(values) > 1 else None
            value = _round(median(values))
            yield _fact(name, value, "measured", f"{method}: {where}", plausible=spread)
    atomics = record.measured("atomic_cycles")
    if atomics:
        samples = [sample for entry in atomics for sample in entry.samples]
        where = ", ".join(
            f"{e.value:.4g} from {e.situation} ({min(e.samples):.4g} to {max(e.samples):.4g})"
            for e in atomics
        )
        yield _fact(
            "atomic_cycles",
            _round(atomics[-1].value),
            "measured",
            f"dependent atomicAdd to one counter from one thread of each CTA, at 16 addresses: {where}",
            plausible=(_round(min(samples)), _round(max(samples))),
        )


def _fact(
    name: str,
    value: Any,
    kind: Kind,
    source: str,
    *,
    plausible: tuple[float, float] | None = None,
    note: str = "",
) -> Fact:
    return Fact(name, value, _UNITS[name], kind, source, plausible, note)


def _fact_lines(fact: Fact, record: ProbeRecord) -> Iterator[str]:
    yield f"value = {_toml(fact.value)}"
    yield f"unit = {_toml(fact.unit)}"
    yield f"kind = {_toml(fact.kind)}"
    yield f"source = {_toml(f'tilewright probe: {fact.source}')}"
    if fact.plausible is not None:
        yield f"plausible = {_toml(list(fact.plausible))}"
    where = f"{record.gpu}, driver {record.driver}, NVRTC {record.toolkit}, {record.date}"
    yield f"record = {_toml(where)}"
    if fact.note:
        yield f"note = {_toml(fact.note)}"


def _toml(value: Any) -> str:
    """Numbers, strings and lists of numbers are written alike in JSON and TOML."""
    return json.dumps(value)


def _round(value: float) -> float:
    """Four digits: more than the spread of the runs supports, and none that it denies."""
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() else short


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
