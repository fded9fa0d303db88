"""Devices: chip numbers with their origin, and nothing else.

A device is a TOML file in `devices/`; each value there has a unit, a kind (how it is known) and a
source. `load` turns it into a frozen `Device` of plain numbers; `device.facts[name]` keeps where a
number came from, and reports print it. A missing value stays `None`: nothing is borrowed from another
architecture. `device.need(name)` raises `UnknownValue` with the reason.

ISA facts (which MMA shapes exist) are not here: they belong to `tiling`.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from tilewright.errors import DeviceDataError, UnknownName, UnknownValue

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["documented", "queried", "measured", "derived", "assumed"]
KINDS: tuple[Kind, ...] = ("documented", "queried", "measured", "derived", "assumed")

BUILTIN_DIR = Path(__file__).parent / "devices"


@dataclass(frozen=True, slots=True)
class Fact:
    """One device value and how it is known.

    Attributes:
        plausible: (low, high) the value may take; given for assumed and disputed values, and used to
            say which conclusions would flip inside it.
        note: a caveat worth printing.
    """

    name: str
    value: Any
    unit: str
    kind: Kind
    source: str
    plausible: tuple[float, float] | None = None
    note: str = ""


def _fact(unit: str, *, required: bool = False, default: Any = None) -> Any:
    metadata = {"unit": unit, "required": required}
    if required:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


def tensor_fact(dtype: str) -> str:
    """Name of the `Device` field with the tensor rate of an input dtype: both fp8 formats share one."""
    return "tensor_fp8" if dtype.startswith("fp8") else f"tensor_{dtype}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU model, or one unit of it where topology differs from chip to chip.

    Every field below `arch` is a fact of the TOML file by the same name. `None` means unknown.
    Rates a SM are per SM clock cycle; `KiB` is 1024 B and `gbps` is 1e9 bytes a second.
    """

    name: str
    product: str
    compute_capability: tuple[int, int]
    arch: str
    facts: Mapping[str, Fact] = field(repr=False, compare=False)

    # the chip
    sm_count: int = _fact("SMs", required=True)
    gpc_sms: tuple[int, ...] | None = _fact("SMs per cluster-capable group")
    gpc_sms_max: int | None = _fact("SMs")
    sm_clock_mhz: float = _fact("MHz", required=True)

    # one SM
    smem_per_sm_bytes: int = _fact("bytes", required=True)
    smem_per_cta_max_bytes: int = _fact("bytes", required=True)
    smem_reserved_per_cta_bytes: int = _fact("bytes", required=True)
    smem_granularity_bytes: int = _fact("bytes", required=True)
    regs_per_sm: int = _fact("32-bit registers", required=True)
    regs_per_thread_max: int = _fact("32-bit registers", required=True)
    reg_granularity: int = _fact("32-bit registers per warp", required=True)
    warp_granularity: int = _fact("warps", required=True)
    threads_per_sm: int = _fact("threads", required=True)
    threads_per_cta_max: int = _fact("threads", required=True)
    warps_per_sm: int = _fact("warps", required=True)
    ctas_per_sm_max: int = _fact("CTAs", required=True)
    tmem_columns: int | None = _fact("columns of 32 bits x 128 lanes")
    tmem_ctas_per_sm: int | None = _fact("CTAs")

    # clusters
    cluster_size_portable_max: int = _fact("CTAs", default=1)
    cluster_size_max: int = _fact("CTAs", default=1)
    cluster_ctas_per_sm_max: int | None = _fact("CTAs")

    # memory
    l2_bytes: int | None = _fact("bytes")
    l2_partitions: int | None = _fact("partitions")
    l2_bandwidth_gbps: float | None = _fact("GB/s")
    l2_latency_cycles: float | None = _fact("cycles")
    hbm_bytes: int | None = _fact("bytes")
    hbm_bandwidth_gbps: float | None = _fact("GB/s")
    hbm_read_gbps: float | None = _fact("GB/s")
    hbm_latency_cycles: float | None = _fact("cycles")
    smem_bytes_per_cycle: float | None = _fact("bytes per cycle per SM")
    smem_latency_cycles: float | None = _fact("cycles")
    dsmem_bytes_per_cycle: float | None = _fact("bytes per cycle per SM")
    dsmem_latency_cycles: float | None = _fact("cycles")

    # tensor cores, dense, multiply and add counted as two
    tensor_bf16: float | None = _fact("FLOP per cycle per SM")
    tensor_fp16: float | None = _fact("FLOP per cycle per SM")
    tensor_tf32: float | None = _fact("FLOP per cycle per SM")
    tensor_fp8: float | None = _fact("FLOP per cycle per SM")
    tensor_mxfp8: float | None = _fact("FLOP per cycle per SM")
    tensor_nvfp4: float | None = _fact("FLOP per cycle per SM")
    tensor_int8: float | None = _fact("FLOP per cycle per SM")
    tensor_efficiency: float | None = _fact("fraction of the tensor rate at sm_clock_mhz")
    tensor_efficiency_max: float | None = _fact("fraction of the tensor rate at sm_clock_mhz")
    exp2_per_cycle: float | None = _fact("operations per cycle per SM")

    # capabilities
    clusters: bool = _fact("capability", required=True)
    tma: bool = _fact("capability", required=True)
    multicast: bool = _fact("capability", required=True)
    wgmma: bool = _fact("capability", required=True)
    tcgen05: bool = _fact("capability", required=True)
    cta_group_2: bool = _fact("capability", required=True)
    clc: bool = _fact("capability", required=True)
    clc_multicast: bool = _fact("capability", required=True)
    setmaxnreg: bool = _fact("capability", required=True)

    # overheads
    launch_us: float | None = _fact("us")
    cluster_sync_cycles: float | None = _fact("cycles")
    atomic_cycles: float | None = _fact("cycles")
    clc_latency_cycles: float | None = _fact("cycles")
    cta_turnover_cycles: float | None = _fact("cycles")
    cta_start_cycles: float | None = _fact("cycles")
    tile_overhead_cycles: float | None = _fact("cycles")
    cluster_tile_cycles: float | None = _fact("cycles")
    queue_fetch_cycles: float | None = _fact("cycles")

    def __reduce__(self) -> tuple[Any, ...]:
        """Facts travel to other processes as a plain dict, since a read-only view is not pickled."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return _unpickled, ({**values, "facts": dict(self.facts)},)

    def need(self, name: str, why: str) -> float:
        """The value of a fact that an answer cannot do without.

        Args:
            name: a field of `Device`.
            why: what needs it, for the message.

        Raises:
            UnknownValue: if the device file does not have it.
        """
        value = getattr(self, name)
        if value is None:
            raise UnknownValue(
                f"{why} is unknown on {self.name}: {name} has no source. "
                f'Give it in a TOML with base = "{self.name}" and pass that file as --device.',
                given=name,
            )
        return float(value)

    def tensor_rate(self, dtype: str) -> float | None:
        """Dense FLOP per cycle per SM for an input dtype, or None when the device lacks it."""
        value: float | None = getattr(self, tensor_fact(dtype))
        return value or None

    def cycles_to_us(self, cycles: float) -> float:
        """SM cycles at `sm_clock_mhz` to microseconds."""
        return cycles / self.sm_clock_mhz

    def us_to_cycles(self, us: float) -> float:
        """Microseconds to SM cycles at `sm_clock_mhz`."""
        return us * self.sm_clock_mhz


_IDENTITY = ("name", "product", "compute_capability", "arch", "facts")
_FACT_FIELDS = {f.name: f for f in fields(Device) if f.name not in _IDENTITY}
_NEEDS = (
    ("multicast", "tma"),
    ("multicast", "clusters"),
    ("cta_group_2", "tcgen05"),
    ("tcgen05", "clusters"),
    ("clc_multicast", "clc"),
)
_FACT_KEYS = {"value", "unit", "kind", "source", "plausible", "note", "checked", "record"}


def _unpickled(values: dict[str, Any]) -> Device:
    return Device(**{**values, "facts": MappingProxyType(values["facts"])})


def known_devices() -> list[str]:
    """Names of the devices that ship with the package, sorted."""
    return sorted(p.stem for p in BUILTIN_DIR.glob("*.toml"))


def load(name_or_path: str | Path) -> Device:
    """The device by name ("b200"), or from a TOML file of the user's.

    A user's file may start from a known device with `base = "b200"` and give only what differs;
    `unknown = ["gpc_sms"]` forgets what the base says and the user cannot vouch for.

    Raises:
        UnknownName: no such device and no such file.
        DeviceDataError: the file does not parse, or a value is malformed or missing.
    """
    text = str(name_or_path)
    if text.endswith(".toml"):
        return _from_file(Path(text))
    return _load_builtin(text)


@cache
def _load_builtin(name: str) -> Device:
    path = BUILTIN_DIR / f"{name}.toml"
    if name not in known_devices():
        raise UnknownName("device", name, known_devices())
    return _from_file(path)


def _from_file(path: Path) -> Device:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DeviceDataError(
            f"no device file {path}; known devices: {', '.join(known_devices())}",
            given=str(path),
            allowed=", ".join(known_devices()),
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DeviceDataError(f"{path}: not a readable TOML file: {error}", given=path) from None
    return from_tables(data, where=str(path))


def from_tables(data: Mapping[str, Any], *, where: str = "device data") -> Device:
    """Build a `Device` from parsed TOML tables.

    Raises:
        DeviceDataError: names the table and what is wrong with it.
    """
    tables = dict(data)
    try:
        base = load(tables.pop("base")) if "base" in tables else None
    except RecursionError:
        raise DeviceDataError(f"{where}: the base files refer to each other in a circle") from None
    forgotten = tables.pop("unknown", [])
    identity: dict[str, Any] = {}
    for key in ("name", "product", "compute_capability", "arch"):
        if key in tables:
            identity[key] = tables.pop(key)
        elif base is not None:
            identity[key] = getattr(base, key)
        else:
            raise DeviceDataError(f'{where}: "{key}" is missing', given=key)
    identity["compute_capability"] = _capability(identity["compute_capability"], where)

    facts = dict(base.facts) if base else {}
    for name in map(str, forgotten if isinstance(forgotten, list) else [forgotten]):
        if name not in _FACT_FIELDS:
            raise UnknownName(f'device value in "unknown" of {where}:', name, _FACT_FIELDS)
        facts.pop(name, None)
    for name, table in tables.items():
        if name not in _FACT_FIELDS:
            raise UnknownName(f"device value in {where}:", name, _FACT_FIELDS)
        facts[name] = _parse_fact(name, table, where)
    missing = [n for n, f in _FACT_FIELDS.items() if f.metadata["required"] and n not in facts]
    if missing:
        raise DeviceDataError(
            f"{where}: required values are missing: {', '.join(missing)}", given=", ".join(missing)
        )
    values: dict[str, Any] = {
        n: tuple(f.value) if isinstance(f.value, list) else f.value for n, f in facts.items()
    }
    device = Device(**identity, facts=MappingProxyType(facts), **values)
    _check_consistent(device, where)
    return device


def _capability(value: Any, where: str) -> tuple[int, int]:
    if isinstance(value, tuple):
        return value
    try:
        major, minor = (int(part) for part in str(value).split("."))
    except ValueError:
        raise DeviceDataError(
            f'{where}: compute_capability "{value}" is not of the form "10.0"', given=value
        ) from None
    return major, minor


def _parse_fact(name: str, table: Any, where: str) -> Fact:
    if not isinstance(table, dict):
        raise DeviceDataError(f"{where}: {name} must be a table with value, unit, kind, source")
    lacking = [k for k in ("value", "unit", "kind", "source") if table.get(k, "") == ""]
    if lacking:
        raise DeviceDataError(f"{where}: [{name}] lacks {', '.join(lacking)}", given=name)
    strange = sorted(set(table) - _FACT_KEYS)
    if strange:
        raise DeviceDataError(f"{where}: [{name}] has unknown keys {', '.join(strange)}")
    if table["kind"] not in KINDS:
        raise UnknownName(f"kind in {where} [{name}]:", str(table["kind"]), KINDS)
    expected = _FACT_FIELDS[name].metadata["unit"]
    if table["unit"] != expected:
        raise DeviceDataError(
            f'{where}: [{name}] is in "{table["unit"]}"; this value is kept in "{expected}"',
            given=table["unit"],
            allowed=expected,
        )
    _check_value(name, table["value"], expected, where)
    return Fact(
        name=name,
        value=table["value"],
        unit=table["unit"],
        kind=table["kind"],
        source=table["source"],
        plausible=_parse_plausible(name, table, where),
        note=table.get("note", ""),
    )


def _parse_plausible(name: str, table: Any, where: str) -> tuple[float, float] | None:
    if "plausible" not in table:
        return None
    match table["plausible"], table["value"]:
        case [int() | float() as low, int() | float() as high], int() | float() as value if (
            low <= value <= high
        ):
            return float(low), float(high)
    raise DeviceDataError(
        f"{where}: [{name}] plausible {table['plausible']!r} is not [low, high] "
        f"around the value {table['value']!r}",
        given=table["plausible"],
    )


def _check_value(name: str, value: Any, unit: str, where: str) -> None:
    if unit == "capability":
        ok = isinstance(value, bool)
    elif name == "gpc_sms":
        ok = (
            bool(value) and isinstance(value, list) and all(type(v) is int and v > 0 for v in value)
        )
    else:
        ok = type(value) in {int, float} and math.isfinite(value) and value >= 0
    if not ok:
        raise DeviceDataError(f"{where}: [{name}] value {value!r} is not valid", given=value)


def _check_consistent(device: Device, where: str) -> None:
    """Geometry proves itself on load."""
    if device.gpc_sms is not None and sum(device.gpc_sms) != device.sm_count:
        raise DeviceDataError(
            f"{where}: gpc_sms {list(device.gpc_sms)} sum to {sum(device.gpc_sms)}, "
            f"but sm_count is {device.sm_count}",
            given=device.gpc_sms,
            nearest='gpc_sms of this unit, or unknown = ["gpc_sms"]',
        )
    if device.threads_per_sm != 32 * device.warps_per_sm:
        raise DeviceDataError(
            f"{where}: threads_per_sm {device.threads_per_sm} is not "
            f"32 x warps_per_sm {device.warps_per_sm}"
        )
    for capability, needs in _NEEDS:
        if getattr(device, capability) and not getattr(device, needs):
            raise DeviceDataError(f"{where}: {capability} = true needs {needs} = true")
    if device.clusters != (device.cluster_size_max > 1):
        raise DeviceDataError(
            f"{where}: clusters = {device.clusters} but cluster_size_max = {device.cluster_size_max}"
        )
    if device.cluster_size_portable_max > device.cluster_size_max:
        raise DeviceDataError(f"{where}: cluster_size_portable_max exceeds cluster_size_max")
    room = device.smem_per_sm_bytes - device.smem_reserved_per_cta_bytes
    if device.smem_per_cta_max_bytes > room:
        raise DeviceDataError(
            f"{where}: smem_per_cta_max_bytes {device.smem_per_cta_max_bytes} leaves no room for the "
            f"reserved {device.smem_reserved_per_cta_bytes} of {device.smem_per_sm_bytes}"
        )
