"""Memory and barriers of a CTA: loads and stores of every width, atomics, bar, mbarrier, cp.async and bulk copies."""

from __future__ import annotations

import numpy as np

from micro.case import INIT, Case, linear, load, once, store, wait

SHARED = ".shared .align 1024 .b8 s[{}]; .shared .align 8 .b64 bar[4];\n.reg .b32 s0, b0; mov.u32 s0, s; mov.u32 b0, bar;\n"
SYNC = "bar.sync 0;\n"


def words(count: int):  # type: ignore[no-untyped-def]  # noqa: ANN201
    """Random 32-bit numbers."""
    return lambda rng: [rng.integers(0, 2**32, count, np.uint32)]


# --- loads and stores ---------------------------------------------------------------------------------------------------

VECTORS = """
mul.wide.u32 %d1, t, 16; add.u64 %d2, IN0, %d1; add.u64 %d3, OUT, %d1;
ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d2]; ld.global.nc.v2.u64 {%d4, %d5}, [%d2];
ld.global.v2.f32 {%f1, %f2}, [%d2+8]; ld.global.v4.u16 {%h1, %h2, %h3, %h4}, [%d2]; ld.global.v2.u8 {%h5, %h6}, [%d2+6];
mad.lo.u32 %r5, t, 16, s0; st.shared.v4.u32 [%r5], {%r4, %r3, %r2, %r1}; st.shared.v2.u16 [%r5+4], {%h4, %h2};
bar.sync 0; xor.b32 %r6, t, 5; mad.lo.u32 %r6, %r6, 16, s0; ld.shared.v2.u64 {%d6, %d7}, [%r6];
xor.b64 %d4, %d4, %d7; cvt.u64.u16 %d8, %h6; add.u64 %d5, %d5, %d8; mov.b32 %r7, %f1; cvt.u64.u32 %d9, %r7; xor.b64 %d6, %d6, %d9;
st.global.v2.b64 [%d3], {%d4, %d6}; st.global.u8 [%d3+15], %h5; st.global.v2.b64 [%d3+2048], {%d5, %d7};
"""

VOLATILE = """
mul.wide.u32 %d1, t, 4; add.u64 %d2, IN0, %d1; add.u64 %d3, OUT, %d1; ld.volatile.global.u32 %r1, [%d2]; ld.relaxed.gpu.global.u32 %r2, [%d2];
ld.acquire.cta.global.u32 %r3, [%d2]; ld.global.nc.L1::no_allocate.u32 %r4, [%d2]; ld.global.cg.u32 %r5, [%d2]; ldu.global.u32 %r6, [%d2];
add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r3; add.u32 %r1, %r1, %r4; add.u32 %r1, %r1, %r5; add.u32 %r1, %r1, %r6;
st.relaxed.gpu.global.u32 [%d3], %r1; ld.relaxed.gpu.global.u32 %r2, [%d3]; st.release.gpu.global.u32 [%d3], %r2;
"""

GENERIC = """
mad.lo.u32 %r1, t, 4, s0; cvt.u64.u32 %d1, %r1; cvta.shared.u64 %d2, %d1; mul.wide.u32 %d3, t, 4; add.u64 %d4, IN0, %d3; cvta.to.global.u64 %d5, %d4;
ld.u32 %r2, [%d4]; st.u32 [%d2], %r2; bar.sync 0; xor.b32 %r3, t, 9; mad.lo.u32 %r3, %r3, 4, s0; ld.shared.u32 %r4, [%r3]; cvta.to.shared.u64 %d6, %d2;
cvt.u32.u64 %r5, %d6; sub.u32 %r5, %r5, %r1; mov.u32 %r6, 0;
isspacep.shared %p1, %d2; @%p1 or.b32 %r6, %r6, 1; isspacep.global %p1, %d2; @%p1 or.b32 %r6, %r6, 2; isspacep.shared %p1, %d4; @%p1 or.b32 %r6, %r6, 4;
isspacep.global %p1, %d5; @%p1 or.b32 %r6, %r6, 8; isspacep.shared::cta %p1, %d2; @%p1 or.b32 %r6, %r6, 16;
isspacep.shared::cluster %p1, %d2; @%p1 or.b32 %r6, %r6, 32; isspacep.local %p1, %d2; @%p1 or.b32 %r6, %r6, 64; isspacep.const %p1, %d4; @%p1 or.b32 %r6, %r6, 128;
add.u32 %r4, %r4, %r5; add.u32 %r4, %r4, %r6; add.u64 %d7, OUT, %d3; st.u32 [%d7], %r4;
"""

