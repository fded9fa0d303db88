"""Evidence: every number that a plan rests on, with how it is known.

Facts of the device bring their kind and source along. Constants of the model and predictions are listed
the same way, so that a reader can tell a datasheet from a guess.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from tilewright import candidates, cost, decide, traffic
from tilewright.device import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tilewright.device import Device


class Evidence(BaseModel):
    """One number.

    `used_for` names the parts of the plan that rest on it.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    value: Any
    unit: str
    kind: Kind
    source: str
    used_for: str


def from_device(device: Device, used: Mapping[str, str]) -> list[Evidence]:
    """Device facts by name -> what they were used for. Unknown ones are left to `unknown`."""
    found = []
    for name, purpose in used.items():
        fact = device.facts.get(name)
        if fact is None:
            continue
        source = f"{fact.source}. {fact.note}" if fact.note else fact.source
        found.append(
            Evidence(
                name=f"{device.name}.{name}",
                value=fact.value,
                unit=fact.unit,
                kind=fact.kind,
                source=source,
                used_for=purpose,
            )
        )
    return found


def unknown(device: Device, used: Iterable[str]) -> list[str]:
    """Names among `used` that nobody has a source for on this device."""
    return [name for name in used if name not in device.facts]


def derived(name: str, value: Any, unit: str, source: str, used_for: str) -> Evidence:
    """A number that this plan computed; `source` is the formula."""
    return Evidence(
        name=name, value=value, unit=unit, kind="derived", source=source, used_for=used_for
    )


def constants() -> list[Evidence]:
    """Constants of the model, none of them a device's."""

    def assumed(name: str, value: float, unit: str, source: str, used_for: str) -> Evidence:
        return Evidence(
            name=name, value=value, unit=unit, kind="assumed", source=source, used_for=used_for
        )

    return [
        assumed(
            "model.interference",
            cost.INTERFERENCE,
            "exponent",
            "p-norm over the demands of a stage; plausible 8 to infinity",
            "cycles a stage",
        ),
        assumed(
            "model.hbm_interference",
            cost.HBM_INTERFERENCE,
            "exponent",
            "p-norm between HBM and the rest of a stage; plausible 2 to 16",
            "cycles a stage",
        ),
        Evidence(
            name="model.l2_usable",
            value=traffic.L2_USABLE,
            unit="fraction of L2",
            kind="derived",
            source="vllm-project/vllm#55180: the raster order flips at 14 MiB on a 24 MiB L2; plausible 0.5 to 1",
            used_for="HBM traffic, raster order",
        ),
        assumed(
            "model.worth",
            candidates.WORTH,
            "relative gain",
            "a gain under it does not pay for added machinery",
            "the choice",
        ),
        Evidence(
            name="model.tiling_error",
            value=decide.TILING_ERROR,
            unit="relative",
            kind="measured",
            source="median error of predicted ratios against published ones, docs/validation.md",
            used_for="measure-these-two",
        ),
        Evidence(
            name="model.scheduler_error",
            value=decide.SCHEDULER_ERROR,
            unit="relative",
            kind="measured",
            source="order of schedulers on an H200, docs/validation.md",
            used_for="measure-these-two",
        ),
    ]
