"""Every rule over every kernel of a module, and of a file as its reader knows it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilewright.audit.contract import KernelContract, compare_with_plan, recover_contract
from tilewright.audit.kernel import Kernel, Options
from tilewright.audit.locate import Baseline, Located, Locator, PlaceOf
from tilewright.audit.rules import RULES
from tilewright.ptx.finding import Finding, NotDecided
from tilewright.records import Records

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tilewright.ptx.nodes import Module

FAMILIES = (
    "clc", "clc_loop", "clc_stages", "clc_work", "clc_cluster", "mbarrier", "mbarrier_phase", "mbarrier_scope", "cluster", "cluster_copy", "tma", "tma_ring", "tma_bytes", "tma_store",
    "tcgen05", "tmem", "mma", "commit", "tensor_order", "wgmma", "launch", "named",
)  # fmt: skip


@dataclass(frozen=True)
class Report:
    """What one module's audit said, in the order of the text.

    Attributes:
        kernels: names of the functions that were read.
    """

    findings: tuple[Finding, ...]
    not_decided: tuple[NotDecided, ...]
    kernels: tuple[str, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that are errors."""
        return tuple(f for f in self.findings if f.severity == "error")

    def table(self) -> Records:
        """A row a finding, for pandas, polars and notebooks."""
        return Records(
            {
                "id": f.rule,
                "severity": f.severity,
                "file": f.span.file,
                "line": f.span.line,
                "message": f.message,
                "kernel": f.kernel,
                "other_line": f.other.line if f.other else None,
                "help": RULES[f.rule].help,
            }
            for f in self.findings
        )

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def load_rules() -> None:
    """Fill the registry; the family files register on import."""
    for family in FAMILIES:
        importlib.import_module(f"tilewright.audit.{family}")


def kernels_of(module: Module, options: Options) -> Iterator[Kernel]:
    """Every function with a body, one at a time: what is found out of one is large, and goes with it."""
    for function in module.functions:
        if function.body is not None:
            yield Kernel(module, function, options)


def audit_module(module: Module, options: Options | None = None) -> Report:
    """Apply every rule to every function with a body."""
    return _audit(module, options or Options())[0]


def _audit(module: Module, options: Options) -> tuple[Report, tuple[KernelContract, ...]]:
    load_rules()
    outcomes: dict[Finding | NotDecided, None] = {}  # a set in order
    contracts = []
    for kernel in kernels_of(module, options):
        for rule in RULES.values():
            outcomes.update(dict.fromkeys(rule.check(kernel)))
        contracts.append(recover_contract(kernel))
    findings = (each for each in outcomes if isinstance(each, Finding))
    undecided = (each for each in outcomes if isinstance(each, NotDecided))
    report = Report(
        tuple(sorted(findings, key=lambda f: (f.span.offset, f.rule))),
        tuple(sorted(undecided, key=lambda n: (n.span.offset, n.rule))),
        tuple(contract.kernel for contract in contracts),
    )
    return report, tuple(contracts)


@dataclass(frozen=True)
class Audited:
    """One file's audit, ready to print.

    Attributes:
        findings: those that no comment and no baseline silences.
        not_decided: with their places.
        differences: between the kernels' contracts and a plan's.
        file: name of the PTX, which lines of contracts are of.
        sources: texts by file name, as the places name them.
    """

    findings: tuple[Located, ...]
    not_decided: tuple[tuple[PlaceOf, NotDecided], ...]
    contracts: tuple[KernelContract, ...]
    differences: tuple[str, ...] = ()
    file: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)

    def table(self) -> Records:
        """A row a finding, as `audit --json` has them, for pandas, polars and notebooks."""
        from tilewright.audit.outputs import as_json  # noqa: PLC0415  (it knows this class)

        return Records(as_json([self])["findings"])

    def _repr_html_(self) -> str:
        from tilewright.audit.document import audit_document  # noqa: PLC0415  (only notebooks show)
        from tilewright.report.fragment import render_fragment  # noqa: PLC0415

        return render_fragment(audit_document(self))


def audit_text(
    module: Module,
    sources: Mapping[str, str],
    options: Options,
    baseline: Baseline | None = None,
    plan: dict[str, Any] | None = None,
) -> Audited:
    """Audit a module and put every outcome where its reader finds it.

    Args:
        sources: texts by file name, the PTX's own among them; see `Locator`.
        plan: what `tilewright plan --json` printed, to hold the kernels against.
    """
    report, contracts = _audit(module, options)
    locator = Locator(module, sources)
    located = [locator.locate(finding) for finding in report.findings]
    kept = [each for each in located if not locator.is_ignored(each)]
    differences = [
        f"{contract.kernel}: {line}"
        for contract in contracts
        for line in (compare_with_plan(contract, plan) if plan is not None else ())
    ]
    return Audited(
        tuple((baseline or Baseline(None)).fresh(kept)),
        tuple((locator.place(each.span), each) for each in report.not_decided),
        contracts,
        tuple(differences),
        module.span.file,
        sources,
    )
