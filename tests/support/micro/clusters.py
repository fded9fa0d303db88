"""Clusters: ranks, windows, distributed shared memory, the cluster's barrier, remote barriers, bytes sent to a peer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from micro.case import CLUSTER_SYNC, INIT, Case, linear, load, once, store, wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from micro.case import Array, Expected

SHARED = ".shared .align 1024 .b8 s[8192]; .shared .align 8 .b64 bar[8];\n.reg .b32 s0, b0, size; mov.u32 s0, s; mov.u32 b0, bar; mov.u32 size, %cluster_nctarank;\n"
THREADS = 64


def _words(count: int):  # type: ignore[no-untyped-def]  # noqa: ANN202
    return lambda rng: [rng.integers(0, 2**32, count, np.uint32)]


def cases(
    name: str, body: str, sizes: tuple[int, ...], expected: Callable[[Array], Array] | None = None
) -> list[Case]:
    """The kernel in clusters of each size, two clusters; %r0 numbers the threads, %r1 is a random word of each."""
    first = SHARED + linear() + load("%r1", "u32") + "\n"
    return [
        Case(
            f"{name}_{size}",
            first + body,
            ((2 * size * THREADS,), "u4"),
            _words(2 * size * THREADS),
            ctas=2 * size,
            cluster=size,
            threads=THREADS,
            expected=_by_rank(size, expected) if expected else None,
        )
        for size in sizes
    ]


def _by_rank(size: int, of_cluster: Callable[[Array], Array]) -> Expected:
    """`of_cluster` maps the words of a cluster, (rank, thread), to what it writes."""

    def expected(inputs: list[Array]) -> Array:
        words = inputs[0].reshape(2, size, THREADS)
        return np.stack([of_cluster(cluster) for cluster in words]).reshape(-1)

    return expected


def _read_all(words: Array) -> Array:
    found = np.zeros(THREADS, np.uint32)
    for row in words:
        found = found * np.uint32(31) + row
    return np.tile(found, (len(words), 1))


def _next(words: Array) -> Array:
    return np.roll(words, -1, axis=0)


def _previous(words: Array) -> Array:
    return np.roll(words, 1, axis=0)


def _rounds(words: Array) -> Array:
    for _ in range(3):
        words = _next(words) + words * np.uint32(17)
    return words


def _ring(words: Array) -> Array:
    found = np.zeros_like(words)
    for _ in words:
        words = _previous(words)
        found = found * np.uint32(5) + words
    return found


def _sums(words: Array) -> Array:
    """Thread i of 0 to 7 of every rank: sum, maximum and wide sum of the words of threads i, i + 8, ... of all ranks."""
    found = np.zeros_like(words)
    for i in range(8):
        mine = words[:, i::8].ravel()
        wide = int((mine.astype(object) * 0x10001).sum()) & (1 << 64) - 1
        total = (int(mine.sum(dtype=np.uint32)) + int(mine.max())) & 0xFFFFFFFF
        found[:, i] = np.uint32((total * 3 + ((wide & 0xFFFFFFFF) ^ wide >> 32)) & 0xFFFFFFFF)
    return found


NEXT = "add.u32 %r2, rank, 1; setp.ge.u32 %p1, %r2, size; @%p1 mov.u32 %r2, 0;\n"
"""%r2 is the next rank."""

PUT_OWN = "mad.lo.u32 %r8, t, 4, s0; st.shared.u32 [%r8], %r1;\n"

# every rank reads every rank
READ_ALL = f"""{PUT_OWN} {CLUSTER_SYNC}
mov.u32 %r2, 0; mov.u32 %r3, 0;
LOOP: mapa.shared::cluster.u32 %r4, %r8, %r2; ld.shared::cluster.u32 %r5, [%r4]; mad.lo.u32 %r3, %r3, 31, %r5; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, size; @%p1 bra LOOP;
{CLUSTER_SYNC} {store("%r3")}
"""

# every rank writes into every rank, 16 bytes at a time
WRITE_ALL = f"""
mov.u32 %r2, 0; {CLUSTER_SYNC} mul.lo.u32 %r6, rank, {THREADS * 16};  mad.lo.u32 %r7, t, 16, s0; setp.ge.u32 %p2, rank, 8; @%p2 trap; add.u32 %r7, %r7, %r6;
LOOP: mapa.shared::cluster.u32 %r4, %r7, %r2; add.u32 %r5, %r1, %r2; st.shared::cluster.v4.u32 [%r4], {{%r5, rank, t, %r2}}; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, size; @%p1 bra LOOP;
{CLUSTER_SYNC} mov.u32 %r2, 0; mov.u32 %r3, 0; xor.b32 %r9, t, 21;
SUM: mul.lo.u32 %r6, %r2, {THREADS * 16}; add.u32 %r6, %r6, s0; mad.lo.u32 %r6, %r9, 16, %r6; ld.shared.v4.u32 {{%r10, %r11, %r12, %r13}}, [%r6]; mad.lo.u32 %r3, %r3, 7, %r10; mad.lo.u32 %r3, %r3, 7, %r11; mad.lo.u32 %r3, %r3, 7, %r12; mad.lo.u32 %r3, %r3, 7, %r13;
add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, size; @%p1 bra SUM; {store("%r3")}
"""

# every thread adds into a place of every rank; a sum, a maximum, a wide sum
ATOMICS = f"""
mad.lo.u32 %r8, t, 16, s0; st.shared.v4.u32 [%r8], {{0, 0, 0, 0}}; {CLUSTER_SYNC}
mov.u32 %r2, 0; and.b32 %r3, t, 7; mad.lo.u32 %r3, %r3, 16, s0; cvt.u64.u32 %d1, %r1; mul.lo.u64 %d1, %d1, 0x10001;
LOOP: mapa.shared::cluster.u32 %r4, %r3, %r2; red.relaxed.cluster.shared::cluster.add.u32 [%r4], %r1; atom.relaxed.cluster.shared::cluster.max.u32 %r5, [%r4+4], %r1; atom.shared::cluster.add.u64 %d2, [%r4+8], %d1;
add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, size; @%p1 bra LOOP; {CLUSTER_SYNC}
ld.shared.v4.u32 {{%r10, %r11, %r12, %r13}}, [%r8]; add.u32 %r10, %r10, %r11; xor.b32 %r12, %r12, %r13; mad.lo.u32 %r10, %r10, 3, %r12; {store("%r10")}
"""

# generic addresses of peers; what the address tests say of them
WINDOWS = f"""{PUT_OWN} {NEXT} {CLUSTER_SYNC}
cvt.u64.u32 %d1, %r8; cvta.shared.u64 %d1, %d1; mapa.u64 %d2, %d1, %r2; ld.u32 %r3, [%d2]; mapa.shared::cluster.u32 %r4, %r8, %r2; cvt.u64.u32 %d3, %r4; cvta.shared::cluster.u64 %d4, %d3; ld.u32 %r5, [%d4];
getctarank.u64 %r6, %d2; getctarank.shared::cluster.u32 %r7, %r4; mov.u32 %r9, 0; setp.eq.u64 %p1, %d2, %d4; @%p1 or.b32 %r9, %r9, 1;
isspacep.shared::cta %p1, %d1; @%p1 or.b32 %r9, %r9, 2; isspacep.shared::cluster %p1, %d2; @%p1 or.b32 %r9, %r9, 4; isspacep.shared::cta %p1, %d2; @%p1 or.b32 %r9, %r9, 8; isspacep.global %p1, %d2; @%p1 or.b32 %r9, %r9, 16;
getctarank.u64 %r10, %d1; setp.eq.u32 %p1, %r10, rank; @%p1 or.b32 %r9, %r9, 32; isspacep.shared::cluster %p1, %d1; @%p1 or.b32 %r9, %r9, 64; cvta.to.shared::cluster.u64 %d5, %d2; cvt.u32.u64 %r11, %d5; setp.eq.u32 %p1, %r11, %r4; @%p1 or.b32 %r9, %r9, 128;
sub.u32 %r3, %r3, %r5; mad.lo.u32 %r3, %r3, 3, %r5; mad.lo.u32 %r3, %r3, 100, %r6; mad.lo.u32 %r3, %r3, 100, %r7; mad.lo.u32 %r3, %r3, 1000, %r9; {CLUSTER_SYNC} {store("%r3")}
"""

# three rounds with the cluster's barrier apart: arrive, work of one's own, wait
ROUNDS = f"""{NEXT} mov.u32 %r3, %r1; mov.u32 %r9, 0; mad.lo.u32 %r8, t, 4, s0; mapa.shared::cluster.u32 %r4, %r8, %r2;
LOOP: st.shared.u32 [%r8], %r3; barrier.cluster.arrive.release.aligned; mul.lo.u32 %r6, %r3, 17; barrier.cluster.wait.acquire.aligned; ld.shared::cluster.u32 %r5, [%r4]; barrier.cluster.arrive.release; add.u32 %r3, %r5, %r6; barrier.cluster.wait.acquire;
add.u32 %r9, %r9, 1; setp.lt.u32 %p1, %r9, 3; @%p1 bra LOOP; {store("%r3")}
"""

# relaxed arrivals order nothing, but with a fence they do
RELAXED = f"""{PUT_OWN} {NEXT} fence.acq_rel.cluster; barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;
mapa.shared::cluster.u32 %r4, %r8, %r2; ld.shared::cluster.u32 %r5, [%r4]; {CLUSTER_SYNC} {store("%r5")}
"""

_BARRIER = (
    once(
        f"mbarrier.init.shared::cta.b64 [b0], 1; mbarrier.init.shared::cta.b64 [b0+8], size; {INIT}"
    )
    + CLUSTER_SYNC
)

# a ring: each rank hands its words on, `size` steps, with a barrier of the receiver for each
RING = f"""
{once("".join(f"mbarrier.init.shared::cta.b64 [b0+{8 * i}], {THREADS};" for i in range(8)) + INIT)} {CLUSTER_SYNC} {NEXT}
mov.u32 %r3, %r1; mov.u32 %r9, 0; mov.u32 %r11, 0; mapa.shared::cluster.u32 %r10, b0, %r2;
LOOP: mul.lo.u32 %r5, %r9, {4 * THREADS}; add.u32 %r5, %r5, s0; mad.lo.u32 %r5, t, 4, %r5; mapa.shared::cluster.u32 %r4, %r5, %r2; st.shared::cluster.u32 [%r4], %r3; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r10]; add.u32 %r10, %r10, 8;
mad.lo.u32 %r6, %r9, 8, b0; {{ .reg .pred done; AGAIN: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%r6], 0; @!done bra AGAIN; }} ld.shared.u32 %r3, [%r5]; mad.lo.u32 %r11, %r11, 5, %r3;
add.u32 %r9, %r9, 1; setp.lt.u32 %p1, %r9, size; @%p1 bra LOOP; {CLUSTER_SYNC} {store("%r11")}
"""

# each rank's thread 0 arrives at every rank's barrier, with counts and with bytes
ARRIVALS = f"""{_BARRIER} {PUT_OWN} bar.sync 0;
{
    once('''mov.u32 %r2, 0; LOOP: mapa.shared::cluster.u32 %r4, b0, %r2; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r4+8]; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, size; @%p1 bra LOOP;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [b0], 24; ''')
}
{{ .reg .pred done; A2: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [b0+8], 0; @!done bra A2; }}
{NEXT} {
    once(
        "mapa.shared::cluster.u32 %r4, b0, %r2; mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r4], 24;"
    )
}
{wait("b0", 0)} mapa.shared::cluster.u32 %r4, %r8, %r2; ld.shared::cluster.u32 %r5, [%r4]; {
    CLUSTER_SYNC
} {store("%r5")}
"""

# st.async of every width to the next rank, and red.async to it
ST_ASYNC = f"""{_BARRIER} {NEXT}
{once(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [b0], {THREADS * 28};")}
mapa.shared::cluster.u32 %r10, b0, %r2; mul.lo.u32 %r8, t, 16; add.u32 %r8, %r8, s0; mapa.shared::cluster.u32 %r4, %r8, %r2; mad.lo.u32 %r5, t, 8, s0; mapa.shared::cluster.u32 %r6, %r5, %r2; mad.lo.u32 %r7, t, 4, s0; mapa.shared::cluster.u32 %r9, %r7, %r2;
not.b32 %r11, %r1; cvt.u64.u32 %d1, %r1; mul.lo.u64 %d1, %d1, 0x300000007;
st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%r4], {{%r1, rank, t, %r11}}, [%r10]; st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%r6+1024], %d1, [%r10]; st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r9+1536], %r11, [%r10];
{wait("b0", 0)} ld.shared.v4.u32 {{%r12, %r13, %r14, %r15}}, [%r8]; ld.shared.v2.u32 {{%r16, %r17}}, [%r5+1024]; ld.shared.u32 %r18, [%r7+1536];
mov.u32 %r3, %r12; mad.lo.u32 %r3, %r3, 7, %r13; mad.lo.u32 %r3, %r3, 7, %r14; mad.lo.u32 %r3, %r3, 7, %r15; mad.lo.u32 %r3, %r3, 7, %r16; mad.lo.u32 %r3, %r3, 7, %r17; mad.lo.u32 %r3, %r3, 7, %r18; {CLUSTER_SYNC} {store("%r3")}
"""

_ASYNC = (
    "add.u32",
    "min.u32",
    "max.u32",
    "min.s32",
    "max.s32",
    "and.b32",
    "or.b32",
    "xor.b32",
    "inc.u32",
    "dec.u32",
    "add.u64",
)
RED_ASYNC = f"""{_BARRIER} {NEXT} setp.ge.u32 %p2, t, 32; mad.lo.u32 %r8, t, 8, s0; st.shared.u64 [%r8], 0; fence.proxy.async; {CLUSTER_SYNC}
{once(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [b0], {THREADS * (4 * len(_ASYNC) + 4)};")}
mapa.shared::cluster.u32 %r10, b0, %r2; mapa.shared::cluster.u32 %r4, s0, %r2; cvt.u64.u32 %d1, %r1; mul.lo.u64 %d1, %d1, 0x300000007;
{"".join(f"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{word} [%r4+{8 * i}], {'%d1' if '64' in word else '0x7fffffff' if word[:3] in {'inc', 'dec'} else '%r1'}, [%r10];" for i, word in enumerate(_ASYNC))}
{wait("b0", 0)} ld.shared.u64 %d2, [%r8]; cvt.u32.u64 %r3, %d2; shr.u64 %d2, %d2, 32; cvt.u32.u64 %r5, %d2; mad.lo.u32 %r3, %r5, 3, %r3; {CLUSTER_SYNC} {store("%r3")}
"""

# bulk copies from one CTA's shared memory to the next one's, and from global memory to all of a mask
BULK_PEER = f"""{_BARRIER} {NEXT} {PUT_OWN} fence.proxy.async; bar.sync 0;
{
    once(f'''mbarrier.arrive.expect_tx.shared::cta.b64 _, [b0], {4 * THREADS}; mapa.shared::cluster.u32 %r10, b0, %r2; mapa.shared::cluster.u32 %r4, s0, %r2;
cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r4+1024], [s0], {4 * THREADS}, [%r10];''')
}
{wait("b0", 0)} ld.shared.u32 %r3, [%r8+1024]; {CLUSTER_SYNC} {store("%r3")}
"""

BULK_MULTICAST = f"""
{once(f"mbarrier.init.shared::cta.b64 [b0], 1; {INIT} ")} {CLUSTER_SYNC}
mov.u32 %r2, 0; mov.u32 %r3, 0; sub.u32 %r4, size, 1;
{
    once(
        f"mad.lo.u32 %r5, size, {2 * THREADS}, 0; mbarrier.arrive.expect_tx.shared::cta.b64 _, [b0], %r5;"
    )
} {CLUSTER_SYNC}
{
    once(f'''mov.u32 %r6, %clusterid.x; mad.lo.u32 %r6, %r6, size, rank; mul.wide.u32 %d1, %r6, {4 * THREADS}; add.u64 %d1, %d1, IN0; mad.lo.u32 %r7, rank, {2 * THREADS}, s0;
mov.u32 %r8, 1; shl.b32 %r8, %r8, size; sub.u32 %r8, %r8, 1; cvt.u16.u32 %h1, %r8; cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r7], [%d1], {2 * THREADS}, [b0], %h1;''')
}
{wait("b0", 0)} mad.lo.u32 %r8, t, 2, s0;
LOOP: ld.shared.u16 %r5, [%r8]; mad.lo.u32 %r3, %r3, 31, %r5; add.u32 %r8, %r8, {
    2 * THREADS
}; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, size; @%p1 bra LOOP; {CLUSTER_SYNC} {store("%r3")}
"""

CASES = [
    *cases("dsmem_read_all", READ_ALL, (2, 8), _read_all),
    *cases("dsmem_write_all", WRITE_ALL, (4, 8)),
    *cases("dsmem_atomics", ATOMICS, (2, 8), _sums),
    *cases("windows", WINDOWS, (2, 4)),
    *cases("cluster_rounds", ROUNDS, (3, 8), _rounds),
    *cases("cluster_relaxed", RELAXED, (4,), _next),
    *cases("ring", RING, (2, 5), _ring),
    *cases("remote_arrivals", ARRIVALS, (4,), _next),
    *cases("st_async", ST_ASYNC, (2, 4)),
    *cases("red_async", RED_ASYNC, (2, 4)),
    *cases("bulk_to_peer", BULK_PEER, (2, 4), _previous),
    *cases("bulk_multicast", BULK_MULTICAST, (2, 4)),
]
