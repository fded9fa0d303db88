"""What other programs read: `audit --json` fits its published schema, `--sarif` what SARIF 2.1.0 asks.

The SARIF schema here is written from the standard (OASIS SARIF 2.1.0), for the objects that are used: what each
must have, and which properties it may have at all.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from audit_pairs import kernels, pairs, text_of
from tilewright.audit.json_model import AuditReport
from tilewright.audit.kernel import Options
from tilewright.audit.outputs import as_json, as_sarif
from tilewright.audit.run import audit_text
from tilewright.ptx import parse_ptx

DOCS = Path(__file__).parents[2] / "docs"
SCHEMA = json.loads((DOCS / "audit.schema.json").read_text(encoding="utf-8"))
MESSAGE = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}, "additionalProperties": False}  # 3.11  # fmt: skip
LEVEL = {"enum": ["none", "note", "warning", "error"]}  # 3.27.10
NUMBER = {"type": "integer", "minimum": 1}
LOCATION = {  # 3.28, 3.29, 3.4, 3.30
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "id": {"type": "integer", "minimum": -1},
        "message": MESSAGE,
        "physicalLocation": {
            "type": "object",
            "additionalProperties": False,
            "required": ["artifactLocation"],
            "properties": {
                "artifactLocation": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"uri": {"type": "string", "format": "uri-reference", "pattern": r"^[^ \\]+$"}},
                },
                "region": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["startLine"],
                    "properties": {"startLine": NUMBER, "startColumn": NUMBER},
                },
            },
        },
    },
}  # fmt: skip
RULE = {  # 3.49
    "type": "object",
    "additionalProperties": False,
    "required": ["id"],
    "properties": {
        "id": {"type": "string"},
        "shortDescription": MESSAGE,
        "help": MESSAGE,
        "helpUri": {"type": "string", "pattern": "^https://"},
        "defaultConfiguration": {"type": "object", "properties": {"level": LEVEL}},
    },
}
RESULT = {  # 3.27
    "type": "object",
    "additionalProperties": False,
    "required": ["message"],
    "properties": {
        "ruleId": {"type": "string"},
        "ruleIndex": {"type": "integer", "minimum": 0},
        "level": LEVEL,
        "message": MESSAGE,
        "locations": {"type": "array", "minItems": 1, "items": LOCATION},
        "relatedLocations": {"type": "array", "items": LOCATION, "uniqueItems": True},
    },
}
SARIF = {  # 3.13, 3.14, 3.18, 3.19
    "type": "object",
    "additionalProperties": False,
    "required": ["version", "runs"],
    "properties": {
        "$schema": {"type": "string", "pattern": r"^https://.*sarif.*2\.1\.0.*\.json$"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["tool"],
                "properties": {
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "results": {"type": "array", "items": RESULT},
                    "tool": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "additionalProperties": False,
                                "required": ["name"],
                                "properties": {
                                    "name": {"type": "string"},
                                    "version": {"type": "string"},
                                    "rules": {"type": "array", "items": RULE, "uniqueItems": True},
                                },
                            }
                        },
                    },
                },
            },
        },
    },
}
NAMES = [*(f"{name}_bad" for name in pairs()), *kernels()]


def outputs(name: str, file: str = "k.ptx") -> tuple[dict[str, Any], dict[str, Any]]:
    text = text_of(name)
    audited = audit_text(parse_ptx(text, file), {file: text}, Options())
    return as_json([audited]), as_sarif([audited])


def test_the_published_schema_is_current() -> None:
    """Made by `tilewright schema audit`."""
    assert AuditReport.model_json_schema() == SCHEMA


@pytest.mark.parametrize("name", NAMES)
def test_outputs_of_every_kernel_fit(name: str) -> None:
    report, log = outputs(name)
    jsonschema.validate(report, SCHEMA)
    jsonschema.validate(json.loads(json.dumps(log)), SARIF)
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rules[each["ruleIndex"]]["id"] for each in run["results"]] == [each["ruleId"] for each in run["results"]]  # fmt: skip
    assert len(run["results"]) == len(report["findings"])


@pytest.mark.parametrize(
    "change",
    [{"findings": None}, {"extra": 1}, {"findings": [{"id": "CLC-07"}]}, {"contract": [{"kernel": "k"}]}],
)  # fmt: skip
def test_the_schema_says_no(change: dict[str, Any]) -> None:
    report, _ = outputs("CLC-07_bad")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(report | change, SCHEMA)


@pytest.mark.parametrize(
    ("file", "uri"),
    [("my kernels/a#1.ptx", "my%20kernels/a%231.ptx"), ("/srv/k.ptx", "file:///srv/k.ptx")],
)
def test_a_path_becomes_a_uri(file: str, uri: str) -> None:
    _, log = outputs("CLC-07_bad", file)
    place = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == uri


def test_the_command_writes_both(tmp_path: Path) -> None:
    file, sarif = tmp_path / "bad kernel.ptx", tmp_path / "out.sarif"
    file.write_text(text_of("CLC-07_bad"), encoding="utf-8")
    command = [sys.executable, "-m", "tilewright", "audit", str(file), "--json", "--sarif", str(sarif)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, "a warning is no error"
    jsonschema.validate(json.loads(done.stdout), SCHEMA)
    jsonschema.validate(json.loads(sarif.read_text(encoding="utf-8")), SARIF)
