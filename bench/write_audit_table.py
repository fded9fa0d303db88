"""The table of rules in docs/audit.md: what ptxas 13.0 and the audit say of each violating kernel.

    python bench/write_audit_table.py     # prints it; paste it between the marks in docs/audit.md

ptxas: of the catalogue's violating kernels it rejects those named here and accepts the rest. What the audit says is what
the catalogue's cases expect; tests/null/test_audit_pairs.py holds them against it.
"""

from __future__ import annotations

from tilewright.audit.catalogue import Case, catalogue

PTXAS_REJECTS = {"TC-04", "TC-04b", "TC-11b", "REG-01", "TC-21", "CLC-19"}
NO_CASE = {"execution": "needs execution", "host": "host side"}


def outcome(case: Case) -> str:
    """What is said of one violating kernel by the rule that it is a case of."""
    said = next(each.outcome for each in case.expected if each.rule == case.rule)
    return f"{said} ({case.id})" if case.report else said


def rows() -> list[str]:
    """The table's lines."""
    lines = ["| rule | detectable | what | ptxas 13.0 | audit |", "|---|---|---|---|---|"]
    for entry in catalogue().values():
        ptxas = ["rejects" if case.id in PTXAS_REJECTS else "accepts" for case in entry.cases]
        audit = [outcome(case) for case in entry.cases] or [NO_CASE[entry.detect]]
        what = entry.text.partition("\n")[0]
        lines.append(
            f"| {entry.id} | {entry.detect} | {what} | {', '.join(ptxas) or 'no kernel'} | {', '.join(audit)} |"
        )
    return lines


def main() -> None:
    """Print the table."""
    print("\n".join(rows()))


if __name__ == "__main__":
    main()