# --- atomics: results that no order changes ----------------------------------------------------------------------------

REDUCTIONS = [
    *(("b32", word) for word in ("add.u32", "min.u32", "max.u32", "min.s32", "max.s32", "and.b32", "or.b32", "xor.b32", "inc.u32", "dec.u32")),
    *(("b64", word) for word in ("add.u64", "min.u64", "max.u64", "min.s64", "max.s64", "and.b64", "or.b64", "xor.b64")),
    *(("f32", word) for word in ("add.f32",)),
    *(("f64", word) for word in ("add.f64",)),
    *(("f16x2", word) for word in ("add.noftz.f16x2",)),
    *(("bf16x2", word) for word in ("add.noftz.bf16x2",)),
]  # fmt: skip
"""Floating-point sums are of small integers: exact in any order."""


def _reductions(space: str, opcode: str) -> str:
    """128 threads on one place each of global or shared memory; then OUT[i] in 8 bytes."""
    parts = [
        "add.u32 %r3, %r1, 0; cvt.u64.u32 %d3, %r1; mul.lo.u64 %d3, %d3, 0x100000001; and.b32 %r4, %r1, 7; cvt.rn.f32.u32 %f1, %r4;"
    ]
    parts += [
        "cvt.rn.f64.u32 %g1, %r4; cvt.rn.f16x2.f32 %r5, %f1, %f1; and.b32 %r8, %r1, 1; cvt.rn.f32.u32 %f2, %r8; cvt.rn.bf16x2.f32 %r6, %f2, %f2;"
    ]
    value = {
        "b32": "%r3",
        "b64": "%d3",
        "f32": "%f1",
        "f64": "%g1",
        "f16x2": "%r5",
        "bf16x2": "%r6",
    }
    for i, (kind, word) in enumerate(REDUCTIONS):
        operand = "0x7fffffff" if word[:3] in {"inc", "dec"} else value[kind]
        place = f"[s0+{8 * i}]" if space == "shared" else f"[OUT+{8 * i}]"
        if opcode == "red":
            parts.append(f"red.{space}.{word} {place}, {operand};")
        else:
            register = {
                "b32": "%r7",
                "b64": "%d7",
                "f32": "%f7",
                "f64": "%g7",
                "f16x2": "%r7",
                "bf16x2": "%r7",
            }[kind]
            parts.append(f"atom.{space}.{word} {register}, {place}, {operand};")
    return "\n".join(parts)


def _start_shared() -> str:
    count = len(REDUCTIONS)
    return once("".join(f"st.shared.u64 [s0+{8 * i}], 0;" for i in range(count))) + SYNC


def _copy_shared(count: int) -> str:
    return (
        SYNC
        + f"setp.ge.u32 %p1, t, {count}; @%p1 bra DONE; mad.lo.u32 %r9, t, 8, s0; ld.shared.u64 %d9, [%r9]; {store('%d9', 'u64', 't')} DONE:"
    )


EXCHANGES = """
mov.u32 %r2, 0; mad.lo.u32 %r8, t, 4, s0; st.shared.u32 [%r8], %r1; mul.wide.u32 %d1, t, 4; add.u64 %d1, %d1, OUT; st.global.u32 [%d1], %r1;
atom.shared.exch.b32 %r3, [%r8], t; atom.shared.cas.b32 %r4, [%r8], t, 77; atom.shared.cas.b32 %r5, [%r8], 5, 78;
atom.global.exch.b32 %r6, [%d1], 3; atom.global.cas.b32 %r7, [%d1], 3, %r1; mad.lo.u32 %r3, %r3, 3, %r4; mad.lo.u32 %r3, %r3, 3, %r5;
mad.lo.u32 %r3, %r3, 3, %r6; mad.lo.u32 %r3, %r3, 3, %r7; ld.shared.u32 %r9, [%r8]; add.u32 %r3, %r3, %r9; atom.global.add.u32 %r9, [%d1], %r3; add.u32 %r9, %r9, 1;
{ .reg .b64 e; add.u64 e, %d1, 512; st.global.u32 [e], %r9; atom.acq_rel.gpu.global.inc.u32 %r9, [e], 5; atom.relaxed.cta.global.dec.u32 %r9, [e], 9; }
{ .reg .b64 e; mul.wide.u32 e, t, 8; add.u64 e, e, OUT; cvt.u64.u32 %d2, %r1; st.global.u64 [e+1024], %d2; atom.global.cas.b64 %d3, [e+1024], %d2, 99; atom.global.exch.b64 %d4, [e+1024], %d3; add.u64 %d4, %d4, %d3; st.global.u64 [e+2048], %d4; }
"""

