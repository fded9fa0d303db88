"""Emit: from a plan to a folder that a user compiles, tests, measures and ships.

    plan ─> configs ─> constants, sections, readme ─> folder
                └────> candidates

    configs.py      the paths: the plan's own, Hopper's and the portable one, as GemmConfigs
    sections.py     kernel.cu, a section a path
    constants.py    launch.json and launch.h: the launchers' numbers as data
    candidates.py   the options that the plan did not take, for the benchmark
    readme.py       what the folder's README says
    folder.py       emit(): all or nothing
    tiles.py        emit_tiles(): a tile function of the user's in a scheduler's loop
    templates/      the files that are the same in every folder

The folder imports nothing from here.
"""

from tilewright.emit.folder import Emitted, emit
from tilewright.emit.tiles import Around, emit_tiles

__all__ = ["Around", "Emitted", "emit", "emit_tiles"]
