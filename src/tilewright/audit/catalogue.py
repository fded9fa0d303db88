"""The catalogue of rules as Markdown cases: what each rule says, and how a clean kernel is changed to break it.

One file a family in `cases/`. A rule is a heading, a case a heading below it:

    ## CLC-07: error, static

    Coordinates are read only where is_canceled held for the same handle.

    ### CLC-07

    `clc_kernel`: CLC-07 warning in line 83.

    (a ```diff block from the clean kernel to the violating one)

After the severity stands how a break can be found: static, execution, both, or host (in what the host does, of which no
kernel speaks). The clean kernels are the repository's `tests/data/rules/*.ptx`; the differences alone are in the package,
for `audit --explain`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Literal, cast

from tilewright.audit.sections import links

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.rules import Rule

Detect = Literal["static", "execution", "both", "host"]
FOUND = {
    "static": "by reading the PTX",
    "both": "by reading the PTX where the case is plain, else by execution",
    "execution": "by execution in general; what reading the PTX shows is reported",
    "host": "not in a kernel: it is a rule of host code",
}
_RULE = re.compile(r"(\S+): (\w+), (\w+)\n\n(.*?)\s*(?=^### |\Z)", re.DOTALL | re.MULTILINE)
_CASE = re.compile(
    r"^### (\S+)\n\n(?:([^`\n]+)\n)?`(\w+)`: ([^\n]+)\.\n\n```diff\n(.*?)^```",
    re.DOTALL | re.MULTILINE,
)
_FINDING = re.compile(r"(\S+) (error|warning|note|not decided) in lines? ([\d, ]+)")
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")


@dataclass(frozen=True)
class Expected:
    """What the audit says of a violating kernel, by one rule."""

    rule: str
    outcome: str
    lines: tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """One way to break a rule.

    Attributes:
        id: the rule's with a letter, or that of a public report.
        report: where it happened; empty for cases made up.
        kernel: the clean kernel.
        expected: of the violating kernel.
        diff: from the clean kernel to the violating one, hunks of a unified difference.
    """

    id: str
    rule: str
    report: str
    kernel: str
    expected: tuple[Expected, ...]
    diff: tuple[str, ...]

    def violating(self, clean: str) -> str:
        """The clean kernel's text with the change made.

        Raises:
            ValueError: if the text is not the one that the difference was made from.
        """
        old, new = clean.splitlines(), list[str]()
        at = 0
        for line in self.diff:
            if hunk := _HUNK.match(line):
                start = int(hunk[1]) - (hunk[2] != "0")
                new += old[at:start]
                at = start
                continue
            if line[0] != "+":
                if at >= len(old) or old[at] != line[1:]:
                    raise ValueError(
                        f"case {self.id}: line {at + 1} of {self.kernel} is not {line[1:]!r}"
                    )
                at += 1
            if line[0] != "-":
                new.append(line[1:])
        return "\n".join([*new, *old[at:]]) + "\n"

    def excerpt(self, *, violating: bool) -> Iterator[str]:
        """The changed places of one of the two kernels, those that only declare registers left out."""
        drop = "-" if violating else "+"
        for i, hunk in enumerate(self._places()):
            yield from ["..."][: i > 0]
            yield from (
                line[1:].replace("\t", "    ")
                for line in hunk
                if line[0] != drop and not line.endswith("inline asm")
            )

    def _places(self) -> Iterator[list[str]]:
        hunks: list[list[str]] = []
        for line in self.diff:
            if _HUNK.match(line):
                hunks.append([])
            else:
                hunks[-1].append(line)
        for hunk in hunks:
            changed = [line for line in hunk if line[0] in "+-"]
            if not all(re.match(r".\s*\.reg\s", line) for line in changed):
                yield hunk


@dataclass(frozen=True)
class Entry:
    """One rule of the catalogue, whether or not the audit has a check for it."""

    id: str
    severity: str
    detect: Detect
    text: str
    cases: tuple[Case, ...]


@cache
def catalogue() -> dict[str, Entry]:
    """Every rule, in order."""
    found: dict[str, Entry] = {}
    folder = files("tilewright.audit") / "cases"
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.name.endswith(".md"):
            for entry in _entries(path.read_text(encoding="utf-8")):
                found[entry.id] = entry
    return found


def _entries(text: str) -> Iterator[Entry]:
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        match = _RULE.match(section)
        if match is None:
            raise ValueError(f"no rule begins with {section[:40]!r}")
        cases = tuple(_case(match[1], case) for case in _CASE.finditer(section))
        yield Entry(match[1], match[2], cast("Detect", match[3]), match[4], cases)


def _case(rule: str, match: re.Match[str]) -> Case:
    expected = tuple(
        Expected(each[1], each[2], tuple(map(int, each[3].split(", "))))
        for each in _FINDING.finditer(match[4])
    )
    return Case(match[1], rule, (match[2] or "").rstrip("."), match[3], expected, tuple(match[5].splitlines()))  # fmt: skip


def explain(entry: Entry, rule: Rule | None) -> Iterator[str]:
    """A rule for its reader: what it says, where it stands, how a break is found, and what one looks like.

    Args:
        rule: its check; None where the audit has none.
    """
    yield f"{entry.id} ({entry.severity}): {entry.text.partition(chr(10))[0]}"
    if rule is None:
        yield from (line for line in entry.text.splitlines()[1:] if line)
        yield f"found: {FOUND['host']}" if entry.detect == "host" else "found: needs execution"
        return
    yield f"help: {rule.help}"
    for section, link in zip(rule.section.split(", "), links(rule.section), strict=True):
        yield f"source: PTX ISA {section}: {link}"
    yield f"found: {FOUND[entry.detect]}"
    for case in entry.cases[:1]:
        said = "; ".join(
            f"{each.rule} {each.outcome}, line {', '.join(map(str, each.lines))}"
            for each in case.expected
        )
        yield from ["", f"violating, from {case.kernel}.ptx of the tests ({said}):"]
        yield from (f"    {line}" for line in case.excerpt(violating=True))
        yield from ["", "correct:"]
        yield from (f"    {line}" for line in case.excerpt(violating=False))
    if len(entry.cases) > 1:
        more = (
            f"{case.id} ({case.report})" if case.report else case.id for case in entry.cases[1:]
        )
        yield from ["", f"more cases, in audit/cases of the package: {', '.join(more)}"]
