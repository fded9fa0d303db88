"""The opcode table: what PTX says of the instructions that the audit and the emulator reason about.

`opcodes.toml` holds the facts and explains its columns. Here they are found for one instruction: the longest entry that
the opcode begins with, changed by what its modifiers bring. An opcode without an entry has no facts, which is an answer
and not an error.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from tilewright.ptx.nodes import Vector

if TYPE_CHECKING:
    from tilewright.ptx.nodes import Instruction, Opcode, Operand

_SPACES = frozenset(
    {"shared", "shared::cta", "shared::cluster", "global", "local", "const", "param"}
    | {"param::entry", "param::func"}
)
_TARGET = re.compile(r"sm_(\d+)([af]?)")
_FAMILY_PTX = (8, 8)


@dataclass(frozen=True, slots=True)
class Role:
    """One operand: what it is for, how it is accessed (see `opcodes.toml`), and whether it may be missing.

    Attributes:
        condition: of an optional one, what tells that it is there: how a modifier begins, `{}` for a vector, or
            `""` when only the number of operands tells.
    """

    name: str
    access: str
    optional: bool
    condition: str


@dataclass(frozen=True, slots=True)
class OpcodeFacts:
    """The facts of one entry, or of one instruction once its modifiers are applied.

    Attributes:
        name: the entry, such as `cp.async.bulk.tensor`.
        section: the PTX ISA section that says so.
        ptx: least PTX ISA version.
        targets: sets of alternatives, one of each set must hold: `(("sm_90",), ("sm_100a", "sm_100f"))`.
    """

    name: str
    section: str
    ptx: tuple[int, int]
    targets: tuple[tuple[str, ...], ...]
    operands: tuple[Role, ...]
    space: str
    proxy: str
    effect: str


@dataclass(frozen=True, slots=True)
class _Entry:
    facts: OpcodeFacts
    when: tuple[dict[str, str], ...]


def find_facts(opcode: Opcode) -> OpcodeFacts | None:
    """What the table knows of `opcode` with its modifiers; None if it has no entry."""
    words = (opcode.root, *opcode.modifiers)
    table = _table()
    for length in range(len(words), 0, -1):
        entry = table.get(words[:length])
        if entry is not None:
            return _with_modifiers(entry, opcode.modifiers)
    return None


def operands_by_role(facts: OpcodeFacts, instruction: Instruction) -> dict[str, Operand]:
    """The operands of `instruction` under the names of their roles; a role that is not there has no key.

    Shorter than the operands written when the table does not know one of them.
    """
    operands = instruction.operands
    modifiers = instruction.opcode.modifiers
    expected = [role for role in facts.operands if _by_modifier(role, modifiers)]
    spare = len(operands) - sum(not _by_count(role) for role in expected)
    found: dict[str, Operand] = {}
    for role in expected:
        if len(found) == len(operands):
            break
        operand = operands[len(found)]
        if role.condition == "{}" and not isinstance(operand, Vector):
            continue
        if _by_count(role):
            if spare <= 0:
                continue
            spare -= 1
        found[role.name] = operand
    return found


def _by_modifier(role: Role, modifiers: tuple[str, ...]) -> bool:
    """Whether the modifiers leave room for `role`: false only if it hangs on one that is not written."""
    if role.condition in {"", "{}"}:
        return True
    return any(modifier.startswith(role.condition) for modifier in modifiers)


def _by_count(role: Role) -> bool:
    return role.optional and role.condition in {"", "{}"}


def unsupported_because(
    facts: OpcodeFacts, version: tuple[int, int] | None, target: str
) -> str | None:
    """Why a module of this PTX version and target may not use the instruction; None if it may.

    Args:
        version: of `.version`, as `Module.version` gives it; None leaves it unchecked.
        target: the architecture of `.target`, such as `sm_100a`.
    """
    if version is not None and version < facts.ptx:
        needed, given = (".".join(map(str, pair)) for pair in (facts.ptx, version))
        return f"{facts.name} needs PTX ISA {needed}; the module declares {given}"
    for alternatives in facts.targets:
        if not any(_satisfies(target, wanted, version) for wanted in alternatives):
            known = ", ".join(alternatives)
            return f"{facts.name} needs target {known}; the module declares {target}"
    return None


def state_spaces(opcode: Opcode) -> tuple[str, ...]:
    """The state spaces that the modifiers name, in order: destination before source."""
    return tuple(word for word in opcode.modifiers if word in _SPACES)


def _satisfies(target: str, wanted: str, version: tuple[int, int] | None) -> bool:
    """Whether `target` offers what `wanted` names: itself, a higher one, or one of the same family."""
    have, need = _TARGET.fullmatch(target), _TARGET.fullmatch(wanted)
    if have is None or need is None:
        return False
    have_number, need_number = int(have[1]), int(need[1])
    if need[2] == "":
        return have_number >= need_number
    if need[2] == "a":
        return target == wanted
    return (
        have[2] in {"a", "f"}
        and have_number >= need_number
        and have_number in _family(need_number)
        and (version is None or version >= _FAMILY_PTX)
    )


@cache
def _document() -> dict[str, Any]:
    text = resources.files("tilewright.ptx").joinpath("opcodes.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _family(number: int) -> frozenset[int]:
    families = _document()["families"].values()
    return next((frozenset(members) for members in families if number in members), frozenset())


@cache
def _table() -> dict[tuple[str, ...], _Entry]:
    when = _document()["when"]
    return {
        tuple(name.split(".")): _Entry(_facts(name, row), tuple(when.get(name, ())))
        for name, row in _document()["opcode"].items()
    }


def _facts(name: str, row: dict[str, str]) -> OpcodeFacts:
    return OpcodeFacts(
        name=name,
        section=row["section"],
        ptx=_version(row["ptx"]),
        targets=(_targets(row["target"]),),
        operands=_roles(row["operands"]),
        space=row["space"],
        proxy=row["proxy"],
        effect=row["effect"],
    )


def _with_modifiers(entry: _Entry, modifiers: tuple[str, ...]) -> OpcodeFacts:
    """The entry's facts, with every change whose modifiers are written; needs add up, the rest is replaced."""
    facts = entry.facts
    for change in entry.when:
        if not _has(change["has"], modifiers):
            continue
        if "ptx" in change:
            facts = replace(facts, ptx=max(facts.ptx, _version(change["ptx"])))
        if "target" in change:
            facts = replace(facts, targets=(*facts.targets, _targets(change["target"])))
        if "operands" in change:
            facts = replace(facts, operands=_roles(change["operands"]))
        if "effect" in change:
            facts = replace(facts, effect=change["effect"])
    return facts


def _has(wanted: str, modifiers: tuple[str, ...]) -> bool:
    """`a` written anywhere, `a.b` side by side, `a+b` both anywhere."""
    if "+" in wanted:
        return all(word in modifiers for word in wanted.split("+"))
    words = tuple(wanted.split("."))
    return any(
        modifiers[start : start + len(words)] == words
        for start in range(len(modifiers) - len(words) + 1)
    )


def _version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


def _targets(name: str) -> tuple[str, ...]:
    return tuple(_document()["targets"].get(name, [name]))


def _roles(text: str) -> tuple[Role, ...]:
    return tuple(map(_role, text.split()))


def _role(text: str) -> Role:
    name, _, rest = text.partition(":")
    access, mark, condition = rest.partition("?")
    return Role(name, access, bool(mark), condition)
