"""The tables of docs/audit_peers.md: every finding on other people's kernels, by rule and language.

    python bench/write_audit_peers.py     # writes the tables, keeps what stands above each, marks what is new

Needs the dependency group `peers`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from peer_kernels import DOC, SECTION, audit_peer, compile_peers, warnings_of


def main() -> None:
    """Compile, audit and write."""
    with tempfile.TemporaryDirectory() as folder:
        kernels = compile_peers(Path(folder))
    found = warnings_of({name: audit_peer(name, ptx) for name, ptx in kernels.items()})
    groups: dict[tuple[str, str], dict[str, list[int]]] = {}
    for name, rule, line in found:
        of_kernel = groups.setdefault((rule, name.partition("_")[0]), {})
        of_kernel.setdefault(name, []).append(line)
    doc = DOC.read_text(encoding="utf-8")
    reasons = {(rule, language): reason for rule, language, reason, _ in SECTION.findall(doc)}
    head, _, _ = doc.partition("\n## ")
    parts = [head.rstrip() + "\n"]
    for (rule, language), by_kernel in sorted(groups.items()):
        reason = reasons.get((rule, language), "NOT EXPLAINED YET")
        rows = [
            f"| {name} | {', '.join(map(str, lines))} |"
            for name, lines in sorted(by_kernel.items())
        ]
        parts += [
            f"\n## {rule} in {language}\n\n{reason}\n\n| kernel | lines |\n|---|---|\n",
            "\n".join(rows),
            "\n",
        ]
    DOC.write_text("".join(parts), encoding="utf-8")
    print(f"{len(kernels)} kernels, {len(found)} findings in {len(groups)} groups")


if __name__ == "__main__":
    main()
