"""Warps: shuffles, votes, matches, reductions; lanes that part and meet; calls, tables, local memory, special registers."""

from __future__ import annotations

import numpy as np

from micro.case import Case, linear, load, store

WORDS = 128
ALL = "0xffffffff"


def words(rng: np.random.Generator) -> list[np.ndarray]:
    """Numbers of which some are equal."""
    return [rng.integers(0, 2**32, WORDS, np.uint32), rng.integers(0, 6, WORDS, np.uint32)]


def results(name: str, lines: list[str], **options: object) -> Case:
    """Each line leaves its result in %r1, from %r2 (random), %r3 (few values) and `lane`; OUT[line, thread]."""
    body = [linear(), load("%r2", "u32"), load("%r3", "u32", array="IN1")]
    for i, line in enumerate(lines):
        body += [f"{{ {line} }}", f"add.u32 %r9, t, {i * WORDS};", store("%r1", index="%r9")]
    return Case(name, "\n".join(body), ((len(lines), WORDS), "u4"), words, threads=WORDS, **options)  # type: ignore[arg-type]


SHUFFLES = [
    *(
        f"shfl.sync.{mode}.b32 %r1|%p1, %r2, {by}, {clamp}, {ALL}; @%p1 xor.b32 %r1, %r1, 0x5a5a5a5a;"
        for mode, by, clamp in (
            *(("up", 1, 0), ("up", 5, 0x1800), ("up", 3, 0x1C00), ("up", "lane", 0)),
            *(("down", 1, 31), ("down", 9, 0x180F), ("down", 2, 0x1807), ("down", 30, 31)),
            *(("bfly", 1, 31), ("bfly", 16, 31), ("bfly", 5, 0x1807), ("bfly", 31, 0x100F)),
            *(("idx", 0, 31), ("idx", "%r3", 31), ("idx", "%r2", 31), ("idx", 20, 0x1807), ("idx", "lane", 0x1C03)),
        )
    ),
    "and.b32 %r4, lane, 1; setp.eq.u32 %p1, %r4, 0; mov.u32 %r1, 0; @%p1 shfl.sync.bfly.b32 %r1, %r2, 6, 31, 0x55555555;",
]  # fmt: skip

VOTES = [
    f"setp.lt.u32 %p1, %r3, 3; vote.sync.ballot.b32 %r1, %p1, {ALL};",
    f"setp.lt.u32 %p1, %r3, 3; vote.sync.ballot.b32 %r1, !%p1, {ALL};",
    f"setp.lt.u32 %p1, %r3, 6; vote.sync.all.pred %p2, %p1, {ALL}; selp.u32 %r1, 1, 2, %p2;",
    f"setp.eq.u32 %p1, %r3, 9; vote.sync.any.pred %p2, %p1, {ALL}; selp.u32 %r1, 1, 2, %p2;",
    f"setp.eq.u32 %p1, %r3, 2; vote.sync.uni.pred %p2, %p1, {ALL}; selp.u32 %r1, 1, 2, %p2;",
    "setp.lt.u32 %p3, lane, 12; mov.u32 %r1, 0; setp.lt.u32 %p1, %r3, 3; @%p3 vote.sync.ballot.b32 %r1, %p1, 0xfff;",
    f"match.any.sync.b32 %r1, %r3, {ALL};",
    f"match.all.sync.b32 %r1|%p1, %r3, {ALL}; @%p1 add.u32 %r1, %r1, 7;",
    f"mov.u32 %r4, 5; match.all.sync.b32 %r1|%p1, %r4, {ALL}; @%p1 add.u32 %r1, %r1, 7;",
    f"cvt.u64.u32 %d1, %r3; shl.b64 %d1, %d1, 40; match.any.sync.b64 %r1, %d1, {ALL};",
    *(
        f"redux.sync.{word} %r1, %r2, {ALL};"
        for word in ("add.u32", "add.s32", "min.u32", "min.s32", "max.u32", "max.s32", "and.b32", "or.b32", "xor.b32")
    ),
    "mov.u32 %r1, 0; setp.ge.u32 %p1, lane, 16; @%p1 redux.sync.add.u32 %r1, %r2, 0xffff0000;",
    # which lane is elected is the hardware's choice: only that there is one, and that all are told which
    f"elect.sync %r4|%p1, {ALL}; vote.sync.ballot.b32 %r1, %p1, {ALL}; popc.b32 %r1, %r1;",
    f"elect.sync %r4|%p1, {ALL}; setp.eq.u32 %p2, %r4, lane; xor.pred %p1, %p1, %p2; selp.u32 %r1, 1, 2, %p1;",
    f"setp.lt.u32 %p1, lane, 7; @%p1 bra L; L: bar.warp.sync {ALL}; activemask.b32 %r1; mov.u32 %r1, 1;",
]  # fmt: skip

