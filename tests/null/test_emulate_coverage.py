"""What a check says that its schedules came by: blocks and waits counted by hand in small kernels."""

from __future__ import annotations

import numpy as np

from tilewright.emulate import prepare
from tilewright.emulate.explore import Explorer
from tilewright.ptx import parse_ptx

KERNEL = """.version 9.0
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out, .param .u32 often)
.reqntid 64, 1, 1
{
    .reg .pred %p, %q, %done; .reg .b32 %r<4>; .reg .b64 %d;
    .shared .align 8 .b64 full;
    .shared .align 8 .b64 never;
    mov.u32 %r1, %tid.x;
    ld.param.u32 %r2, [often];
    setp.ne.u32 %p, %r1, 0;
    @%p bra READY;
    mbarrier.init.shared::cta.b64 [full], 1;
    mbarrier.init.shared::cta.b64 [never], 1;
READY:
    bar.sync 0;
    setp.ne.u32 %q, %r1, 32;
    @%q bra CONSUME;
    mbarrier.arrive.shared::cta.b64 _, [full];
CONSUME:
    mbarrier.try_wait.parity.shared::cta.b64 %done, [full], 0;
    @!%done bra CONSUME;
    setp.eq.u32 %p, %r2, 0;
    @%p bra END;
OTHER:
    mbarrier.try_wait.parity.shared::cta.b64 %done, [never], 0;
    @!%done bra OTHER;
END:
    ret;
}
"""
LINE = {text.strip(): number for number, text in enumerate(KERNEL.splitlines(), 1)}
WAIT = LINE["mbarrier.try_wait.parity.shared::cta.b64 %done, [full], 0;"]
OTHER = LINE["mbarrier.try_wait.parity.shared::cta.b64 %done, [never], 0;"]


def test_blocks_and_waits() -> None:
    launch = prepare(parse_ptx(KERNEL), grid=1, args=[np.zeros(1, np.uint32), 0])
    # to the first branch; the inits; to the second; the arrival; the wait; what comes behind; the other wait; the end
    firsts = [LINE["mov.u32 %r1, %tid.x;"], LINE["mbarrier.init.shared::cta.b64 [full], 1;"]]
    blocks = launch.program.coverage.blocks
    assert len(blocks) == 8
    assert [first for first, _ in blocks][:2] == firsts
    assert launch.program.coverage.waits == (WAIT, OTHER)
    found = Explorer(launch).explore(12).coverage
    assert found.missed == ((OTHER, OTHER + 1),)
    assert found.waited == found.over == {WAIT}
    assert found.sentences == (
        f"7 of 8 blocks ran; never PTX lines {OTHER}-{OTHER + 1}",
        "1 of 2 mbarrier waits both had to wait and found their phase over",
    )


def test_a_wait_that_never_had_to_wait_is_named() -> None:
    alone = KERNEL.replace("[full], 0;\n    @!%done", "[full], 1;\n    @!%done")
    alone = alone.replace("mbarrier.arrive.shared::cta.b64 _, [full];", "mov.u32 %r3, 0;")
    launch = prepare(parse_ptx(alone), grid=1, args=[np.zeros(1, np.uint32), 0])
    found = Explorer(launch).explore(4)
    assert found.coverage.never_waited == (WAIT,)
    assert f"never had to wait: PTX lines {WAIT}" in found.coverage.sentences[1]
    assert found.as_dict()["coverage"]["lines_never_waited"] == [WAIT]


def test_parts_add_up() -> None:
    launch = prepare(parse_ptx(KERNEL), grid=1, args=[np.zeros(1, np.uint32), 0])
    explorer = Explorer(launch)
    one, other = explorer.run(0).coverage, explorer.run(1).coverage
    assert (one | other).ran == one.ran | other.ran
    assert (one | other).blocks == one.blocks
