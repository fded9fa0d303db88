"""Every rule over every kernel of a module."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.audit.kernel import Kernel, Options
from tilewright.audit.rules import RULES
from tilewright.ptx.finding import Finding, NotDecided

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.ptx.nodes import Module

FAMILIES = ("clc", "mbarrier", "cluster", "tma", "tcgen05", "wgmma", "launch")


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


def load_rules() -> None:
    """Fill the registry; the family files register on import."""
    for family in FAMILIES:
        importlib.import_module(f"tilewright.audit.{family}")


def audit_module(module: Module, options: Options | None = None) -> Report:
    """Apply every rule to every function with a body."""
    load_rules()
    kernels = [
        Kernel(module, function, options or Options())
        for function in module.functions
        if function.body is not None
    ]
    outcomes = list(dict.fromkeys(_outcomes(kernels)))
    findings = [each for each in outcomes if isinstance(each, Finding)]
    undecided = [each for each in outcomes if isinstance(each, NotDecided)]
    return Report(
        tuple(sorted(findings, key=lambda f: (f.span.offset, f.rule))),
        tuple(sorted(undecided, key=lambda n: (n.span.offset, n.rule))),
        tuple(kernel.function.name for kernel in kernels),
    )


def _outcomes(kernels: list[Kernel]) -> Iterator[Finding | NotDecided]:
    for kernel in kernels:
        for each in RULES.values():
            yield from each.check(kernel)
