"""The contract recovered from PTX: expected values were read from the sources by hand, or are a plan's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from audit_pairs import text_of
from tilewright import Gemm, load, make_plan
from tilewright.audit.contract import KernelContract, compare_with_plan, recover_contract
from tilewright.audit.kernel import Kernel, Options
from tilewright.ptx import parse_ptx, parse_ptx_file
from tilewright.ptx.flow import Flow
from tilewright.ptx.values import Shape, Values

if TYPE_CHECKING:
    from pathlib import Path


def contract_of(name: str, options: Options | None = None) -> KernelContract:
    module = parse_ptx(text_of(name))
    return recover_contract(Kernel(module, module.functions[0], options or Options()))


def test_ledger_of_the_pair_gemm_with_clc() -> None:
    """gemm_clc2_full.ptx: a ring of four, one accumulator, one CLC answer, a cluster of two.

    By hand: `init` lines 80 to 130; A is 128x64 and B 64x64 bf16 in each CTA, so a pair's stage is
    2 x (16384 + 8192) bytes; tempty has 4 warps x 2 CTAs; cempty the TMA warp and 4 epilogue warps in both
    CTAs, the MMA and the scheduler warp in rank 0.
    """
    contract = contract_of("gemm_clc2_full")
    assert contract.cluster_shape == (2, 1, 1)
    assert contract.scheduler == "clc"
    assert (contract.cta_group, contract.tmem_columns) == (2, 128)
    rows = {row.barrier: (row.depth, row.arrive_count, row.tx_bytes) for row in contract.barriers}
    assert rows == {
        "full": (4, 1, (49152,)),
        "empty": (4, 1, ()),
        "tfull": (1, 1, ()),
        "tempty": (1, 8, ()),
        "cfull": (1, 1, (16,)),
        "cempty": (1, 2 * (1 + 4) + 2, ()),
    }


def test_who_arrives_and_who_waits() -> None:
    rows = {row.barrier: row for row in contract_of("gemm_clc2_full").barriers}
    (commit,) = rows["tfull"].arrives
    assert (commit.instruction, commit.threads, set(commit.mask)) == ("tcgen05.commit", (1, 0), {3})
    (epilogue,) = rows["tempty"].arrives
    assert (epilogue.threads, epilogue.remote) == ((4, 4), True)
    (wait,) = rows["tfull"].waits
    assert (wait.threads, wait.exact) == ((128, 128), True)
    (request,) = rows["cfull"].completes
    assert (request.instruction, request.threads) == ("clusterlaunchcontrol.try_cancel", (1, 0))
    (armed,) = rows["cfull"].arrives
    assert armed.remote, "the leader arms both CTAs"
    assert len(armed.lines) == 2


def test_ledger_of_the_wgmma_gemm() -> None:
    """gemm_wgmma_full.ptx has a ring without CLC; every barrier of it is understood."""
    contract = contract_of("gemm_wgmma_full")
    assert contract.scheduler == "static or single_tile"
    assert contract.cta_group is None
    assert contract.clc == ()
    assert all(row.depth and row.arrive_count and row.waits for row in contract.barriers)


def test_a_kernel_that_says_nothing_of_its_cluster_is_unknown(tmp_path: Path) -> None:
    file = tmp_path / "k.ptx"
    file.write_text(
        ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 p) { ret; }\n"
    )
    module = parse_ptx_file(file)
    silent = recover_contract(Kernel(module, module.functions[0]))
    assert silent.cluster_shape is None
    told = recover_contract(Kernel(module, module.functions[0], Options(cluster=(4, 1, 1))))
    assert told.cluster_shape == (4, 1, 1)


def plan_of_pair() -> dict[str, Any]:
    plan = make_plan(Gemm(m=4096, n=4096, k=4096), load("b200"))
    return json.loads(plan.model_dump_json())  # type: ignore[no-any-return]


def test_a_kernel_against_another_kernel_s_plan() -> None:
    """The plan's ring is deeper than the four stages of this kernel: the difference names both."""
    plan = plan_of_pair()
    differences = compare_with_plan(contract_of("gemm_clc2_full"), plan)
    full = next(row for row in plan["contract"]["barriers"] if row["barrier"] == "full")
    assert full["depth"] != 4
    assert any(line.startswith("barrier full: no ring of") for line in differences)
    assert any("barrier full of the kernel (ring of 4" in line for line in differences)
    assert any(line.startswith("scheduler: the plan has") for line in differences)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mov.u32 %r1, %cluster_ctarank; and.b32 %r2, %r1, -2; mov.b32 %r3, 3; shl.b32 %r4, %r3, %r2;",
         [3, 3, 12, 12]),
        ("mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; mov.b32 %r3, 7; mad.lo.s32 %r4, %r2, %r3, 1;", [1, 1, 1, 1]),
        ("mov.u32 %r1, %cluster_ctarank; setp.eq.u32 %p1, %r1, 2; selp.b32 %r4, 5, 6, %p1;", [6, 6, 5, 6]),
    ],
)  # fmt: skip
def test_values_by_rank(tmp_path: Path, text: str, expected: list[int]) -> None:
    """Thread 0 of each CTA of a cluster of four; expected values computed by hand."""
    file = tmp_path / "v.ptx"
    file.write_text(
        ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 p)\n"
        "{ .reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<3>;\n"
        f"{text}\nst.global.u32 [%rd1], %r4;\nret;\n}}\n"
    )
    flow = Flow(parse_ptx_file(file).functions[0])
    values = Values(flow, Shape((4, 1, 1), (64, 1, 1), cluster_known=True, block_known=True))
    store = next(op for op in flow.ops if op.node.opcode.root == "st")
    found = values.of(store.operands[1], store)
    assert found.known
    full = found.constant + 0 * values.executes(store)[0]
    assert full[:, 0].tolist() == expected


def test_one_lane_one_warp_one_rank() -> None:
    """Who may execute: the elected lane of warp 1 in rank 0, all of two warps in each CTA."""
    module = parse_ptx(text_of("gemm_clc2_full"))
    kernel = Kernel(module, module.functions[0])
    assert [kernel.per_cta(op) for op in kernel.ops("tcgen05.alloc")] == [[32, 32]]
    assert {tuple(kernel.per_cta(op)) for op in kernel.ops("tcgen05.mma")} == {(1, 0)}
    assert {tuple(kernel.per_cta(op)) for op in kernel.ops("mbarrier.init")} == {(1, 1)}
    lines = [op.span.line for op in kernel.ops("clusterlaunchcontrol.try_cancel")]
    assert len(lines) == 1
