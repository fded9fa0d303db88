"""The skill folder: `skills/tilewright` of the source, packed into the wheel beside this file."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tilewright.errors import BadInput

NAME = "tilewright"


def skill_folder() -> Path:
    """The skill as it was installed with the package, or as it stands in a checkout."""
    packed = Path(__file__).parent / "skills" / NAME
    return packed if packed.is_dir() else Path(__file__).parents[3] / "skills" / NAME


def install_skill(into: Path, *, force: bool = False) -> Path:
    """Copy the skill into a folder of skills and return where it went: `into`/tilewright.

    Args:
        into: like .claude/skills or .agents/skills; made where it is missing.
        force: replace what is there, if it is this skill.
    Raises:
        BadInput: something is there already, or the folder cannot be written; nothing is written half.
    """
    target = into / NAME
    if target.exists() and not (force and is_this_skill(target)):
        nearest = "--force replaces it" if is_this_skill(target) else "name another folder"
        raise BadInput(f"{target} exists; {nearest}", given=target, nearest=nearest)
    try:
        into.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=into, prefix=f".{NAME}-") as scratch:
            fresh, old = Path(scratch) / "new", Path(scratch) / "old"
            shutil.copytree(skill_folder(), fresh)
            if target.exists():
                target.rename(old)
            fresh.rename(target)
    except OSError as error:
        raise BadInput(f"{into} cannot be written: {error.strerror}", given=into) from None
    return target


def is_this_skill(folder: Path) -> bool:
    """Whether a folder holds a version of this skill."""
    try:
        text = (folder / "SKILL.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return f"\nname: {NAME}\n" in text.partition("\n---\n")[0] + "\n"
