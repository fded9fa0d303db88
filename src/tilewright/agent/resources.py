"""What an agent can read beside the tools: device tables and rules, as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from tilewright.agent.kernels import explain_rule
from tilewright.agent.planning import device_facts
from tilewright.audit.catalogue import catalogue
from tilewright.device import known_devices, load
from tilewright.errors import UnknownName

if TYPE_CHECKING:
    from collections.abc import Iterator

DEVICES, RULE_TABLE = "tilewright://devices", "tilewright://rules"
TEMPLATES = {
    f"{DEVICES}/{{name}}": "Every value of one device with unit, kind and source.",
    f"{RULE_TABLE}/{{id}}": "One rule of the audit.",
}


class Resource(NamedTuple):
    """One thing to read."""

    uri: str
    name: str
    description: str


def list_resources() -> Iterator[Resource]:
    """The two tables, and each device."""
    yield Resource(DEVICES, "devices", "Names and products of the known devices.")
    yield Resource(RULE_TABLE, "rules", "Every rule of the audit: id, severity, what it says.")
    for name in known_devices():
        yield Resource(f"{DEVICES}/{name}", name, f"Every value of {load(name).product}.")


def read_resource(uri: str) -> str:
    """The JSON text of a resource.

    Raises:
        UnknownName: no such resource, device or rule.
    """
    table, _, name = uri.removeprefix("tilewright://").partition("/")
    if uri == DEVICES:
        return json.dumps({known: load(known).product for known in known_devices()})
    if uri == RULE_TABLE:
        rules = catalogue().values()
        return json.dumps([{"id": r.id, "severity": r.severity, "what": r.text} for r in rules])
    if uri.startswith("tilewright://") and table == "devices" and name in known_devices():
        facts = device_facts(load(name)).items()
        return json.dumps({fact: row.model_dump(mode="json") for fact, row in facts})
    if uri.startswith("tilewright://") and table == "rules" and name in catalogue():
        return explain_rule(name).model_dump_json()
    known = [
        *(each.uri for each in list_resources()),
        *(f"{RULE_TABLE}/{id_}" for id_ in catalogue()),
    ]
    raise UnknownName("resource", uri, known)