# a lock-free sum: each thread retries until its compare-and-swap is the one that counts
CAS_LOOP = f"""
{once("st.shared.u32 [s0], 0;")} {SYNC}
ld.relaxed.cta.shared.u32 %r2, [s0]; AGAIN: add.u32 %r3, %r2, %r1; mov.u32 %r5, %r2; atom.shared.cas.b32 %r2, [s0], %r5, %r3; setp.ne.u32 %p1, %r2, %r5; @%p1 bra AGAIN;
{SYNC} ld.shared.u32 %r4, [s0]; {store("%r4", index="t")}
"""

# tickets: the sum of the tickets is known, whoever has which
TICKETS = f"atom.global.add.u32 %r2, [OUT], 1; mul.lo.u32 %r3, %r2, %r2; red.global.add.u32 [OUT+4], %r3; {once('red.global.max.u32 [OUT+8], cta;')}"

# --- barriers -----------------------------------------------------------------------------------------------------------

BARRIERS = f"""
mad.lo.u32 %r8, t, 4, s0; st.shared.u32 [%r8], %r1; bar.sync 0; xor.b32 %r2, t, 127; mad.lo.u32 %r9, %r2, 4, s0; ld.shared.u32 %r3, [%r9];
bar.sync 1, 128; add.u32 %r4, %r3, 1; st.shared.u32 [%r8], %r4; barrier.sync 2; ld.shared.u32 %r5, [%r9];
setp.gt.u32 %p1, %r1, 0x80000000; bar.red.popc.u32 %r6, 3, %p1; bar.red.and.pred %p2, 4, %p1; bar.red.or.pred %p3, 5, 128, %p1; bar.red.popc.u32 %r7, 6, 128, !%p1;
selp.u32 %r10, 1, 0, %p2; selp.u32 %r11, 2, 0, %p3; add.u32 %r5, %r5, %r6; mad.lo.u32 %r5, %r7, 1000, %r5; add.u32 %r5, %r5, %r10; add.u32 %r5, %r5, %r11;
{store("%r5", index="t")}
"""

# warps 0 and 1 write, arrive and go on; warps 2 and 3 wait for them: ten rounds over two buffers
PRODUCERS = f"""
mov.u32 %r2, 0; mov.u32 %r9, %r1; and.b32 %r10, t, 63; setp.ge.u32 %p1, t, 64;
ROUND: and.b32 %r3, %r2, 1; mad.lo.u32 %r4, %r3, 256, s0; mad.lo.u32 %r5, %r10, 4, %r4; add.u32 %r6, %r3, 1; add.u32 %r7, %r3, 3; @%p1 bra CONSUME;
setp.lt.u32 %p2, %r2, 2; @%p2 bra FREE; barrier.sync %r7, 128; FREE: mad.lo.u32 %r8, %r2, 17, %r1; st.shared.u32 [%r5], %r8; barrier.arrive %r6, 128; bra NEXT;
CONSUME: barrier.sync %r6, 128; ld.shared.u32 %r8, [%r5]; mad.lo.u32 %r9, %r9, 5, %r8; setp.ge.u32 %p2, %r2, 8; @%p2 bra NEXT; barrier.arrive %r7, 128;
NEXT: add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 10; @%p2 bra ROUND; {store("%r9", index="t")}
"""

# --- mbarriers ----------------------------------------------------------------------------------------------------------

_START = (
    once(
        f"mbarrier.init.shared::cta.b64 [b0], 128; mbarrier.init.shared::cta.b64 [b0+8], 1; {INIT}"
    )
    + SYNC
)