DIVERGENCE = [
    # loops of as many rounds as each lane wants
    """mov.u32 %r1, 0; mov.u32 %r4, 0;
    LOOP: setp.ge.u32 %p1, %r4, lane; @%p1 bra OVER; mad.lo.u32 %r1, %r4, %r2, %r1; add.u32 %r4, %r4, 1; bra LOOP; OVER:""",
    # nested branches
    """and.b32 %r4, %r2, 3; setp.lt.u32 %p1, %r4, 2; setp.lt.u32 %p2, %r3, 3;
    @%p1 bra LOW; @%p2 bra HIGH2; mov.u32 %r1, 11; bra END; HIGH2: add.u32 %r1, %r2, 5; bra END;
    LOW: @%p2 bra LOW2; mul.lo.u32 %r1, %r2, 3; bra END; LOW2: not.b32 %r1, %r2; END: add.u32 %r1, %r1, 1;""",
    # a shuffle after the sides have met again, by name
    f"""setp.lt.u32 %p1, %r3, 3; mov.u32 %r1, %r2; @%p1 bra A; add.u32 %r1, %r1, 1; bra B; A: shl.b32 %r1, %r1, 1;
    B: bar.warp.sync {ALL}; shfl.sync.bfly.b32 %r1, %r1, 1, 31, {ALL};""",
    # each side shuffles among its own
    """setp.lt.u32 %p1, lane, 16; @%p1 bra A; shfl.sync.bfly.b32 %r1, %r2, 3, 31, 0xffff0000; bra B;
    A: shfl.sync.bfly.b32 %r1, %r2, 5, 31, 0x0000ffff; B:""",
    # a table of labels
    """min.u32 %r4, %r3, 3; table: .branchtargets T0, T1, T2, T3; brx.idx %r4, table;
    T0: mov.u32 %r1, 10; bra E; T1: add.u32 %r1, %r2, 11; bra E; T2: xor.b32 %r1, %r2, 12; bra E; T3: mov.u32 %r1, %r3; E:""",
    # Collatz steps
    """add.u32 %r4, %r3, lane; add.u32 %r4, %r4, 1; mov.u32 %r1, 0;
    C: setp.le.u32 %p1, %r4, 1; @%p1 bra D; add.u32 %r1, %r1, 1; and.b32 %r5, %r4, 1; setp.eq.u32 %p2, %r5, 0;
    @%p2 bra V; mad.lo.u32 %r4, %r4, 3, 1; bra C; V: shr.u32 %r4, %r4, 1; bra C; D:""",
    # predicates
    """setp.lt.u32 %p1, %r3, 3; setp.gt.and.u32 %p2|%p3, %r2, 0x80000000, %p1; selp.u32 %r1, 1, 0, %p2; @%p3 add.u32 %r1, %r1, 2;
    setp.ne.xor.s32 %p4, %r3, 2, %p1; @!%p4 add.u32 %r1, %r1, 4; or.pred %p5, %p2, %p4; not.pred %p5, %p5; @%p5 add.u32 %r1, %r1, 8;""",
]  # fmt: skip

FUNCTIONS = """
.const .align 8 .b32 table[8] = {3, 1, 4, 1, 5, 9, 2, 6};
.const .align 8 .b64 wide[2] = {0x123456789abcdef0, 77};
.global .align 4 .b32 counts[4] = {10, 20, 30, 40};
.func (.param .b32 result) twice(.param .b32 value)
{ .reg .b32 %r<3>; .reg .pred %p<2>; ld.param.b32 %r1, [value]; setp.gt.s32 %p1, %r1, 0; @%p1 bra BIG;
  shl.b32 %r1, %r1, 1; BIG: add.u32 %r1, %r1, 1; st.param.b32 [result], %r1; ret; }
.func (.param .align 8 .b8 result[16]) swap(.param .align 8 .b8 given[16], .param .b32 add)
{ .reg .b64 %d<4>; .reg .b32 %r<2>; ld.param.b64 %d1, [given]; ld.param.b64 %d2, [given+8]; ld.param.b32 %r1, [add];
  cvt.u64.u32 %d3, %r1; add.u64 %d1, %d1, %d3; st.param.b64 [result], %d2; st.param.b64 [result+8], %d1; ret; }
"""

