"""The file of results that a GPU gave: exact, and small enough to be kept."""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from micro.case import Array, Case

SEED = 0
"""Of the inputs on record."""


def packed(result: Array) -> dict[str, Any]:
    """A result as JSON: zlib and base64 of its bytes, little-endian."""
    return {
        "shape": list(result.shape),
        "dtype": result.dtype.str,
        "data": base64.b64encode(zlib.compress(result.tobytes(), 9)).decode(),
    }


def unpacked(row: dict[str, Any]) -> Array:
    """The result that `packed` packed."""
    data = zlib.decompress(base64.b64decode(row["data"]))
    return np.frombuffer(data, np.dtype(row["dtype"])).reshape(row["shape"])


def differences(case: Case, recorded: Array, found: Array) -> str:
    """What of `found` is not as recorded, or nothing: equal bits, or within the case's bound."""
    if case.bound is None:
        wrong = recorded != found
        shown_recorded, shown_found = recorded, found
    else:
        assert case.values is not None
        shown_recorded, shown_found = case.values(recorded), case.values(found)
        bound = case.bound(case.arrays(SEED), shown_recorded)
        same = (shown_recorded == shown_found) | (np.isnan(shown_recorded) & np.isnan(shown_found))
        with np.errstate(invalid="ignore"):
            wrong = ~(same | (np.abs(shown_recorded - shown_found) <= bound))
    if not wrong.any():
        return ""
    places = np.argwhere(wrong)
    first = [
        f"{tuple(map(int, at))}: recorded {_shown(shown_recorded[tuple(at)])}, emulated {_shown(shown_found[tuple(at)])}"
        for at in places[:8]
    ]
    return f"{len(places)} of {wrong.size} differ; " + "; ".join(first)


def _shown(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, np.floating) else f"{int(value):#x}"
