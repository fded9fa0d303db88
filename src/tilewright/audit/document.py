"""A recovered contract as headings and tables, in the words of the plan's report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.report.document import Block, Bullets, Code, Heading, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.contract import BarrierRow, KernelContract, Party
    from tilewright.audit.run import Audited

UNKNOWN = "unknown"


def audit_document(audited: Audited) -> Iterator[Block]:
    """The findings of one file with their lines, then each kernel's contract."""
    from tilewright.audit.outputs import render_text  # noqa: PLC0415  (it knows the rules)

    *lines, summary = render_text([audited])
    yield Heading(f"Audit: {summary}")
    if lines:
        yield Code("\n".join(lines))
    if audited.differences:
        yield Bullets(tuple(f"differs from the plan: {each}" for each in audited.differences))
    for contract in audited.contracts:
        yield from contract_document(contract)


def contract_document(contract: KernelContract) -> Iterator[Block]:
    """The barrier ledger, the CLC loop and what else the text says."""
    yield Heading(f"Contract of {contract.kernel}")
    shape = contract.cluster_shape
    group, columns = contract.cta_group, contract.tmem_columns
    facts = [
        f"cluster: {', '.join(map(str, shape)) if shape else UNKNOWN}",
        f"scheduler: {contract.scheduler}",
    ]
    if group is not None:
        facts.append(f"tcgen05: cta_group {group}, {columns or UNKNOWN} TMEM columns")
    yield Bullets(tuple(facts))
    if contract.barriers:
        yield Heading("Barrier ledger", 2)
        yield Table(
            ("barrier", "depth", "arrive count", "tx bytes", "arrives", "completes", "waits"),
            tuple(_cells(row) for row in contract.barriers),
            frozenset({1, 2}),
        )
    if contract.clc:
        yield Heading("CLC loop", 2)
        yield Bullets(contract.clc)
    if contract.dsmem:
        yield Heading("DSMEM", 2)
        yield Bullets(contract.dsmem)


def _cells(row: BarrierRow) -> tuple[str, ...]:
    return (
        row.barrier,
        str(row.depth or UNKNOWN),
        str(row.arrive_count or UNKNOWN),
        ", ".join(map(str, row.tx_bytes)) or "none",
        "; ".join(map(_party, row.arrives)) or "none",
        "; ".join(map(_party, row.completes)) or "none",
        "; ".join(map(_party, row.waits)) or "none",
    )


def _party(party: Party) -> str:
    most = "" if party.exact else "at most "
    threads = party.threads
    who = (
        f"{threads[0]} a CTA"
        if len(set(threads)) == 1
        else "/".join(map(str, threads)) + " by rank"
    )
    mask = f", mask {'/'.join(hex(m) for m in dict.fromkeys(party.mask))}" if party.mask else ""
    remote = ", remote" if party.remote else ""
    lines = ", ".join(map(str, party.lines[:4])) + (", …" if len(party.lines) > 4 else "")
    return f"{party.instruction} by {most}{who}{mask}{remote} (line {lines})"
