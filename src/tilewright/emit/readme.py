"""What an emitted folder's README says: the decision, the paths, the commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright import __version__
from tilewright.emit.sections import architectures

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tilewright.emit.configs import AbsentPath, AnyPath, KernelPath
    from tilewright.plan_model import Plan


def readme_values(
    title: str,
    plan: Plan,
    paths: Sequence[KernelPath],
    absent: Sequence[AbsentPath],
    constants: dict[str, Any],
) -> dict[str, str]:
    """The fields of templates/README.md."""
    chosen = plan.conclusion
    problem = constants["problem"]
    return {
        "title": title,
        "version": __version__,
        "product": str(plan.device["product"]),
        "summary": chosen.summary,
        "because": bullets(
            f"{step.chosen} instead of {step.over}: {step.chosen_us:.1f} us instead of {step.over_us:.1f} us, "
            f"{step.gain:+.1%} predicted with an error of {step.error:.0%}"
            for step in chosen.because
        )
        or "- nothing simpler was given up",
        "flips": bullets(
            f"{flip.value} at {flip.at:g} ({flip.kind}, plausible {flip.low:g} to {flip.high:g}) makes it {flip.to}"
            for flip in chosen.would_flip
        )
        or "- no value inside its plausible range",
        "paths": path_rows(paths, absent),
        "notes": bullets(
            f"{path.kind.name}: {note}"
            for path in paths
            for note in (*path.notes, *path.plan.conclusion.notes)
        )
        or "- none",
        "compile": compile_commands(paths),
        "nvcc": architectures(paths[0])[0].split()[0],
        "call": _call(constants),
        "shapes": _shapes(problem, constants["paths"][0]["k_step"]),
        "candidates": bullets(
            f"`{entry['name']}`: {entry['summary']}, {entry['predicted_us']:.1f} us predicted"
            for entry in constants["candidates"]
        )
        or "- no other option was costed that has a kernel",
        "fallbacks": bullets(
            f"{risk.risk}. {risk.fallback[:1].upper()}{risk.fallback[1:]}" for risk in plan.risks
        ),
    }


def bullets(rows: Iterable[str]) -> str:
    """A list, a row an entry; empty without rows."""
    return "\n".join(f"- {row}" for row in rows)


def path_rows(paths: Sequence[AnyPath], absent: Sequence[AbsentPath]) -> str:
    """The table of paths."""
    return "\n".join(
        [_row(path) for path in paths] + [f"| {name} | none | {why} | |" for name, why in absent]
    )


def compile_commands(paths: Sequence[AnyPath]) -> str:
    """One for all targets, then one for each."""
    targets = [arch.split()[0] for path in paths for arch in architectures(path)]
    return "\n".join(
        ["tilewright compile .", *(f"tilewright compile . --arch {t}" for t in targets)]
    )


def _row(path: AnyPath) -> str:
    where = " or ".join(".".join(map(str, pair)) for pair in path.capabilities)
    later = " or later" if path.kind.or_later else ""
    predicted = (
        "" if path.predicted_us is None else f"{path.predicted_us:.1f} us on {path.device.name}"
    )
    return (
        f"| {path.kind.name} | compute capability {where}{later} | {path.kind.instruction}: {path.what} | "
        f"{predicted} |"
    )


def _call(constants: dict[str, Any]) -> str:
    extras = "".join(f", {name}={name}" for name in ("c", "bias") if constants[f"has_{name}"])
    counts = ", counts=counts" if constants["problem"]["ragged"] != "none" else ""
    beta = ", beta=1.0" if constants["has_c"] else ""
    return f"d = gemm(a, b{counts}{extras}{beta})"


def _shapes(problem: dict[str, Any], k_step: int) -> str:
    if problem["ragged"] == "m":
        return "A [sum of counts, k], B [groups, n, k], D [sum of counts, n]; counts: rows of each group"
    if problem["ragged"] == "k":
        return (
            "A [m, sum of counts], B [n, sum of counts], D [groups, m, n]; counts: columns of each group, "
            f"multiples of {k_step}; an empty group's D is zeros"
        )
    return "A [m, k], B [n, k], D [m, n], or all three with a leading batch axis"
