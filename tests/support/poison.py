"""Problems that end or hold up the process that plans them; importable there, so not in a test module."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Poison:
    """Planning asks for `groups` or any other attribute, and that is the end."""

    seconds: float = 0.0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.seconds:
            time.sleep(self.seconds)
            raise AttributeError(name)
        os._exit(9)