PARITY = f"""{_START}
mbarrier.test_wait.parity.shared::cta.b64 %p1, [b0], 0; selp.u32 %r2, 1, 0, %p1; mbarrier.test_wait.parity.shared::cta.b64 %p1, [b0], 1; selp.u32 %r3, 2, 0, %p1; add.u32 %r2, %r2, %r3; bar.sync 1;
mov.u32 %r4, 0; mad.lo.u32 %r8, t, 4, s0; xor.b32 %r9, t, 63; mad.lo.u32 %r9, %r9, 4, s0;
ROUND: mad.lo.u32 %r5, %r4, 99, %r1; and.b32 %r6, %r4, 1; shl.b32 %r7, %r4, 9; add.u32 %r10, %r8, %r7; st.shared.u32 [%r10], %r5; mbarrier.arrive.shared::cta.b64 _, [b0]; {wait("b0", "%r6")}
add.u32 %r10, %r9, %r7; ld.shared.u32 %r11, [%r10]; mad.lo.u32 %r2, %r2, 7, %r11; add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 3; @%p2 bra ROUND;
bar.sync 2; mbarrier.test_wait.parity.shared::cta.b64 %p1, [b0], 0; selp.u32 %r3, 10, 20, %p1; add.u32 %r2, %r2, %r3; mbarrier.test_wait.parity.shared::cta.b64 %p1, [b0], 1; selp.u32 %r3, 100, 200, %p1;
add.u32 %r2, %r2, %r3; {store("%r2", index="t")}
"""

STATES = f"""{_START}
mbarrier.arrive.shared::cta.b64 %d1, [b0]; WAIT: mbarrier.test_wait.shared::cta.b64 %p1, [b0], %d1; @!%p1 bra WAIT; bar.sync 1;
{
    once('''mbarrier.arrive.expect_tx.shared::cta.b64 %d2, [b0+8], 48; mbarrier.test_wait.shared::cta.b64 %p1, [b0+8], %d2; selp.u32 %r2, 1, 0, %p1;
mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [b0+8], 32; mbarrier.test_wait.shared::cta.b64 %p1, [b0+8], %d2; selp.u32 %r3, 2, 0, %p1; add.u32 %r2, %r2, %r3;
mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [b0+8], 16; mbarrier.test_wait.shared::cta.b64 %p1, [b0+8], %d2; selp.u32 %r3, 4, 0, %p1; add.u32 %r2, %r2, %r3;
mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [b0+8], 16; mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [b0+8], 16; mbarrier.test_wait.parity.shared::cta.b64 %p1, [b0+8], 1; selp.u32 %r3, 8, 0, %p1; add.u32 %r2, %r2, %r3;
mbarrier.init.shared::cta.b64 [b0+16], 5; mbarrier.arrive.shared::cta.b64 %d3, [b0+16], 2; mbarrier.pending_count.b64 %r4, %d3; mbarrier.arrive.noComplete.shared::cta.b64 %d4, [b0+16], 1; mbarrier.pending_count.b64 %r5, %d4;
mbarrier.arrive_drop.shared::cta.b64 %d5, [b0+16]; mbarrier.pending_count.b64 %r6, %d5; mbarrier.arrive.shared::cta.b64 %d6, [b0+16]; mbarrier.pending_count.b64 %r7, %d6;
mbarrier.arrive.shared::cta.b64 %d7, [b0+16], 3; mbarrier.pending_count.b64 %r8, %d7; mbarrier.test_wait.shared::cta.b64 %p1, [b0+16], %d7; selp.u32 %r9, 16, 0, %p1; add.u32 %r2, %r2, %r9; mbarrier.arrive.shared::cta.b64 _, [b0+16], 1;
mbarrier.test_wait.shared::cta.b64 %p1, [b0+16], %d7; selp.u32 %r9, 32, 0, %p1; add.u32 %r2, %r2, %r9; mbarrier.inval.shared::cta.b64 [b0+16];
st.global.v4.u32 [OUT], {%r2, %r4, %r5, %r6}; st.global.v2.u32 [OUT+16], {%r7, %r8};''')
}
"""

# --- asynchronous copies ------------------------------------------------------------------------------------------------

CP_ASYNC = """
mad.lo.u32 %r8, t, 16, s0; mul.wide.u32 %d1, t, 16; add.u64 %d1, %d1, IN0; st.shared.v4.u32 [%r8+4096], {%r1, %r1, %r1, %r1};
cp.async.cg.shared.global [%r8], [%d1], 16; cp.async.commit_group; and.b32 %r2, t, 15; cp.async.cg.shared.global [%r8+2048], [%d1+2048], 16, %r2;
and.b32 %r3, t, 7; min.u32 %r3, %r3, 4; cp.async.ca.shared.global [%r8+4096], [%d1], 4, %r3; and.b32 %r4, t, 8; cp.async.ca.shared.global.L2::128B [%r8+4104], [%d1+2048], 8, %r4; cp.async.commit_group;
cp.async.wait_group 1; bar.sync 0; xor.b32 %r5, t, 33; mad.lo.u32 %r6, %r5, 16, s0; ld.shared.v2.u64 {%d2, %d3}, [%r6]; cp.async.wait_all; bar.sync 0;
ld.shared.v2.u64 {%d4, %d5}, [%r6+2048]; ld.shared.v2.u64 {%d6, %d7}, [%r6+4096]; mul.wide.u32 %d8, t, 48; add.u64 %d8, %d8, OUT;
st.global.v2.u64 [%d8], {%d2, %d3}; st.global.v2.u64 [%d8+16], {%d4, %d5}; st.global.v2.u64 [%d8+32], {%d6, %d7};
"""

