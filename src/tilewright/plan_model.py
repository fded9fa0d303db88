"""The plan as data: what `make_plan` returns, what `--json` prints, what the schema publishes.

Five parts for a reader: conclusion, evidence, contract, validation, risks; and `schedule`, the tables
behind the conclusion.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from tilewright.decide import Answer
from tilewright.errors import BadInput, UnknownName
from tilewright.evidence import Evidence
from tilewright.records import Records, records_of


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class TileShape(_Part):
    """Extents in elements; `m` and `n` of one CTA unless the field says pair."""

    m: int
    n: int
    k: int


class GainStep(_Part):
    """What one piece of machinery gains over doing without it.

    `gain` is the simpler time over the chosen one, less one; `error` the model's error of such a ratio.
    """

    what: Literal["tiling", "scheduler"]
    over: str
    chosen: str
    over_us: float
    chosen_us: float
    gain: float
    error: float
    inside_error: bool


class FlipValue(_Part):
    """A value whose plausible range changes the answer, and the experiment that settles it."""

    value: str
    kind: str
    low: float
    high: float
    at: float
    to: str
    experiment: str


class Conclusion(_Part):
    """The answer first.

    Attributes:
        applies: false when the job is one to leave alone.
        answer: the strongest of the five answers that hold; `answers` lists all of them.
        measure_these_two: pairs whose predicted difference is inside the model's error.
        tile_order: "given" or "longest-first".
        tile: of one CTA. pair_tile: of the two CTAs of a pair; null for cta_group 1.
        swap_ab: the kernel computes the transposed product; its M is the problem's N.
        predicted_us: kernel time without launch latency.
    """

    applies: bool
    answer: Answer
    answers: tuple[Answer, ...]
    summary: str
    use_cluster: bool
    cluster_shape: tuple[int, int, int]
    cta_group: int
    tile: TileShape | None
    pair_tile: TileShape | None
    num_stages: int | None
    scheduler: str
    tile_order: str
    raster: str | None
    swap_ab: bool
    predicted_us: float
    bound: str
    because: tuple[GainStep, ...]
    measure_these_two: tuple[str, ...]
    would_flip: tuple[FlipValue, ...]
    notes: tuple[str, ...]


class ResidencyRow(_Part):
    """Clusters of one size resident at once, for the chosen kernel's resources."""

    cluster_size: int
    resident_clusters: int
    resident_clusters_max: int
    ctas_per_sm: int
    sms_used: int
    portable: bool
    limited_by: str
    decides: str


class Contract(_Part):
    """Tables of the kernel's contract, in the words of PTX and CUTLASS."""

    launch: dict[str, Any]
    residency: tuple[ResidencyRow, ...]
    tile_map: dict[str, Any]
    traffic: dict[str, Any]
    sharing: Any
    dsmem: Any
    multicast: Any
    barriers: Any
    phases: Any
    slots: Any
    clc: Any
    mma: Any
    tmem: Any
    smem: Any
    roles: Any


class BoundRow(_Part):
    """One candidate for what bounds the kernel."""

    bound: str
    share: float | None
    evidence_for: str
    evidence_against: str
    decides: str


class OptionRow(_Part):
    """An option that was costed."""

    option: str
    tile: str
    cluster_shape: tuple[int, int, int]
    cta_group: int
    scheduler: str
    predicted_us: float
    chosen: bool


class Boundary(_Part):
    """All schedulers at one tile count."""

    tiles: int
    resident_clusters: int
    schedulers: dict[str, dict[str, float]]


class ScheduleTables(_Part):
    """Schedulers, boundaries, roofline, bound and options behind the conclusion.

    `schedulers` and `boundary` hold each scheduler's metrics; `kernel_us` is from the first cluster's
    start to the last one's end, fill and drain included.
    """

    tiles: int
    resident_clusters: int
    num_waves: float
    tile_cycles: dict[str, float]
    schedulers: dict[str, dict[str, float]]
    boundary: tuple[Boundary, ...]
    roofline: dict[str, Any]
    bound: tuple[BoundRow, ...]
    options: tuple[OptionRow, ...]


class Check(_Part):
    """A command that runs, and what in its output refutes the conclusion."""

    command: str
    refuted_if: str


class Validation(_Part):
    """The least that should be run before believing the plan."""

    correctness: tuple[Check, ...]
    boundary: tuple[Check, ...]
    experiment: tuple[Check, ...]


class Risk(_Part):
    """What may go wrong, when, what to do instead, and what allows the planned path."""

    risk: str
    when: str
    fallback: str
    enable_condition: str


class Plan(_Part):
    """A decision with its evidence, contract, validation and risks."""

    tilewright: str
    problem: dict[str, Any]
    device: dict[str, Any]
    conclusion: Conclusion
    evidence: tuple[Evidence, ...]
    contract: Contract
    schedule: ScheduleTables
    validation: Validation
    risks: tuple[Risk, ...]

    @classmethod
    def parse(cls, text: str, name: str) -> Plan:
        """The plan that `plan --json` printed.

        Args:
            name: of the file, for messages.
        Raises:
            BadInput: it is something else.
        """
        try:
            found = cls.model_validate_json(text)
            _ = found.device["name"], found.problem["kind"]
        except (ValidationError, KeyError) as error:
            first = str(error).splitlines()[0]
            raise BadInput(
                f"{name} is not the output of tilewright plan --json ({first})", given=name
            ) from None
        return found

    def part(self, path: str) -> Any:
        """One part as JSON data, named by its keys: "contract.barriers".

        Raises:
            UnknownName: lists the keys that the parent has.
        """
        found: Any = self.model_dump(mode="json")
        for depth, key in enumerate(keys := path.split(".")):
            known = found if isinstance(found, dict) else {}
            if key not in known:
                parent = ".".join(keys[:depth])
                raise UnknownName(f"part of {parent}" if parent else "part of a plan", key, known)
            found = known[key]
        return found

    def table(self, path: str) -> Records:
        """One part that is a table, for pandas, polars and notebooks: "contract.residency", "schedule.options".

        Raises:
            UnknownName: no such part.
            BadInput: it is no table.
        """
        return records_of(self.part(path), path)

    def _repr_html_(self) -> str:
        from tilewright.report.document import plan_document  # noqa: PLC0415  (only notebooks show)
        from tilewright.report.fragment import render_fragment  # noqa: PLC0415

        return render_fragment(plan_document(self))
