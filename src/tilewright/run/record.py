"""A probe as data: what the driver said and what was measured, and the GPC sizes that follow."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from tilewright.topology import clusters_resident, recover_topology

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Counts:
    """Resident clusters of one kernel by cluster size (cuOccupancyMaxActiveClusters).

    Attributes:
        ctas_per_sm: of the same kernel launched without clusters.
        clusters: cluster size -> clusters on the chip; sizes that the driver refused are absent.
    """

    threads: int
    smem_bytes: int
    ctas_per_sm: int
    clusters: dict[int, int]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One quantity in one situation; the value is the median of the samples.

    Attributes:
        name: the fact of a device file that it serves.
        situation: what distinguishes it from others of that name, like "cluster 4".
    """

    name: str
    situation: str
    unit: str
    samples: tuple[float, ...]

    @property
    def value(self) -> float:
        """The median."""
        return median(self.samples)


@dataclass(frozen=True, slots=True)
class ProbeRecord:
    """Everything read from one GPU at one time.

    Attributes:
        driver, toolkit: versions of the driver and of the NVRTC that compiled the kernels.
        date: of the probe, ISO 8601, UTC.
        attributes: CU_DEVICE_ATTRIBUTE_…, in lower case without that prefix.
        cluster_size_max: cuOccupancyMaxPotentialClusterSize; 1 without clusters.
        one_cta_per_sm, tiny: counts of a kernel that fills an SM's shared memory and of one that takes
            none; None without clusters.
    """

    gpu: str
    compute_capability: tuple[int, int]
    driver: str
    toolkit: str
    date: str
    memory_bytes: int
    attributes: dict[str, int]
    cluster_size_max: int
    one_cta_per_sm: Counts | None
    tiny: Counts | None
    measurements: tuple[Measurement, ...]

    def measured(self, name: str) -> list[Measurement]:
        """Every situation in which a quantity was measured, in order."""
        return [m for m in self.measurements if m.name == name]

    def to_json(self) -> str:
        """The record as JSON, with the median beside the samples."""
        data = asdict(self)
        for entry, measurement in zip(data["measurements"], self.measurements, strict=True):
            entry["value"] = measurement.value
        return json.dumps(data, indent=2)

    @classmethod
    def from_json(cls, text: str) -> ProbeRecord:
        """What `to_json` wrote."""
        data: dict[str, Any] = json.loads(text)
        data["compute_capability"] = tuple(data["compute_capability"])
        for name in ("one_cta_per_sm", "tiny"):
            data[name] = _counts(data[name])
        data["measurements"] = tuple(
            Measurement(m["name"], m["situation"], m["unit"], tuple(m["samples"]))
            for m in data["measurements"]
        )
        return cls(**data)


def _counts(data: dict[str, Any] | None) -> Counts | None:
    if data is None:
        return None
    clusters = {int(size): count for size, count in data.pop("clusters").items()}
    return Counts(clusters=clusters, **data)


def slots_per_sm(counts: Counts, sm_count: int) -> int:
    """CTAs an SM of a launch with the cluster attribute: from the count of clusters of one CTA."""
    return counts.clusters[1] // sm_count


def gives_counts(gpc_sms: Sequence[int], counts: Counts, sm_count: int) -> bool:
    """Whether these GPC sizes give every recorded count."""
    slots = slots_per_sm(counts, sm_count)
    return all(
        clusters_resident(gpc_sms, slots, size) == resident
        for size, resident in counts.clusters.items()
    )


def find_gpc_sms(record: ProbeRecord, gpc_sms_max: int) -> list[tuple[int, ...]]:
    """GPC sizes that give the recorded counts of both kernels: one, several, or none.

    Eight CTAs an SM tell group sizes apart that one a SM does not (floor(8·sms/c)), so the tiny kernel's
    counts are solved and the other's must agree.
    """
    if record.tiny is None or record.one_cta_per_sm is None:
        return []
    sms = record.attributes["multiprocessor_count"]
    slots = slots_per_sm(record.tiny, sms)
    found = recover_topology(record.tiny.clusters, slots_per_sm=slots, gpc_sms_max=gpc_sms_max)
    return [groups for groups in found if gives_counts(groups, record.one_cta_per_sm, sms)]
