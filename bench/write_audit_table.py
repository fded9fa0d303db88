"""The table of rules in docs/audit.md: what ptxas 13.0 and the audit say of each violating kernel.

    python bench/write_audit_table.py     # prints it; paste it between the marks in docs/audit.md

ptxas: of the catalogue's violating kernels it rejects the four named here and accepts the rest.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

from tilewright.audit import audit_module
from tilewright.audit.rules import RULES
from tilewright.audit.run import load_rules
from tilewright.ptx import parse_ptx_file

PAIRS = Path(__file__).parent.parent / "tests" / "data" / "rules"
PTXAS_REJECTS = {"TC-04", "TC-04b", "TC-11b", "REG-01", "TC-21"}
DETECT = {"S": "static", "X": "execution", "S+X": "both"}


def pairs_of(rule: str) -> list[str]:
    """The cases of a rule that have a violating kernel."""
    names = (path.stem.removesuffix("_bad") for path in PAIRS.glob(f"{rule}*_bad.ptx"))
    return sorted(name for name in names if re.fullmatch(rf"{rule}[a-z]?", name))


def said(rule: str, pair: str) -> str:
    """What the audit says of one violating kernel."""
    report = audit_module(parse_ptx_file(PAIRS / f"{pair}_bad.ptx"))
    found = sorted({f.severity for f in report.findings if f.rule == rule})
    if found:
        return found[0]
    return "not decided" if any(n.rule == rule for n in report.not_decided) else "silent"


def rows() -> list[str]:
    """The table's lines."""
    load_rules()
    lines = ["| rule | detectable | what | ptxas 13.0 | audit |", "|---|---|---|---|---|"]
    with (PAIRS / "catalogue.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rule = row["id"]
            pairs = pairs_of(rule)
            what = RULES[rule].what if rule in RULES else ""
            ptxas = ", ".join("rejects" if p in PTXAS_REJECTS else "accepts" for p in pairs)
            audit = ", ".join(f"{said(rule, pair)}" for pair in pairs)
            if rule not in RULES:
                audit = "needs execution" if "X" in row["detect"] else "host side"
            lines.append(
                f"| {rule} | {DETECT[row['detect']]} | {what} | {ptxas or 'no kernel'} | {audit or 'no kernel'} |"
            )
    return lines


def main() -> None:
    """Print the table."""
    print("\n".join(rows()))


if __name__ == "__main__":
    main()