CALLS = [
    """{ .param .b32 given; .param .b32 got; st.param.b32 [given], %r2; call (got), twice, (given); ld.param.b32 %r1, [got]; }""",
    """mov.u32 %r1, 5; setp.lt.u32 %p1, %r3, 3; @%p1 bra SKIP;
    { .param .b32 given; .param .b32 got; st.param.b32 [given], %r3; call (got), twice, (given); ld.param.b32 %r1, [got]; } SKIP:""",
    """{ .param .align 8 .b8 given[16]; .param .b32 more; .param .align 8 .b8 got[16]; cvt.u64.u32 %d1, %r2; cvt.u64.u32 %d2, %r3;
    st.param.b64 [given], %d1; st.param.b64 [given+8], %d2; st.param.b32 [more], lane;
    call (got), swap, (given, more); ld.param.b64 %d1, [got]; ld.param.b64 %d2, [got+8]; cvt.u32.u64 %r1, %d1; cvt.u32.u64 %r4, %d2;
    mad.lo.u32 %r1, %r1, 1000, %r4; }""",
    "mov.u64 %d1, table; mul.wide.u32 %d2, %r3, 4; add.u64 %d1, %d1, %d2; ld.const.u32 %r1, [%d1];",
    "ld.const.u32 %r1, [table+12]; ld.const.v2.u32 {%r4, %r5}, [wide]; xor.b32 %r1, %r1, %r5;",
    "mov.u64 %d1, wide; cvta.const.u64 %d1, %d1; ld.u32 %r1, [%d1+4];",
    "and.b32 %r4, lane, 3; mov.u64 %d1, counts; mul.wide.u32 %d2, %r4, 4; add.u64 %d1, %d1, %d2; ld.global.u32 %r1, [%d1];",
    # local memory, by index and through a generic address
    """.local .align 16 .b8 own[64]; mov.u64 %d1, own; st.local.v4.u32 [%d1], {%r2, %r3, lane, t}; st.local.u16 [%d1+22], 0x1234;
    st.local.u32 [%d1+16], %r2; and.b32 %r4, lane, 3; mul.wide.u32 %d2, %r4, 4; add.u64 %d2, %d1, %d2; ld.local.u32 %r1, [%d2];
    cvta.local.u64 %d3, %d1; ld.u32 %r5, [%d3+16]; ld.u8 %r6, [%d3+23]; add.u32 %r1, %r1, %r5; add.u32 %r1, %r1, %r6;
    isspacep.local %p1, %d3; @%p1 add.u32 %r1, %r1, 1; isspacep.global %p1, %d3; @%p1 add.u32 %r1, %r1, 2;
    isspacep.shared %p1, %d3; @%p1 add.u32 %r1, %r1, 4;""",
    # signed and unsigned bytes and halves
    """mul.wide.u32 %d1, t, 4; add.u64 %d1, %d1, IN0; ld.global.s8 %r1, [%d1+1]; ld.global.u8 %r4, [%d1+2]; ld.global.s16 %r5, [%d1+2];
    mad.lo.u32 %r1, %r1, 31, %r4; mad.lo.u32 %r1, %r1, 31, %r5; ld.global.u16 %h1, [%d1]; cvt.u32.u16 %r6, %h1; add.u32 %r1, %r1, %r6;""",
]  # fmt: skip

SPECIAL = [
    *(
        f"mov.u32 %r1, %{name};"
        for name in (
            *("tid.x", "tid.y", "ntid.x", "ntid.y", "ntid.z", "ctaid.x", "ctaid.y", "nctaid.x", "nctaid.z"),
            *("laneid", "lanemask_eq", "lanemask_lt", "lanemask_le", "lanemask_gt", "lanemask_ge"),
            *("clusterid.x", "nclusterid.x", "cluster_ctaid.x", "cluster_ctaid.y", "cluster_nctaid.x", "cluster_nctaid.z"),
            *("cluster_ctarank", "cluster_nctarank", "dynamic_smem_size"),
        )
    ),
    "mov.pred %p1, %is_explicit_cluster; selp.u32 %r1, 1, 0, %p1;",
    "mov.b64 %d1, {%r2, %r3}; mov.b64 {%r4, %r1}, %d1; mov.b32 {%h1, %h2}, %r2; mov.b32 %r4, {%h2, %h1}; add.u32 %r1, %r1, %r4;",
    "mov.b16 %h1, 0x1ff; cvt.u32.u16 %r1, %h1; { .reg .b8 e; } add.u32 %r1, %r1, WARP_SZ;",
    # no result depends on these
    "nanosleep.u32 20; mov.u32 %r1, %r2; membar.gl; fence.sc.gpu;",
    "createpolicy.fractional.L2::evict_last.b64 %d1, 1.0; prefetch.global.L2 [IN0]; ld.global.L2::cache_hint.u32 %r1, [IN0], %d1;",
]  # fmt: skip

CLUSTERED = [
    "mov.pred %p1, %is_explicit_cluster; selp.u32 %r1, 1, 0, %p1;",
    *(f"mov.u32 %r1, %{name};" for name in (
        *("ctaid.x", "nctaid.x", "clusterid.x", "nclusterid.x", "cluster_ctaid.x", "cluster_nctaid.x"),
        *("cluster_ctarank", "cluster_nctarank"),
    )),
]  # fmt: skip


def _clustered() -> Case:
    body = []
    for i, line in enumerate(CLUSTERED):
        body += [line, f"mad.lo.u32 %r9, cta, {len(CLUSTERED)}, {i};", store("%r1", index="%r9")]
    return Case(
        "special_registers_cluster",
        "\n".join(body),
        ((12, len(CLUSTERED)), "u4"),
        ctas=12,
        cluster=4,
    )


CASES = [
    results("shuffles", SHUFFLES),
    results("votes", VOTES),
    results("divergence", DIVERGENCE),
    results("calls_and_memory", CALLS, module=FUNCTIONS),
    results("special_registers", SPECIAL),
    _clustered(),
    Case(
        "no_prerequisite",
        f"griddepcontrol.wait; {linear()} {load('%r1', 'u32')} griddepcontrol.launch_dependents; {store('%r1')}",
        ((WORDS,), "u4"),
        words,
        ctas=4,
        expected=lambda inputs: inputs[0],
    ),
]
