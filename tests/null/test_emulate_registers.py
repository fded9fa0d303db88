"""Vector registers: components are registers of their own. PTX ISA, 5.4.2 and 6.4.3."""

from __future__ import annotations

import numpy as np
import pytest

from ptx_lines import kernel, run
from tilewright.audit.contract import recover_contract
from tilewright.audit.kernel import Kernel, Options
from tilewright.emulate import NotModelled
from tilewright.ptx import parse_ptx

ROWS = "mul.wide.u32 %d4, t, 16; add.u64 %d5, %d4, %d0; add.u64 %d6, %d4, %d1;"


def moved(body: str) -> tuple[np.ndarray, np.ndarray]:
    """What each thread's four words become."""
    source, target = np.arange(128, dtype=np.uint32), np.zeros(128, np.uint32)
    run(kernel(ROWS + body, 2), source, target)
    return source.reshape(32, 4), target.reshape(32, 4)


def test_a_vector_register_is_stored_whole() -> None:
    # As CuTe DSL writes a work tile's coordinates for st.async.
    source, target = moved("""
    ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d5];
    { .reg .v4 .s32 abcd;
      mov.s32 abcd.x, %r4; mov.s32 abcd.y, %r3; mov.s32 abcd.z, %r2; mov.s32 abcd.w, %r1;
      st.global.v4.s32 [%d6], abcd; }""")
    np.testing.assert_array_equal(target, source[:, ::-1])


def test_components_have_two_names_and_scopes_their_own() -> None:
    source, target = moved("""
    .reg .v2 .u32 v<3>; .reg .v2 .u32 w;
    ld.global.v2.u32 v1, [%d5]; ld.global.v2.u32 v2, [%d5+8]; mov.u32 w.x, v1.g;
    { .reg .v4 .u32 w; mov.u32 w.r, v2.y; mov.u32 w.g, v2.x; mov.u32 w.b, v1.y; mov.u32 w.a, v1.r;
      st.global.v4.u32 [%d6], w; }
    add.u32 w.y, w.x, 1000; st.global.u32 [%d6+4], w.y;""")
    np.testing.assert_array_equal(target[:, [0, 2, 3]], source[:, [3, 1, 0]])
    np.testing.assert_array_equal(target[:, 1], source[:, 1] + 1000)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("mov.u32 %r1, %r2.x;", r"component `\.x` of `%r2`"),
        ("{ .reg .v2 .u32 v; mov.u32 %r1, v.z; }", r"component `\.z` of `v"),
        ("{ .reg .v2 .u32 v; add.u32 %r1, v, 1; }", r"an operand of `add\.u32`"),
    ],
)
def test_what_is_no_component_stops_with_its_line(line: str, why: str) -> None:
    with pytest.raises(NotModelled, match=rf"<ptx>:\d+:\d+: {why}"):
        run(kernel(line))


def test_the_audit_knows_components_apart() -> None:
    """The count of an mbarrier is read from one component of a vector that others overwrite."""
    text = kernel("""
    .shared .align 8 .b64 bar; .reg .v2 .u32 v; mov.u32 v.x, 7; mov.u32 v.y, 3;
    setp.ne.u32 %p0, t, 0; @!%p0 mbarrier.init.shared::cta.b64 [bar], v.x;""")
    module = parse_ptx(text)
    contract = recover_contract(Kernel(module, module.functions[0], Options()))
    assert [row.arrive_count for row in contract.barriers] == [7]
