"""Rules of the launch: cluster directives, masks, setmaxnreg, elect.sync and dependent launches.

Lines are those of the PTX, read by hand.
"""

from __future__ import annotations

import re
from functools import partial

import pytest

from audit_pairs import edited, errors_of, said, text_of
from tilewright.audit.kernel import Options

OURS = ("CLU-", "REG-", "EL-", "PDL-")
errors = partial(errors_of, OURS)
BLOCK = ".reqntid 128, 1, 1"
EDITS: list[tuple[str, list[tuple[str, str]], str, list[tuple[str, int]]]] = [
    # cluster
    ("CLU-13_bad", [("mov.u32 %r4, 1;", "mov.u32 %r4, 0;")], "CLU-13", []),
    ("CLU-13_bad", [(BLOCK, BLOCK + "\n.explicitcluster")], "CLU-13", []),
    ("CLU-16_ok", [(".explicitcluster", ""), (".reqnctapercluster 2, 1, 1", "")], "CLU-13", [("warning", 36)]),
    ("CLU-14_ok", [("8, 1, 1", "4, 4, 1")], "CLU-14", [("warning", 8)]),
    ("CLU-14_ok", [("8, 1, 1", "4, 4, 2")], "CLU-14", [("error", 8)]),
    ("CLU-14_ok", [(".explicitcluster", ".maxclusterrank 8")], "CLU-14", [("error", 7)]),
    ("CLU-14_ok", [(".reqnctapercluster 8, 1, 1", ".blocksareclusters")], "CLU-14", [("error", 8)]),
    ("CLU-16_ok", [("0x3", "0x5")], "CLU-16", [("warning", 36)]),
    ("CLU-16_ok", [("0x3", "0x2")], "CLU-16", []),
    # registers
    ("REG-01_ok", [("setmaxnreg.dec.sync.aligned.u32 40", "setmaxnreg.dec.sync.aligned.u32 44")], "REG-01", [("error", 658)]),
    ("REG-01_ok", [("setmaxnreg.dec.sync.aligned.u32 40", "setmaxnreg.dec.sync.aligned.u32 264")], "REG-01", [("error", 658)]),
    ("EL-01_ok", [("\telect.sync", "\tsetmaxnreg.dec.sync.aligned.u32 40;\n\telect.sync")], "REG-02", [("error", 19)]),
    ("CLU-14_ok", [("ret;", "setmaxnreg.inc.sync.aligned.u32 232; ret;"), (BLOCK, ".reqntid 384, 1, 1")], "REG-02", [("error", 18)]),
    ("CLU-14_ok", [("ret;", "setmaxnreg.inc.sync.aligned.u32 168; ret;"), (BLOCK, ".reqntid 384, 1, 1")], "REG-02", []),
    ("CLU-14_ok", [("ret;", "setmaxnreg.dec.sync.aligned.u32 168; ret;"), (BLOCK, BLOCK + "\n.maxnreg 128")], "REG-02", [("error", 19)]),
    # elect
    ("EL-01_ok", [("0xffffffff", "0")], "EL-01", [("error", 19)]),
    ("EL-01_bad", [("0xffffffff", "0xffff")], "EL-01", []),
    # dependent launches
    ("PDL-01_ok", [("griddepcontrol.wait;", "ld.global.u32 %r2, [%rd0]; griddepcontrol.wait;")], "PDL-01", [("warning", 18)]),
    ("PDL-01_bad", [("griddepcontrol.launch_dependents;", "")], "PDL-01", []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "edits", "rule", "expected"), EDITS)
def test_edit_of_a_clean_kernel(
    name: str, edits: list[tuple[str, str]], rule: str, expected: list[tuple[str, int]]
) -> None:
    assert said(edited(name, *edits), rule) == expected


@pytest.mark.parametrize("name", ["gemm_clc2_full", "gemm_wgmma_full"])
def test_whole_kernels_have_no_error(name: str) -> None:
    assert errors(text_of(name)) == []


def test_launch_must_match_the_directive() -> None:
    assert said(text_of("CLU-14_ok"), "CLU-14", Options(cluster=(8, 1, 1))) == []
    assert said(text_of("CLU-14_ok"), "CLU-14", Options(cluster=(4, 1, 1))) == [("error", 8)]


def test_options_declare_the_cluster() -> None:
    assert said(text_of("CLU-13_bad"), "CLU-13", Options(cluster=(2, 1, 1))) == []


def test_registers_that_the_other_warpgroups_keep() -> None:
    """Two warpgroups raise theirs to 256, the whole file: nothing is left for the third."""
    text = text_of("gemm_wgmma_full")
    assert text.count("setmaxnreg.inc.sync.aligned.u32 232;") == 1
    raised = text.replace("aligned.u32 232;", "aligned.u32 256;")
    assert said(raised, "REG-02")[0][0] == "error"


def test_producers_that_keep_their_registers() -> None:
    text = re.sub(r"setmaxnreg\.dec[^;]*;", "", text_of("gemm_wgmma_full"))
    assert [severity for severity, _ in said(text, "REG-02")] == ["warning"]
