"""launch.json and launch.h: the numbers that the launchers need, as data.

Both say the same. The Python launcher, the test and the benchmark read the one, the C++ launcher includes
the other.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tilewright import __version__
from tilewright.kernels.abi import (
    TENSOR_MAP_BYTES,
    GemmShape,
    operand_maps,
    output_map,
    pack_arguments,
)
from tilewright.kernels.config import ENTRY
from tilewright.problem import OUT_BYTES, GroupedGemm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilewright.emit.configs import AbsentPath, KernelPath
    from tilewright.kernels.config import GemmConfig
    from tilewright.problem import Matmul

_ANY_SHAPE = GemmShape(64, 64, 64)
"""Boxes and swizzles do not depend on the extents."""

_NO_MAP = bytes(TENSOR_MAP_BYTES)


def launch_constants(
    problem: Matmul,
    paths: Sequence[KernelPath],
    absent: Sequence[AbsentPath],
    candidates: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """What launch.json holds."""
    first = paths[0].config
    return {
        "tilewright": __version__,
        "entry": ENTRY,
        "argument_bytes": len(pack_arguments(first, _ANY_SHAPE, (_NO_MAP,) * 3, output=0)),
        "planned_for": paths[0].device.product,
        "problem": _problem(problem),
        "max_groups": first.max_groups,
        "has_c": first.has_c,
        "has_bias": first.has_bias,
        "paths": [path_constants(path) for path in paths],
        "absent": [entry._asdict() for entry in absent],
        "candidates": list(candidates),
    }


def path_constants(path: KernelPath) -> dict[str, Any]:
    """One path."""
    config = path.config
    return {
        "name": path.kind.name,
        "instruction": path.kind.instruction,
        "capabilities": [list(pair) for pair in path.capabilities],
        "or_later": path.kind.or_later,
        "arch_suffix": path.kind.arch_suffix,
        "planned_for": path.device.product,
        "summary": path.plan.conclusion.summary,
        "predicted_us": round(path.predicted_us or 0.0, 3),
        "predicted_resident_clusters": path.plan.schedule.resident_clusters,
        "notes": list(path.notes),
        **config_constants(config),
    }


def config_constants(config: GemmConfig) -> dict[str, Any]:
    """What a launch needs to know of a compiled kernel.

    `maps`: box and swizzle of the three tensor maps; `groups`: whether its third axis counts groups.
    """
    tiling = config.tiling
    a, b = operand_maps(config, _ANY_SHAPE)
    shared = {"m": "a", "n": "b", "k": "ab", "none": ""}[config.ragged]
    maps: dict[str, Any] = {
        "a": {"box": list(a.box), "swizzle_bytes": a.swizzle_bytes, "groups": "a" not in shared},
        "b": {"box": list(b.box), "swizzle_bytes": b.swizzle_bytes, "groups": "b" not in shared},
    }
    if config.store_by_tma:
        d = output_map(config, _ANY_SHAPE)
        maps["d"] = {
            "box": list(d.box),
            "swizzle_bytes": d.swizzle_bytes,
            "groups": config.ragged not in {"m", "n"},
        }
    return {
        "kernel": config.kernel,
        "cta_tile": list(tiling.cta_tile),
        "cluster_shape": list(tiling.cluster_shape),
        "cluster_size": config.cluster_size,
        "cta_group": tiling.cta_group,
        "k_step": tiling.mma.shape.k,
        "num_stages": tiling.num_stages,
        "accumulator_stages": tiling.accumulator_stages,
        "threads": tiling.threads,
        "smem_bytes": config.smem_bytes,
        "scheduler": config.scheduler,
        "schedule_depth": config.schedule_depth,
        "persistent": config.is_persistent,
        "raster": config.raster._asdict(),
        "ragged": config.ragged,
        "swap_ab": config.swap_ab,
        "store_by_tma": config.store_by_tma,
        "uses_tma": config.uses_tma,
        "maps": maps if config.uses_tma else {},
    }


def _problem(problem: Matmul) -> dict[str, Any]:
    """The problem with the extents that a launch is told: the ragged one is the sum over the groups."""
    m, n, k, groups, ragged = problem.m, problem.n, problem.k, 1, "none"
    counts: list[int] = []
    if isinstance(problem, GroupedGemm):
        counts, ragged = list(problem.counts), problem.grouped
        groups = len(counts)
        m, k = (sum(counts), k) if ragged == "m" else (m, sum(counts))
    else:
        groups = problem.batch
    return {
        "m": m,
        "n": n,
        "k": k,
        "groups": groups,
        "ragged": ragged,
        "counts": counts,
        "dtype": problem.dtype,
        "out_dtype": problem.out_dtype,
        "out_bytes": OUT_BYTES[problem.out_dtype],
        "flops": problem.flops,
    }


def render_json(constants: dict[str, Any]) -> str:
    """launch.json: a member a line, short lists on one line."""
    return _json(constants, 0) + "\n"


def _json(value: Any, depth: int) -> str:
    flat = json.dumps(value)
    if not isinstance(value, dict | list) or (len(flat) + 2 * depth <= 100 and depth):
        return flat
    inner = "  " * (depth + 1)
    if isinstance(value, dict):
        rows = [
            f"{inner}{json.dumps(key)}: {_json(item, depth + 1)}" for key, item in value.items()
        ]
        return "{\n" + ",\n".join(rows) + "\n" + "  " * depth + "}"
    rows = [f"{inner}{_json(item, depth + 1)}" for item in value]
    return "[\n" + ",\n".join(rows) + "\n" + "  " * depth + "]"


def render_header(constants: dict[str, Any]) -> str:
    """launch.h of a GEMM: launcher.cpp's `Problem` and `Gemm` name the fields."""
    problem = constants["problem"]
    lines = [
        *header_start(constants),
        "",
        f"constexpr bool has_c = {_c(constants['has_c'])}, has_bias = {_c(constants['has_bias'])};",
        "constexpr Problem problem = {",
        *(f"    {_c(problem[name])},  // {name}" for name in _PROBLEM),
        "};",
        f"constexpr int counts[] = {{{', '.join(map(str, problem['counts'])) or '0'}}};",
        "",
        "constexpr Gemm gemms[] = {  // in the order of paths",
        *(line for path in constants["paths"] for line in _gemm(path)),
        "};",
    ]
    return "\n".join(lines) + "\n"


