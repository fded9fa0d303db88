"""The README's own examples: every command runs, the shown report is the true one."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COLUMNS = re.search(r"at (\d+) columns", README)


def run(command: str) -> subprocess.CompletedProcess[str]:
    program, *args = shlex.split(command)
    assert program == "tilewright"
    entry = [sys.executable, "-c", "from tilewright.cli import main; main()", *args]
    assert COLUMNS is not None
    env = {**os.environ, "COLUMNS": COLUMNS[1], "NO_COLOR": "1"}
    return subprocess.run(entry, capture_output=True, text=True, env=env, check=False)  # noqa: S603


def stripped(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def test_the_report_shown_is_the_true_one() -> None:
    """To renew it: run the command at that width and paste the part before "Evidence:"."""
    [block] = re.findall(r"```console\n\$ (.*?)```", README, flags=re.DOTALL)
    command, _, shown = block.partition("\n")
    done = run(command)
    assert done.returncode == 0, done.stderr
    answer = done.stdout.split("\nEvidence:")[0]
    assert stripped(shown) == stripped(answer)
    assert f".venv/bin/{command}" in README  # the first command of "Start" is the same


COMMANDS = re.findall(r"\| `(tilewright [^`]*)` \|", README)  # those that need no GPU


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_table(command: str) -> None:
    done = run(command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_python_example() -> None:
    [code] = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "bandwidth" in done.stdout


def test_the_validation_numbers_are_those_of_the_document() -> None:
    """docs/validation.md is generated and tested; the README repeats four of its numbers."""
    document = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
    [error] = re.findall(r"error of the 14 dense products: ([\d.]+)%", document)
    assert f"| {error} % mean absolute error |" in README
    [(signs, pairs, ratios)] = re.findall(
        r"set out to reproduce \| (\d+) of (\d+) \| (\d+) of", document
    )
    assert f"| {pairs} comparisons | {signs} signs right, {ratios} within 10 % |" in README


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), (page.name, target)
