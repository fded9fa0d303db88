"""The folders that an agent's calls may read and write, and nothing outside them.

A name is looked up from the first folder when it is relative. Links are followed before the check; the file is
then opened from the folder down, one component at a time and following none, so that a link put there in between
is an error and not a way out (where the system can open below a folder; Windows cannot, and there the real path is
opened). Only regular files, and only up to a size.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_FILE_BYTES = 32 * 2**20
"""Largest file that is read: a hundred times the PTX of a large GEMM."""

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER = getattr(os, "O_DIRECTORY", 0) | os.O_RDONLY | _NO_FOLLOW
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _NO_FOLLOW
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NO_FOLLOW


@dataclass(frozen=True)
class Folders:
    """What was allowed at start.

    Attributes:
        allowed: real paths of existing folders; empty allows no file at all.
    """

    allowed: tuple[Path, ...] = ()

    @classmethod
    def of(cls, names: tuple[Path, ...]) -> Folders:
        """The folders by their real paths.

        Raises:
            BadInput: one is no folder.
        """
        for name in names:
            if not name.is_dir():
                raise BadInput(f"--allow {name} is not a folder", given=name)
        return cls(tuple(name.resolve(strict=True) for name in names))

    def read_text(self, name: str) -> str:
        """The text of a file.

        Raises:
            BadInput: as `read_bytes`, or not UTF-8.
        """
        try:
            return self.read_bytes(name).decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadInput(f"{name} is not UTF-8 text: {error}", given=name) from None

    def read_bytes(self, name: str) -> bytes:
        """The content of a file.

        Raises:
            BadInput: outside, missing, not a regular file, or too large.
        """
        with self._opened(name, self._inside(name), _READ) as file:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise BadInput(f"{name} is not a regular file", given=name)
            with os.fdopen(os.dup(file), "rb") as stream:
                content = stream.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise BadInput(
                f"{name} has more than {MAX_FILE_BYTES} bytes",
                given=name,
                allowed=f"<= {MAX_FILE_BYTES} bytes",
            )
        return content

    def write(self, name: str, content: bytes) -> str:
        """Write a file into a folder that is there, and return its name."""
        with (
            self._opened(name, self._inside(name), _WRITE) as file,
            os.fdopen(os.dup(file), "wb") as stream,
        ):
            stream.write(content)
        return name

    def _inside(self, name: str) -> Path:
        if not self.allowed:
            raise BadInput(
                f"{name}: no folder was allowed at start; give the text itself, or start with --allow DIR",
                given=name,
                nearest="--allow DIR",
            )
        if "\0" in name:
            raise BadInput("a file name holds a zero byte", given=name.replace("\0", "\\0"))
        try:
            real = (self.allowed[0] / name).resolve()
        except (OSError, RuntimeError) as error:  # a loop of links, a name too long
            raise BadInput(f"{name} cannot be looked up: {error}", given=name) from None
        if not any(real.is_relative_to(folder) for folder in self.allowed):
            inside = ", ".join(map(str, self.allowed))
            raise BadInput(
                f"{name} is outside the folders allowed at start: {inside}",
                given=name,
                allowed=inside,
            )
        return real

    @contextmanager
    def _opened(self, name: str, real: Path, flags: int) -> Iterator[int]:
        """A descriptor of `real`, reached from its allowed folder without following a link."""
        folder = next(f for f in self.allowed if real.is_relative_to(f))
        parts = real.relative_to(folder).parts
        opened: list[int] = []
        try:
            if os.open not in os.supports_dir_fd:
                opened.append(os.open(real, flags | getattr(os, "O_BINARY", 0), 0o644))
            else:
                opened.append(os.open(folder, _FOLDER))
                for part in parts[:-1]:
                    opened.append(os.open(part, _FOLDER, dir_fd=opened[-1]))
                last = parts[-1] if parts else "."
                opened.append(os.open(last, flags, 0o644, dir_fd=opened[-1]))
        except OSError as error:
            for descriptor in opened:
                os.close(descriptor)
            raise BadInput(f"{name} cannot be opened: {error.strerror}", given=name) from None
        try:
            yield opened[-1]
        finally:
            for descriptor in opened:
                os.close(descriptor)