_PROBLEM = ("m", "n", "k", "groups", "ragged", "dtype", "out_dtype")
_PATH = (
    "name",
    "instruction",
    "capabilities",
    "or_later",
    "arch_suffix",
    "planned_for",
    "predicted_us",
    "cluster_size",
    "threads",
    "smem_bytes",
    "scheduler",
    "persistent",
)
_GEMM = ("cta_tile", "cluster_shape", "ragged", "swap_ab", "store_by_tma", "uses_tma")


def header_start(constants: dict[str, Any]) -> list[str]:
    """The part of launch.h that every kernel has: driver.h names its fields."""
    return [
        f"// The numbers of launch.json for C++. Emitted by Tilewright {constants['tilewright']}.",
        "#pragma once",
        "",
        f"constexpr const char* entry = {_c(constants['entry'])};",
        f"constexpr const char* planned_for = {_c(constants['planned_for'])};",
        f"constexpr int argument_bytes = {constants['argument_bytes']};",
        "",
        "constexpr Path paths[] = {",
        *(line for path in constants["paths"] for line in _path(path)),
        "};",
        "",
        "constexpr Absent absent[] = {",
        *(f"    {{{_c(entry['name'])}, {_c(entry['why'])}}}," for entry in constants["absent"]),
        "    {nullptr, nullptr},",
        "};",
    ]


def _path(path: dict[str, Any]) -> list[str]:
    values = {name: path[name] for name in _PATH}
    values["capabilities"] = [*path["capabilities"], [0, 0]][:2]
    values["predicted_us"] = path["predicted_us"] or 0.0
    return [
        "    {",
        *(f"        {_c(value)},  // {name}" for name, value in values.items()),
        "    },",
    ]


def _gemm(path: dict[str, Any]) -> list[str]:
    values = {name: path[name] for name in _GEMM}
    values["cluster_shape"] = path["cluster_shape"][:2]
    maps = [_map(path["maps"].get(name)) for name in ("a", "b", "d")]
    return [
        f"    {{  // {path['name']}",
        *(f"        {_c(value)},  // {name}" for name, value in values.items()),
        "        // maps of a, b and D: box, swizzle in bytes, third axis counts groups",
        f"        {{{', '.join(maps)}}},",
        "    },",
    ]


def _map(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "{{0, 0, 0}, 0, false}"
    return f"{{{_c(entry['box'])}, {entry['swizzle_bytes']}, {_c(entry['groups'])}}}"


def _c(value: Any) -> str:
    """A value as C++ writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, list):
        return "{" + ", ".join(_c(item) for item in value) + "}"
    return repr(value)
