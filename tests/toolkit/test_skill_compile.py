"""Quotes of the skill's references that need NVRTC: a kernel emitted, compiled and audited."""

from __future__ import annotations

from pathlib import Path

import pytest

from console import console_blocks, missing, run

REFERENCES = sorted((Path(__file__).parents[2] / "skills" / "tilewright").glob("references/*.md"))


@pytest.mark.toolkit
def test_the_quoted_output_is_the_real_one(tmp_path: Path) -> None:
    blocks = [block for page in REFERENCES for block in console_blocks(page.read_text("utf-8"))]
    compiled = [b for b in blocks if any("tilewright compile" in s.command for s in b)]
    assert compiled
    for shown in [each for block in compiled for each in block]:
        done = run(shown.command, tmp_path)
        assert done.code == 0, (shown.command, done.err)
        assert not missing(shown, done), (shown.command, done.out)
