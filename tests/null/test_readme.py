"""Examples of the README and of the pages: every command runs, what is shown is what comes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
COLUMNS = re.search(r"at (\d+) columns", README)


def run(command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    program, *args = shlex.split(command)
    assert program == "tilewright"
    entry = [sys.executable, "-c", "from tilewright.cli import main; main()", *args]
    assert COLUMNS is not None
    env = {**os.environ, "COLUMNS": COLUMNS[1], "NO_COLOR": "1"}
    return subprocess.run(entry, capture_output=True, text=True, env=env, check=False, cwd=cwd)  # noqa: S603


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


NEEDS_CUDA = ("bench", "calibrate", "compile", "probe", "run")


def consoles(page: Path) -> list[tuple[str, list[str]]]:
    """The commands of a page's console blocks that need no CUDA, with what they are shown to print."""
    text = page.read_text(encoding="utf-8")
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            if command.split()[1] not in NEEDS_CUDA:
                found.append((command, stripped(shown)))
    return found


def is_shown(shown: list[str], printed: list[str]) -> bool:
    """Whether the lines shown are those printed; a line "…" stands for any number of them."""
    if not shown:
        return not printed
    if shown[0] == "…":
        return any(is_shown(shown[1:], printed[n:]) for n in range(len(printed) + 1))
    return bool(printed) and shown[0] == printed[0] and is_shown(shown[1:], printed[1:])


@pytest.mark.parametrize("page", [p for p in PAGES if consoles(p)], ids=lambda page: page.stem)
def test_what_a_page_shows_is_what_comes(page: Path, tmp_path: Path) -> None:
    (tmp_path / "tests").symlink_to(ROOT / "tests")  # pages name files as from the root
    for command, shown in consoles(page):
        done = run(command, tmp_path)
        assert done.returncode in {0, 1}, done.stderr
        assert is_shown(shown, stripped(done.stdout)), f"$ {command}\n{done.stdout}"


def test_a_page_that_shows_something_else_is_seen() -> None:
    printed = ["one", "two", "three"]
    assert is_shown(["…", "two", "…"], printed)
    assert is_shown(["one", "…", "three"], printed)
    assert not is_shown(["one", "three"], printed)
    assert not is_shown(["…", "two"], printed)
    assert not is_shown([], printed)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if "```python" in p.read_text(encoding="utf-8")], ids=lambda p: p.stem
)
def test_python_of_a_page_prints_what_its_comments_say(page: Path, tmp_path: Path) -> None:
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    for code in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        for comment in re.findall(r"^ *print\(.*\)  # (?:…/)?(.*)$", code, flags=re.MULTILINE):
            assert comment in done.stdout


def test_every_page_is_in_the_site() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in PAGES:
        assert f": {page.relative_to(ROOT / 'docs')}\n" in nav, page


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
    for page in [ROOT / "README.md", *PAGES]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            place = (page.parent / target).resolve()
            assert place.exists(), (page.name, target)
            if page in PAGES:  # the site has nothing from outside its folder
                assert place.is_relative_to(ROOT / "docs"), (page.name, target)
