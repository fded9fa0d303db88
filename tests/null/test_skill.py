"""The skill: valid by the Agent Skills specification, and true: every command in it runs and says what it says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from console import Done, console_blocks, missing, run, shell_commands

if TYPE_CHECKING:
    from collections.abc import Callable

SKILL = Path(__file__).parents[2] / "skills" / "tilewright"
TEXT = (SKILL / "SKILL.md").read_text(encoding="utf-8")
FRONT, BODY = re.fullmatch(r"---\n(.*?)\n---\n(.*)", TEXT, re.DOTALL).groups()  # type: ignore[union-attr]
REFERENCES = sorted(SKILL.glob("references/*.md"))
PROMPTS = json.loads((SKILL / "test-prompts.json").read_text(encoding="utf-8"))["prompts"]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The skill as an agent has it: a folder of its own."""
    return Path(shutil.copytree(SKILL, tmp_path / "tilewright"))


def front_matter() -> dict[str, str]:
    """Top-level scalars of the YAML; folded ones are joined."""
    found: dict[str, str] = {}
    key = ""
    for line in FRONT.splitlines():
        if line.startswith(" "):
            found[key] += " " + line.strip()
        else:
            key, _, value = line.partition(":")
            found[key] = value.strip().removeprefix(">-").strip()
    return {key: value.strip() for key, value in found.items()}


def test_the_front_matter_obeys_the_specification() -> None:
    """agentskills.io/specification: fields, lengths, and a name that is the folder's."""
    fields = front_matter()
    assert set(fields) <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}  # fmt: skip
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", fields["name"])
    assert fields["name"] == SKILL.name
    assert len(fields["name"]) <= 64
    assert 1 <= len(fields["description"]) <= 1024
    assert 1 <= len(fields["compatibility"]) <= 500
    assert len(BODY.splitlines()) < 500
    assert len(BODY) / 4 < 5000  # about four characters a token


@pytest.mark.parametrize(
    "term",
    ["thread block cluster", "DSMEM", "2-CTA", "persistent kernel", "tile scheduler", "CLC", "tail", "B200"],
)  # fmt: skip
def test_the_description_says_when(term: str) -> None:
    assert term in front_matter()["description"]


def test_links_lead_one_level_down() -> None:
    for page in [SKILL / "SKILL.md", *REFERENCES]:
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            assert (SKILL / target).is_file(), target
            assert target.count("/") <= 1


def test_every_command_of_the_steps_runs(copied: Path) -> None:
    """Nine steps, each with a command; exit code 1 where the shown kernel is broken on purpose."""
    [steps] = re.findall(r"## Nine steps\n(.*?)\n## ", BODY, re.DOTALL)
    assert len(re.findall(r"^\d\. \*\*", steps, re.MULTILINE)) == 9
    commands = shell_commands(BODY)
    assert len(commands) >= 12
    for command in commands:
        done = run(command, copied)
        broken = "audit assets/" in command
        assert done.code == (1 if broken else 0), (command, done.err)
        assert done.out.strip()
    assert (copied / "gemm" / "kernel.cu").is_file()


@pytest.mark.parametrize("page", REFERENCES, ids=lambda page: page.stem)
def test_the_quoted_output_is_the_real_one(page: Path, copied: Path) -> None:
    """Blocks that compile are for tests/toolkit/test_skill_compile.py."""
    blocks = console_blocks(page.read_text(encoding="utf-8"))
    here = [b for b in blocks if not any("tilewright compile" in s.command for s in b)]
    assert len(here) >= 3
    for shown in [each for block in here for each in block]:
        assert [line for line in shown.lines if line != "…"], shown.command
        done = run(shown.command, copied)
        assert not missing(shown, done), (shown.command, done.out)


def test_a_quote_that_is_not_there_is_seen(copied: Path) -> None:
    """The check above can fail: a changed number, a changed order."""
    [block, *_] = console_blocks(REFERENCES[0].read_text(encoding="utf-8"))
    done = run(block[0].command, copied)
    lines = block[0].lines
    changed = tuple(line.replace("65536", "65537") for line in lines)
    assert changed != lines
    assert missing(block[0]._replace(lines=changed), done)
    assert missing(block[0]._replace(lines=tuple(reversed(lines))), done)


