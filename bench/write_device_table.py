"""Write the fact table of docs/devices.md from the device files.

    python bench/write_device_table.py

The text around the table is kept; tests/null/test_device.py fails while the document is behind.
"""

from __future__ import annotations

from pathlib import Path

from tilewright.device import Device, load

DOC = Path(__file__).parent.parent / "docs" / "devices.md"
LETTER = {"documented": "D", "queried": "Q", "measured": "M", "derived": "C", "assumed": "A"}


def cell(device: Device, name: str) -> str:
    """Value and kind; a tilde where the value has a plausible range."""
    fact = device.facts.get(name)
    if fact is None:
        return "-"
    text = str(fact.value)
    if isinstance(fact.value, bool):
        text = "yes" if fact.value else "no"
    elif isinstance(fact.value, list):
        text = "+".join(map(str, fact.value))
    return f"{text} {LETTER[fact.kind]}" + ("~" if fact.plausible else "")


def render(text: str) -> str:
    """The document with the rows between the table's header and the next other line renewed."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("| `"))
    header = next(line for line in reversed(lines[:first]) if "---" not in line)
    devices = [load(name.strip(" `")) for name in header.strip("| ").split("|")[1:]]
    last = first + next(i for i, line in enumerate(lines[first:]) if not line.startswith("| `"))
    names = [n for n in Device.__dataclass_fields__ if any(n in d.facts for d in devices)]
    rows = [f"| `{n}` | " + " | ".join(cell(d, n) for d in devices) + " |" for n in names]
    return "\n".join([*lines[:first], *rows, *lines[last:]]) + "\n"


def main() -> None:
    """Write it."""
    DOC.write_text(render(DOC.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