CP_ASYNC_BARRIER = f"""
{once(f"mbarrier.init.shared::cta.b64 [b0], 128; mbarrier.init.shared::cta.b64 [b0+8], 128; {INIT}")} {SYNC}
mad.lo.u32 %r8, t, 16, s0; mul.wide.u32 %d1, t, 16; add.u64 %d1, %d1, IN0; cp.async.cg.shared.global [%r8], [%d1], 16; cp.async.mbarrier.arrive.noinc.shared::cta.b64 [b0];
cp.async.ca.shared.global [%r8+2048], [%d1+2048], 16; cp.async.mbarrier.arrive.shared::cta.b64 [b0+8]; mbarrier.arrive.shared::cta.b64 _, [b0+8]; {wait("b0", 0)} {wait("b0+8", 0)}
xor.b32 %r5, t, 77; mad.lo.u32 %r6, %r5, 16, s0; ld.shared.v2.u64 {{%d2, %d3}}, [%r6]; ld.shared.v2.u64 {{%d4, %d5}}, [%r6+2048]; xor.b64 %d2, %d2, %d4; xor.b64 %d3, %d3, %d5; mul.wide.u32 %d8, t, 16; add.u64 %d8, %d8, OUT;
st.global.v2.u64 [%d8], {{%d2, %d3}};
"""

BULK = f"""
{once(f"mbarrier.init.shared::cta.b64 [b0], 1; {INIT}")} {SYNC}
{
    once('''mbarrier.arrive.expect_tx.shared::cta.b64 _, [b0], 2064;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s0], [IN0], 2048, [b0];
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s0+2048], [IN0+32], 16, [b0];''')
}
{
    wait("b0", 0)
} mad.lo.u32 %r8, t, 16, s0; ld.shared.v4.u32 {{%r2, %r3, %r4, %r5}}, [%r8]; add.u32 %r2, %r2, %r5; xor.b32 %r4, %r4, %r3; {
    SYNC
} st.shared.v4.u32 [%r8], {{%r5, %r4, %r3, %r2}};
fence.proxy.async; {SYNC} {
    once(
        '''cp.async.bulk.global.shared::cta.bulk_group [OUT], [s0], 2064; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;'''
    )
}
"""

_TYPES = (
    "add.u32",
    "min.s32",
    "max.u32",
    "and.b32",
    "or.b32",
    "xor.b32",
    "add.u64",
    "inc.u32",
    "dec.u32",
    "min.u64",
    "max.s64",
)
BULK_REDUCE = f"""
mad.lo.u32 %r8, t, 16, s0; mul.wide.u32 %d1, t, 16; add.u64 %d2, %d1, IN0; ld.global.v4.u32 {{%r2, %r3, %r4, %r5}}, [%d2]; st.shared.v4.u32 [%r8], {{%r2, %r3, %r4, %r5}};
and.b32 %r2, %r2, 7; cvt.rn.f32.u32 %f1, %r2; cvt.rn.f16x2.f32 %r6, %f1, %f1; cvt.rn.bf16x2.f32 %r7, %f1, %f1; mad.lo.u32 %r9, t, 4, s0; st.shared.f32 [%r9+2048], %f1; st.shared.u32 [%r9+2560], %r6; st.shared.u32 [%r9+3072], %r7;
fence.proxy.async; {SYNC}
{
    once(
        "".join(
            f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{word} [OUT+{512 * i}], [s0+{128 * i}], 512;"
            for i, word in enumerate(_TYPES)
        )
        + "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [OUT+5632], [s0+2048], 512; cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.f16 [OUT+6144], [s0+2560], 512;"
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [OUT+6656], [s0+3072], 512; cp.reduce.async.bulk.global.shared::cta.bulk_group.min.f16 [OUT+7168], [s0+2560], 512; cp.reduce.async.bulk.global.shared::cta.bulk_group.max.bf16 [OUT+7680], [s0+3072], 512;"
        "cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; cp.async.bulk.wait_group 0;"
    )
}
"""

