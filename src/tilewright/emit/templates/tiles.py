"""Launch the tile function of kernel.cu under its scheduler.

    tiles = Tiles()                        # picks a path for this GPU; says which in .path, why in .why
    tiles(arguments, num_tiles)            # a device address, or an array whose address is handed over

`arguments` is what `tilewright_tile` gets. Needs cuda-core, cuda-bindings and numpy; NVRTC unless
`kernel.ARCH.cubin` lies beside this file. `python tiles.py` says what would run here.
"""

from __future__ import annotations

import struct
import sys
from typing import Any

import numpy as np
from arrays import DeviceArray, LaunchError, view
from paths import GRID_MAX, Kernel, Launch

TIMELINE = np.dtype(
    [("start_ns", "<u8"), ("end_ns", "<u8"), ("sm", "<u4"), ("cta", "<u4")], align=True
)
"""When a CTA was at a tile: one for each tile and each rank in it, rank fastest."""

BEGIN, END = "// >>> tile function\n", "// <<< tile function\n"


class Tiles(Kernel):
    """A tile function in the loop of a scheduler on one GPU.

    Args:
        timeline: a kernel that also records when and where each tile ran.
        tile: CUDA C++ of another tile function, which runs in place of the emitted one.
    """

    def __init__(self, *given: Any, timeline: bool = False, tile: str = "", **named: Any) -> None:
        self._timeline, self._tile = timeline, tile
        super().__init__(*given, **named)

    @property
    def is_changed(self) -> bool:
        """Another tile function or a timeline is no kernel.cu either."""
        return bool(self._timeline or self._tile) or super().is_changed

    def source_of(self, text: str) -> str:
        """What is compiled, from the text of kernel.cu."""
        text = super().source_of(text)
        if self._timeline:
            text = text.replace(
                "constexpr bool timeline = false;", "constexpr bool timeline = true;"
            )
        if (
            self._tile
        ):  # the emitted function stays under another name: it may have brought includes
            text = text.replace(BEGIN, "#define tilewright_tile emitted_tile\n" + BEGIN)
            text = text.replace(END, END + "#undef tilewright_tile\n" + self._tile)
        return text

    def bind(
        self,
        arguments: Any = 0,
        num_tiles: int | None = None,
        *,
        times: Any = None,
        stream: int = 0,
    ) -> Launch:
        """Prepare the launch.

        Args:
            arguments: a device address, or an array on the GPU.
            num_tiles: those of the plan unless given.
            times: a `timeline_array`, for a kernel with `timeline`.
        """
        count = int(self.constants["problem"]["num_tiles"]) if num_tiles is None else num_tiles
        if not 0 <= count <= GRID_MAX:
            raise LaunchError(f"{count} tiles; a launch takes 0 to {GRID_MAX}")
        if self._timeline != (times is not None):
            raise LaunchError(
                "a kernel with timeline needs times=timeline_array(…), and no other takes it"
            )
        where = self.place_tiles(count)
        address = arguments if isinstance(arguments, int) else view("arguments", arguments).pointer
        counter = (
            self.counter(stream) if self.numbers["scheduler"] == "dynamic_atomic" and count else 0
        )
        pointer = 0 if times is None else times.pointer
        packed = struct.pack("<3Qi4x", address, counter, pointer, count)
        return Launch(self, where, packed, None, (arguments, times))

    def __call__(
        self, arguments: Any = 0, num_tiles: int | None = None, *, stream: int = 0
    ) -> None:
        """Launch once on `stream`, a CUstream as an integer."""
        self.bind(arguments, num_tiles, stream=stream)(stream)

    def timeline_array(self, num_tiles: int) -> DeviceArray:
        """Zeroed room for the times of so many tiles, as bytes."""
        rows = num_tiles * self.numbers["cluster_size"]
        made = DeviceArray(self.cuda, (rows * TIMELINE.itemsize,), "bytes")
        self.cuda.zero(made.pointer, max(made.nbytes, 16), 0)
        return made


def read_times(times: DeviceArray) -> np.ndarray[Any, Any]:
    """`TIMELINE` rows, one a tile and rank, when all launches before have ended."""
    return times.numpy().view(TIMELINE)


def main() -> int:
    """Say what would run here."""
    try:
        tiles = Tiles()
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(tiles.describe(tiles.place_tiles(int(tiles.constants["problem"]["num_tiles"]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
