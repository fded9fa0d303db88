"""The tables of docs/audit_peers.md: every finding on other people's kernels, by rule and language.

    python bench/write_audit_peers.py     # writes the tables, keeps what stands above each, marks what is new

Needs the dependency group `peers`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from peer_kernels import DOC, audit_peer, compile_peers, render_sections, warnings_of


def main() -> None:
    """Compile, audit and write."""
    with tempfile.TemporaryDirectory() as folder:
        kernels = compile_peers(Path(folder))
    found = warnings_of({name: audit_peer(name, ptx) for name, ptx in kernels.items()})
    doc = DOC.read_text(encoding="utf-8")
    head, _, _ = doc.partition("\n## ")
    DOC.write_text(f"{head.rstrip()}\n{render_sections(found, doc)}", encoding="utf-8")
    print(f"{len(kernels)} kernels, {len(found)} findings")


if __name__ == "__main__":
    main()
