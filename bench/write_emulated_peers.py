"""The tables of docs/emulate_peers.md: what ran in the emulator, and every finding by rule and language.

    python bench/write_emulated_peers.py [SCHEDULES]     # 2 unless given, as the test; some minutes each

Keeps what stands around the tables, and marks findings that are not explained yet. Needs the dependency group `peers`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from emulated_peers import DOC, RAN_HEADER, render_row
from peer_cases import LANE_0_RELEASES, make
from peer_kernels import SECTION, Warned, compile_peers, render_sections


def main(schedules: int) -> None:
    """Compile, run and write."""
    found: set[Warned] = set()
    rows = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name, ptx in compile_peers(folder).items():
            rows.append(render_row(name, ptx, make(folder, name)))
            print(rows[-1], end="", flush=True)
            for seed in range(schedules):
                found |= run(folder, name, seed, elects_first=name in LANE_0_RELEASES)
            if name in LANE_0_RELEASES:
                hang = make(folder, name).run(1).findings[-1]
                found.add((name, hang.rule, hang.span.line))
    doc = DOC.read_text(encoding="utf-8")
    head, _, rest = doc.partition(RAN_HEADER)
    _, _, rest = rest.partition("\n\n")
    section = SECTION.search(rest)
    between = rest[: section.start()] if section is not None else rest
    text = f"{head}{RAN_HEADER}{''.join(rows)}\n{between.rstrip()}\n{render_sections(found, doc)}"
    DOC.write_text(text, encoding="utf-8")
    print(f"{len(rows)} kernels, {len(found)} findings")


def run(folder: Path, name: str, seed: int, *, elects_first: bool) -> set[Warned]:
    """One schedule, which must end with the right result."""
    peer = make(folder, name)
    outcome = peer.run(seed, elects_first=elects_first)
    assert outcome.ended, (name, seed, outcome.findings[-1].message)
    peer.check()
    return {(name, each.rule, each.span.line) for each in outcome.findings}


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
