"""The Blackwell GEMM kernel as compiled: nothing spills, and PTX and SASS say what the plan's ledger says.

No GPU runs it here. Counts, bytes and masks come from the protocol, which derives them from roles and
sharing; the compiled text gives them a second time. Descriptor words come from the PTX ISA's tables and from
a kernel that CUTLASS's layout types described (0x10200490 and 0x4000404000010000 for 256x128 bf16).
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from built import barrier_counts, build_gemm, constants, faults, opcodes, operands

from tilewright.device import load
from tilewright.errors import Unsupported
from tilewright.kernels.config import ENTRY, GemmConfig
from tilewright.problem import OUT_BYTES
from tilewright.protocol import Protocol, make_protocol, ranks_of
from tilewright.tile_map import Raster, cta_shares
from tilewright.tiling import make_tiling

if TYPE_CHECKING:
    from tilewright.run.compiler import Compiled

pytestmark = pytest.mark.toolkit

B200 = load("b200")


class Case(NamedTuple):
    """What a kernel is compiled for, beyond the defaults of GemmConfig."""

    dtype: str = "bf16"
    out: str = "bf16"
    tile: tuple[int, int] = (128, 128)
    cluster: tuple[int, int] = (1, 1)
    group: int = 1
    scheduler: str = "static"
    stages: int | None = None
    accumulators: int | None = None
    more: tuple[tuple[str, Any], ...] = ()

    def config(self) -> GemmConfig:
        tiling = make_tiling(
            self.dtype,
            OUT_BYTES[self.out],
            B200,
            cta_tile=self.tile,
            cluster_shape=(*self.cluster, 1),
            cta_group=self.group,
            num_stages=self.stages,
            accumulator_stages=self.accumulators,
        )
        return GemmConfig(
            tiling, Raster("m", 8), self.scheduler, out_dtype=self.out, **dict(self.more)
        )

    def __str__(self) -> str:
        parts = [self.dtype, self.out, f"{self.tile[0]}x{self.tile[1]}", f"{self.cluster}"]
        parts += [f"group{self.group}", self.scheduler, *(name for name, _ in self.more)]
        return " ".join(parts)


def more(**options: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(options.items())


ADDENDS = more(has_c=True, has_bias=True)
NO_TMA = more(store_by_tma=False)
RAGGED_M = more(ragged="m", max_groups=300)
RAGGED_K = more(ragged="k", max_groups=9)
SWAPPED = more(swap_ab=True)
SWAPPED_RAGGED = more(swap_ab=True, ragged="n", max_groups=64)

LARGE = [  # the plan's own choices for large problems
    Case(tile=(128, 256), cluster=(2, 1), group=2, scheduler="clc"),
    Case("fp8_e4m3", tile=(128, 256), cluster=(2, 1), group=2, scheduler="clc"),
    Case(tile=(128, 256), scheduler="clc"),
]
SCHEDULED = [
    Case(tile=(128, 192), cluster=cluster, group=group, scheduler=scheduler)
    for scheduler in ("single_tile", "static", "static_blocked", "dynamic_atomic", "clc")
    for cluster, group in (((1, 1), 1), ((2, 2), 1), ((4, 1), 2))
    if scheduler in {"dynamic_atomic", "clc"} or cluster != (2, 2)
]
TYPES = [
    Case(cluster=(2, 1), group=2),
    Case("fp16", "fp16"),
    Case("fp16", "fp32", cluster=(2, 1), group=2),
    Case("fp8_e5m2", "fp16", cluster=(2, 1)),
    Case("fp8_e4m3", "fp32", (64, 128)),
    Case("fp8_e5m2", "bf16", (128, 224), (2, 2), 2),
]
TILES = [  # the smallest and odd ones, with lines of 64 and 32 bytes; then the largest clusters
    Case(tile=(64, 16), cluster=(1, 2)),
    Case(tile=(128, 16), cluster=(2, 1), group=2, stages=2),
    Case(tile=(128, 48), out="fp32"),
    Case(tile=(64, 256), cluster=(4, 4), accumulators=1, scheduler="static_blocked"),
    Case(tile=(128, 240), cluster=(2, 1), group=2, accumulators=1, stages=1),
    Case(cluster=(16, 1), group=2, scheduler="clc", more=more(schedule_depth=3)),
    Case(tile=(128, 256), cluster=(2, 8), group=2, scheduler="dynamic_atomic"),
]
EPILOGUES = [
    Case(more=ADDENDS),
    Case(out="fp32", cluster=(2, 1), group=2, more=ADDENDS + NO_TMA),
    Case(tile=(64, 80), out="fp16", more=ADDENDS + NO_TMA),
    Case(cluster=(2, 1), group=2, more=SWAPPED),
    Case(tile=(64, 144), out="fp32", more=SWAPPED + ADDENDS),
    Case(tile=(128, 16), more=SWAPPED + NO_TMA),
]
GROUPED = [
    Case(cluster=(2, 1), group=2, scheduler="clc", more=RAGGED_M),
    Case(tile=(128, 160), scheduler="dynamic_atomic", more=RAGGED_M + ADDENDS),
    Case(tile=(128, 32), cluster=(2, 1), group=2, scheduler="clc", more=SWAPPED_RAGGED),
    Case("fp8_e4m3", cluster=(2, 2), group=2, more=RAGGED_K),
    Case(tile=(64, 64), out="fp32", scheduler="clc", more=RAGGED_K),
]
CASES = LARGE + SCHEDULED + TYPES + TILES + EPILOGUES + GROUPED
PAIR_CLC, _, SINGLE_CLC = LARGE


@cache
def build(case: Case) -> Compiled:
    return build_gemm(case.config(), "sm_100a")


def protocol_of(case: Case) -> Protocol:
    config = case.config()
    return make_protocol(config.tiling, case.scheduler, B200, clc_depth=config.schedule_depth)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_compiles_without_spills_and_warnings(case: Case) -> None:
    found, tiling = build(case), case.config().tiling
    assert not faults(found, ENTRY, tiling.threads)
    assert all(use.registers <= tiling.regs for use in found.functions)


@pytest.mark.parametrize("case", LARGE + SCHEDULED + TILES, ids=str)
def test_barriers_have_the_ledger_s_counts(case: Case) -> None:
    config, protocol = case.config(), protocol_of(case)
    answers = {"clc": "clc", "dynamic_atomic": "work"}.get(case.scheduler)
    names = ["full", "empty", "acc_full", "acc_empty"]
    if answers:
        names += [f"{answers}_full", f"{answers}_empty", f"{answers}_throttle"]
    expected = [
        protocol.arrive_count(name) for name in names for _ in range(protocol.barrier(name).depth)
    ]
    ptx = build(case).ptx
    assert barrier_counts(ptx) == expected
    armed = set(operands(ptx, "mbarrier.arrive.expect_tx"))
    assert armed == {protocol.tx_bytes(barrier.name) for barrier in protocol.barriers} - {0}
    tmem = {int(count) for count in re.findall(r"tcgen05\.(?:de)?alloc\S* \S+, (\d+);", ptx)}
    assert tmem == {config.tiling.tmem_columns}


@pytest.mark.parametrize(("cluster", "group"), [((2, 1), 2), ((4, 2), 2), ((2, 2), 1)], ids=str)
def test_masks_are_the_ledger_s(cluster: tuple[int, int], group: int) -> None:
    """Compiled once a rank: what it multicasts to, to whom its MMA warp releases, whom it tells."""
    case = Case(tile=(128, 64), cluster=cluster, group=group, stages=2)
    tiling = case.config().tiling
    shares = cta_shares(tiling.cta_tile, tiling.cluster_shape, group, multicast=tiling.multicast)
    protocol = protocol_of(case)
    released, told = (protocol.barrier(name).signals[0].targets for name in ("empty", "acc_full"))
    for share in shares:
        ptx = build_gemm(case.config(), "sm_100a", share.rank).ptx
        loads = [mask for mask in (share.a_mask, share.b_mask) if len(ranks_of(mask)) > 1]
        assert operands(ptx, "cp.async.bulk.tensor.3d.shared::cluster") == loads
        masks = operands(ptx, f"tcgen05.commit.cta_group::{group}.")
        if not share.leader:
            assert "tcgen05.commit" not in ptx
            assert "tcgen05.mma" not in ptx
        elif group == 2:
            assert masks == [released[share.rank], told[share.rank]]
        else:  # a CTA's own barrier needs no mask
            assert (masks, told[share.rank]) == ([released[share.rank]], 1 << share.rank)
            assert len(re.findall(r"tcgen05\.commit\S+ \[%\w+\];", ptx)) == 1


@pytest.mark.parametrize("case", LARGE + SCHEDULED + TYPES[4:], ids=str)
def test_sass_has_the_plan_s_instructions(case: Case) -> None:
    config, found = case.config(), opcodes(build(case))
    tiling = config.tiling
    mma = "UTCQMMA" if case.dtype.startswith("fp8") else "UTCHMMA"
    pair = ".2CTA" if case.group == 2 else ""
    mmas = [opcode for opcode in found if opcode.startswith("UTC") and "MMA" in opcode]
    assert set(mmas) == {mma + pair}
    assert len(mmas) == tiling.cta_tile.k // tiling.mma.shape.k
    loads = [opcode for opcode in found if opcode.startswith("UTMALDG")]
    x, y = case.cluster
    expected = [
        "UTMALDG.3D" + (".MULTICAST" if shared else "") + pair for shared in (y > 1, x > case.group)
    ]
    assert sorted(loads) == sorted(expected)
    assert ("MULTICAST" in " ".join(loads)) == tiling.multicast
    asks = {opcode for opcode in found if opcode.startswith("UGETNEXTWORKID")}
    how = "SELFCAST" if tiling.cluster_size == 1 else "BROADCAST"
    assert asks == ({f"UGETNEXTWORKID.{how}"} if case.scheduler == "clc" else set())
    assert any(opcode.startswith("LDTM") for opcode in found)
    assert any(opcode.startswith("UTMASTG") for opcode in found)


@pytest.mark.parametrize(
    ("case", "word"),
    [
        # fp32 << 4 | bf16 << 7 | bf16 << 10 | n / 8 << 17 | m / 16 << 24
        (Case(cluster=(2, 1), group=2), 0x10200490),
        (Case("fp16", "fp16"), 1 << 4 | 128 // 8 << 17 | 128 // 16 << 24),
        (
            Case("fp8_e5m2", "fp16", cluster=(2, 1)),
            1 << 4 | 1 << 7 | 1 << 10 | 128 // 8 << 17 | 128 // 16 << 24,
        ),
        (Case("fp8_e4m3", "fp32", (64, 128)), 1 << 4 | 128 // 8 << 17 | 64 // 16 << 24),
    ],
    ids=str,
)
def test_descriptors(case: Case, word: int) -> None:
    ptx = build(case).ptx
    kind = "f8f6f4" if case.dtype.startswith("fp8") else "f16"
    instructions = [
        known[text.split(", ")[3]]
        for text, known in constants(ptx)
        if text.startswith(f"tcgen05.mma.cta_group::{case.group}.kind::{kind} ")
    ]
    assert set(instructions) == {word}
    assert str(0x4000404000010000) in ptx, (
        "K-major, 128-byte swizzle, 1024 bytes a group, version 1"
    )


@pytest.mark.parametrize(
    ("tile", "cluster", "group", "says"),
    [
        ((64, 128), (2, 1), 2, "128 rows a CTA, not 64"),
        ((64, 128), (1, 16), 1, "cannot share the 64 rows of A"),
        ((128, 48), (8, 1), 2, "cannot share the 24 rows of B"),
    ],
)
def test_what_the_kernel_would_refuse(
    tile: tuple[int, int], cluster: tuple[int, int], group: int, says: str
) -> None:
    with pytest.raises(Unsupported, match=says):
        Case(tile=tile, cluster=cluster, group=group).config()


def test_the_pair_is_launched_before_it_allocates() -> None:
    """PTX ISA, tcgen05.alloc: with cta_group::2 the warp must make sure that the peer CTA is launched."""
    order = re.findall(r"barrier\.cluster\.\w+|tcgen05\.\w+_?\w*", build(PAIR_CLC).ptx)
    assert order.index("barrier.cluster.wait") < order.index("tcgen05.alloc")
    assert order.index("tcgen05.alloc") < order.index("tcgen05.relinquish_alloc_permit")
    assert order[-1] == "tcgen05.dealloc"
    assert "barrier.cluster" not in build(SINGLE_CLC).ptx
