"""What a tool is: a name, what goes in and comes out as pydantic models, and a function that runs in a worker."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from tilewright.device import Device, from_tables, known_devices, load
from tilewright.errors import DeviceDataError, UnknownName
from tilewright.refusal import refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilewright.agent.folders import Folders


class Arguments(BaseModel):
    """Base of what goes in: frozen, and unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Answer(BaseModel):
    """Base of what comes out."""

    model_config = ConfigDict(frozen=True)


@dataclass(frozen=True)
class Call:
    """What a running tool has beside its arguments.

    Attributes:
        folders: what it may read and write.
        report: says what is being done now, for the caller's progress.
    """

    folders: Folders
    report: Callable[[str], None]

    def device(self, name: str) -> Device:
        """A device by name, or from a TOML file in an allowed folder.

        Raises:
            BadInput: the file's base is not a known device: a base that is a file could be anywhere.
        """
        if not name.endswith(".toml"):
            return load(name)
        try:
            tables = tomllib.loads(self.folders.read_text(name))
        except tomllib.TOMLDecodeError as error:
            raise DeviceDataError(
                f"{name}: not a readable TOML file: {error}", given=name
            ) from None
        if "base" in tables and tables["base"] not in known_devices():
            raise UnknownName("base device", str(tables["base"]), known_devices())
        return from_tables(tables, where=name)


@dataclass(frozen=True)
class Tool:
    """One tool.

    Attributes:
        run: from validated arguments to an instance of `answer`.
        writes: whether it may write files; otherwise it is announced as read-only.
    """

    name: str
    title: str
    description: str
    arguments: type[Arguments]
    answer: type[Answer]
    run: Callable[[Any, Call], Answer]
    writes: bool = False

    def __call__(self, arguments: dict[str, Any], call: Call) -> dict[str, Any]:
        """Validate, run, and give the answer as JSON data.

        Raises:
            TilewrightError: as the command line prints it.
        """
        try:
            given = self.arguments.model_validate(arguments)
        except ValidationError as error:
            raise refused(error, self.arguments) from None
        return self.run(given, call).model_dump(mode="json")
