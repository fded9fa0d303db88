"""The options that the plan costed and did not take, as configurations of the same kernel.

The benchmark of an emitted folder measures them beside the chosen one: what the plan predicted for each is
what refutes it. A candidate is not a section of kernel.cu; its configuration replaces the section's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilewright.candidates import Candidates
from tilewright.emit.configs import fit_stages
from tilewright.emit.constants import config_constants, path_constants
from tilewright.errors import TilewrightError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.candidates import Candidate
    from tilewright.emit.configs import KernelPath
    from tilewright.kernels.config import GemmConfig
    from tilewright.plan_model import OptionRow
    from tilewright.problem import Matmul
    from tilewright.tiling import Tiling


def find_candidates(problem: Matmul, path: KernelPath) -> list[dict[str, Any]]:
    """What launch.json holds of each option that has a kernel, the chosen one left out."""
    return [
        {
            **path_constants(path),
            **config_constants(config),
            "name": f"{row.option}/{config.scheduler}",
            "summary": f"{config.tiling.describe()}, {config.scheduler}",
            "predicted_us": round(row.predicted_us, 3),
            "notes": [],
            "section": path.kind.name,
            "config": list(_lines(config)),
        }
        for row, config in configs_of_options(problem, path)
        if config != path.config
    ]


def configs_of_options(problem: Matmul, path: KernelPath) -> Iterator[tuple[OptionRow, GemmConfig]]:
    """Every option that the plan costed and a kernel does, the chosen one first."""
    known: dict[tuple[str, tuple[int, int, int], int], Candidate | None] = {}
    for row in path.plan.schedule.options:
        key = row.tile, row.cluster_shape, row.cta_group
        if key not in known:
            known[key] = _candidate(problem, path, row)
        candidate = known[key]
        config = None if candidate is None else _config(path, candidate, row)
        if config is not None:
            yield row, config


def _candidate(problem: Matmul, path: KernelPath, row: OptionRow) -> Candidate | None:
    def same(tiling: Tiling) -> bool:
        return (_tile(tiling), tiling.cluster_shape, tiling.cta_group) == (
            row.tile,
            row.cluster_shape,
            row.cta_group,
        )

    if row.option not in {"single", "cluster", "pair"}:
        return None
    return Candidates(problem, path.device, allow=same).best(row.option)  # type: ignore[arg-type]


def _tile(tiling: Tiling) -> str:
    """The tile as the plan's table of options writes it."""
    pair = f", pair {tiling.pair_tile}" if tiling.pair_tile else ""
    return f"{tiling.cta_tile}{pair}"


def _config(path: KernelPath, candidate: Candidate, row: OptionRow) -> GemmConfig | None:
    """None where no kernel does it."""
    own = path.config
    ragged = own.ragged
    if own.swap_ab != candidate.swap_ab:
        ragged = {"m": "n", "n": "m"}.get(ragged, ragged)  # type: ignore[assignment]
    try:
        config = replace(
            own,
            tiling=candidate.tiling,
            raster=candidate.raster,
            scheduler=row.scheduler,
            schedule_depth=own.schedule_depth if row.scheduler == own.scheduler else 1,
            swap_ab=candidate.swap_ab,
            ragged=ragged,
        )
        return fit_stages(config, path.device)
    except TilewrightError:
        return None


def _lines(config: GemmConfig) -> Iterator[str]:
    """The constants of the rendered configuration."""
    return (line for line in config.render().splitlines() if line.startswith("constexpr"))