# what the groups let go: two stores, the first waited for alone
GROUPS = f"""
mad.lo.u32 %r8, t, 4, s0; st.shared.u32 [%r8], %r1; fence.proxy.async; {SYNC} {once("cp.async.bulk.global.shared::cta.bulk_group [OUT], [s0], 512; cp.async.bulk.commit_group;")}
not.b32 %r2, %r1; st.shared.u32 [%r8+512], %r2; fence.proxy.async; {SYNC} {once('''cp.async.bulk.global.shared::cta.bulk_group [OUT+512], [s0+512], 512; cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 1;''')}
{SYNC} add.u32 %r2, %r1, 7; st.shared.u32 [%r8], %r2; fence.proxy.async; {SYNC} {once('''cp.async.bulk.prefetch.L2.global [IN0], 512; cp.async.bulk.global.shared::cta.bulk_group [OUT+1024], [s0], 512; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;''')}
"""

SETMAXNREG = f"""
setp.ge.u32 %p1, t, 128; @%p1 bra OTHER; setmaxnreg.dec.sync.aligned.u32 24; bra JOIN; OTHER: setmaxnreg.inc.sync.aligned.u32 104; JOIN: mul.lo.u32 %r2, %r1, 3; {store("%r2", index="t")}
"""


def _case(
    name: str,
    body: str,
    output: tuple[tuple[int, ...], str],
    *,
    shared: int = 16384,
    count: int = 512,
    **options: object,
) -> Case:
    first = SHARED.format(shared) + linear() + load("%r1", "u32")
    options = {"threads": 128, **options}
    return Case(name, first + "\n" + body, output, words(max(count, 128)), **options)  # type: ignore[arg-type]


CASES = [
    _case("vectors", VECTORS, ((1024,), "u4")),
    _case("memory_orders", VOLATILE, ((128,), "u4"), expected=lambda inputs: inputs[0][:128] * np.uint32(6)),
    _case("generic_addresses", GENERIC, ((128,), "u4"), expected=lambda inputs: inputs[0][:128][np.arange(128) ^ 9] + np.uint32(1 + 8 + 16 + 32)),
    _case("red_global", _reductions("global", "red"), ((len(REDUCTIONS),), "u8"), ctas=2),
    _case("atom_global", _reductions("global", "atom"), ((len(REDUCTIONS),), "u8"), ctas=2),
    _case("red_shared", _start_shared() + _reductions("shared", "red") + _copy_shared(len(REDUCTIONS)), ((len(REDUCTIONS),), "u8")),
    _case("atom_shared", _start_shared() + _reductions("shared", "atom") + _copy_shared(len(REDUCTIONS)), ((len(REDUCTIONS),), "u8")),
    _case("exchanges", EXCHANGES, ((768,), "u4")),
    _case("compare_and_swap_loop", CAS_LOOP, ((128,), "u4"), expected=lambda inputs: np.full(128, inputs[0][:128].sum(dtype=np.uint32))),
    _case("tickets", TICKETS, ((3,), "u4"), ctas=3, expected=lambda _: np.array([384, (np.arange(384) ** 2).sum(), 2], np.uint32)),
    _case("barriers", BARRIERS, ((128,), "u4")),
    _case("named_barriers", PRODUCERS, ((128,), "u4")),
    _case("mbarrier_parity", PARITY, ((128,), "u4")),
    _case("mbarrier_counts", STATES, ((6,), "u4")),
    _case("cp_async", CP_ASYNC, ((128, 12), "u4"), count=1024 + 512),
    _case("cp_async_mbarrier", CP_ASYNC_BARRIER, ((512,), "u4"), count=1024),
    _case("bulk_copies", BULK, ((516,), "u4")),
    _case("bulk_reductions", BULK_REDUCE, ((2048,), "u4")),
    _case("bulk_groups", GROUPS, ((384,), "u4"), expected=lambda inputs: np.concatenate([inputs[0][:128], ~inputs[0][:128], inputs[0][:128] + np.uint32(7)])),
    _case("setmaxnreg", SETMAXNREG, ((256,), "u4"), threads=256, directives=".maxnreg 64", expected=lambda inputs: inputs[0][:256] * np.uint32(3)),
]  # fmt: skip