def test_there_are_prompts_of_each_kind() -> None:
    kinds = [prompt["kind"] for prompt in PROMPTS]
    assert len(PROMPTS) >= 12
    assert set(kinds) == {"trigger", "no-trigger", "edge"}
    assert min(map(kinds.count, set(kinds))) >= 3
    assert len({prompt["id"] for prompt in PROMPTS}) == len(PROMPTS)


@pytest.mark.parametrize("prompt", PROMPTS, ids=[prompt["id"] for prompt in PROMPTS])
def test_the_prompt_is_answered(prompt: dict[str, Any], copied: Path) -> None:
    """Its commands run, and their output holds what the answer needs."""
    if prompt["kind"] == "no-trigger":
        [when_not] = re.findall(r"## When not to use it\n(.*?)\n## ", BODY, re.DOTALL)
        assert prompt["says"] in when_not
    else:
        assert prompt["commands"]
    for command in prompt["commands"]:
        done = run(command["run"], copied)
        assert done.code == command.get("exit", 0), done.err
        assert command["must_hold"]
        for wanted in command["must_hold"]:
            assert holds(wanted, done), (wanted, done.out[:2000], done.err)


def holds(wanted: dict[str, Any], done: Done) -> bool:
    """Whether an output holds one wanted thing: of its text, or of its JSON at a path."""
    if "at" not in wanted:
        return wanted["contains"] in done.out + done.err
    found = value_at(json.loads(done.out), wanted["at"])
    text = json.dumps(found)
    checks: dict[str, Callable[[Any], bool]] = {
        "equals": lambda right: bool(found == right),
        "at_least": lambda least: bool(found >= least),
        "at_most": lambda most: bool(found <= most),
        "contains": lambda part: part in text,
        "lacks": lambda part: part not in text,
    }
    asked = wanted.keys() - {"at"}
    assert asked <= checks.keys()
    return bool(asked) and all(checks[name](wanted[name]) for name in asked)


def value_at(found: Any, path: str) -> Any:
    """`a.b[name=x].c`: keys, and the one row of a list whose field is so."""
    for key, field, value in re.findall(r"([A-Za-z_]\w*)|\[(\w+)=([^\]]+)\]", path):
        if key:
            found = found[key]
        else:
            [found] = [row for row in found if str(row[field]) == value]
    return found


def test_install(tmp_path: Path) -> None:
    into = tmp_path / "project" / ".claude" / "skills"
    done = run(f"tilewright skill install {into}", tmp_path)
    assert (done.code, done.out) == (0, f"Written: {into / 'tilewright'}\n")
    assert sorted(p.name for p in into.iterdir()) == ["tilewright"]
    original = {p.relative_to(SKILL): p.read_bytes() for p in SKILL.rglob("*") if p.is_file()}
    installed = into / "tilewright"
    assert {p.relative_to(installed): p.read_bytes() for p in installed.rglob("*") if p.is_file()} == original  # fmt: skip
    again = run(f"tilewright skill install {into}", tmp_path)
    assert again.code == 2
    assert "--force replaces it" in again.err
    (installed / "SKILL.md").write_text("---\nname: tilewright\ndescription: old\n---\n")
    assert run(f"tilewright skill install {into} --force", tmp_path).code == 0
    assert (installed / "SKILL.md").read_text(encoding="utf-8") == TEXT


def test_install_never_replaces_what_is_not_the_skill(tmp_path: Path) -> None:
    mine = tmp_path / "tilewright" / "work.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    done = run(f"tilewright skill install {tmp_path} --force", tmp_path)
    assert done.code == 2
    assert "name another folder" in done.err
    assert mine.read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["tilewright"]
    nowhere = run(f"tilewright skill install {mine}/skills", tmp_path)
    assert nowhere.code == 2
    assert "cannot be written" in nowhere.err


def test_the_wheel_has_the_skill(tmp_path: Path) -> None:
    """Built as users get it; needs hatchling, which the test group brings."""
    build = "import sys, hatchling.build as b; print(b.build_wheel(sys.argv[1]))"
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", build, str(tmp_path)],
        cwd=SKILL.parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    with zipfile.ZipFile(tmp_path / done.stdout.split()[-1]) as wheel:
        names = {n for n in wheel.namelist() if n.startswith("tilewright/agent/skills/tilewright/")}
    wanted = {str(p.relative_to(SKILL)) for p in SKILL.rglob("*") if p.is_file()}
    assert {n.removeprefix("tilewright/agent/skills/tilewright/") for n in names} == wanted
