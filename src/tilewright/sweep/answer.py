"""One problem on one device: the decision as a flat record, and the key that says when it is the same question."""

from __future__ import annotations

import hashlib
import json
import time
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from tilewright import __version__
from tilewright.errors import TilewrightError
from tilewright.plan import conclude, draft_of

if TYPE_CHECKING:
    from tilewright.device import Device
    from tilewright.problem import Workload


class Answered(BaseModel):
    """A decision, or the error in its place. Times are predicted, without launch latency.

    Attributes:
        key: of the question; equal keys have equal answers.
        cluster: "2,1,1". tile: "128x256x64" of one CTA.
        plain_us: one CTA a tile, hardware dispatch. static_us, dynamic_us: the fastest under a static and under the device's
            dynamic scheduler (clc, or an atomic counter).
        cluster_gain: over the fastest without a cluster, less one; where a cluster was chosen.
        dynamic_gain: over the fastest static schedule, less one; where a dynamic one was chosen.
        inside_error: some step's gain is inside the model's error: measure before relying on it.
        flips: device values whose plausible range changes the answer.
        retry: the process failed, not the plan: a later sweep asks again.
        seconds: what planning took.
    """

    model_config = ConfigDict(frozen=True)

    key: str
    device: str
    answer: str = ""
    use_cluster: bool = False
    cluster: str = ""
    cta_group: int = 0
    tile: str = ""
    scheduler: str = ""
    tile_order: str = ""
    predicted_us: float | None = None
    plain_us: float | None = None
    static_us: float | None = None
    dynamic_us: float | None = None
    cluster_gain: float | None = None
    dynamic_gain: float | None = None
    inside_error: bool = False
    bound: str = ""
    tiles: int = 0
    resident_clusters: int = 0
    flips: str = ""
    error: str = ""
    retry: bool = False
    seconds: float = 0.0


DYNAMIC = ("clc", "dynamic_atomic")


def key_of(problem: Workload, device: Device) -> str:
    """The same for the same problem, device values and version of this package."""
    facts = {
        name: (fact.value, fact.plausible, fact.kind) for name, fact in sorted(device.facts.items())
    }
    asked = [__version__, problem.kind, problem.model_dump(), device.name, facts]
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:32]


def answer(key: str, problem: Workload, device: Device) -> Answered:
    """Decide; an error becomes part of the record, since one row never stops the rest."""
    start = time.perf_counter()
    try:
        found = _decided(key, problem, device)
    except TilewrightError as error:
        found = Answered(key=key, device=device.name, error=str(error))
    except MemoryError:
        found = Answered(key=key, device=device.name, error="out of memory", retry=True)
    except Exception as error:  # noqa: BLE001  (a defect in one row is that row's)
        found = Answered(key=key, device=device.name, error=f"{type(error).__name__}: {error}")
    return found.model_copy(update={"seconds": round(time.perf_counter() - start, 4)})


def _decided(key: str, problem: Workload, device: Device) -> Answered:
    draft = draft_of(problem, device)
    said = conclude(draft, device, problem)
    options = (draft.decision.chosen, *draft.decision.rejected)
    plain = [o.us for o in options if o.cluster_size == 1 and o.scheduler == "single_tile"]
    alone = [o.us for o in options if o.cluster_size == 1]
    static = [o.us for o in options if o.scheduler not in DYNAMIC]
    dynamic = [o.us for o in options if o.scheduler in DYNAMIC]
    chosen = said.predicted_us

    def gain(others: list[float]) -> float | None:
        return min(others) / chosen - 1 if others and chosen else None

    return Answered(
        key=key,
        device=device.name,
        answer=said.answer,
        use_cluster=said.use_cluster,
        cluster=",".join(map(str, said.cluster_shape)),
        cta_group=said.cta_group,
        tile="" if said.tile is None else f"{said.tile.m}x{said.tile.n}x{said.tile.k}",
        scheduler=said.scheduler,
        tile_order=said.tile_order,
        predicted_us=chosen,
        plain_us=min(plain, default=None),
        static_us=min(static, default=None),
        dynamic_us=min(dynamic, default=None),
        cluster_gain=gain(alone) if said.use_cluster else None,
        dynamic_gain=gain(static) if said.scheduler in DYNAMIC else None,
        inside_error=any(step.inside_error for step in said.because),
        bound=said.bound,
        tiles=draft.work.num_tiles,
        resident_clusters=draft.work.slots,
        flips=", ".join(flip.value for flip in said.would_flip),
    )
