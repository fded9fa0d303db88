"""No false alarm on other people's kernels: Triton, Gluon and quack's CuTe DSL, for Hopper and Blackwell.

Their lines are those of the versions in constraints.txt; `python bench/write_audit_peers.py` writes the tables anew.
"""

from __future__ import annotations

import importlib.util
import re
from typing import TYPE_CHECKING

import pytest

from peer_kernels import (
    DOC,
    PACKAGES,
    audit_peer,
    compile_peers,
    explained,
    warnings_of,
)
from pyptx_rows import both
from tilewright.audit.contract import recover_contract
from tilewright.audit.kernel import Kernel, Options
from tilewright.ptx import parse_ptx

if TYPE_CHECKING:
    from tilewright.audit import Report
    from tilewright.audit.contract import KernelContract, Party

pytestmark = [
    pytest.mark.toolkit,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in PACKAGES),
        reason="install the dependency group `peers`",
    ),
]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return compile_peers(tmp_path_factory.mktemp("peers"))


@pytest.fixture(scope="module")
def reports(kernels: dict[str, str]) -> dict[str, Report]:
    return {name: audit_peer(name, ptx) for name, ptx in kernels.items()}


def test_they_use_what_the_rules_are_about(kernels: dict[str, str]) -> None:
    """At least 25 of each architecture, and each kind of instruction in more than one of them."""
    for arch in ("sm_90", "sm_100"):
        assert sum(arch in name for name in kernels) >= 25
    for word in (
        "clusterlaunchcontrol.try_cancel",
        "multicast::cluster::all",
        "cp.async.bulk.tensor.3d.shared::cluster.global",
        ".multicast::cluster",
        ".cta_group::2",
        "tcgen05.mma",
        "wgmma.mma_async",
        "mapa.shared::cluster",
        "barrier.cluster.arrive",
        "st.async",
        "setmaxnreg",
        "griddepcontrol",
    ):
        assert sum(word in ptx for ptx in kernels.values()) > 1, word


def test_none_has_an_error(reports: dict[str, Report]) -> None:
    found = [
        (name, f.rule, f.span.line, f.message) for name, r in reports.items() for f in r.errors
    ]
    assert found == []


def test_every_warning_is_explained_in_the_docs(reports: dict[str, Report]) -> None:
    listed = dict(explained(DOC.read_text(encoding="utf-8")))
    assert sorted(listed) == sorted(warnings_of(reports))
    assert all(len(reason.split()) > 10 for reason in listed.values())


def test_pyptx_finds_the_same_instructions(kernels: dict[str, str]) -> None:
    """All but quack's GEMMs without cluster launch control, whose loads of parameters pyptx does not know."""
    peer = pytest.importorskip("pyptx.parser")
    unread = 0
    for name, ptx in kernels.items():
        try:
            mine, theirs = both(ptx, peer.parse)
        except ValueError:
            unread += 1
            continue
        assert mine == theirs, name
    assert unread <= 8


# --- the ledger of one of them, against its source: docs/audit_ledger_check.md -----------------------


@pytest.fixture(scope="module")
def contract(kernels: dict[str, str]) -> KernelContract:
    module = parse_ptx(kernels["quack_gemm_clc_pair_sm_100a_c2x1"])
    (function,) = (each for each in module.functions if each.body is not None)
    return recover_contract(Kernel(module, function, Options(cluster=(2, 1, 1))))


def threads(parties: tuple[Party, ...]) -> list[tuple[int, ...]]:
    return sorted(party.threads for party in parties)


def test_ledger_of_quacks_pair_gemm_is_its_source_s(contract: KernelContract) -> None:
    """gemm_sm100.py: make_ab_pipeline, make_acc_pipeline, make_sched_pipeline, and TmemAllocator."""
    assert (contract.scheduler, contract.cta_group, contract.tmem_columns) == ("clc", 2, 512)
    rows = contract.barriers
    assert [(row.depth, row.arrive_count, row.tx_bytes) for row in rows] == [
        (6, 1, (2 * (128 * 64 + 128 * 64) * 2,)),
        (6, 1, ()),
        (512 // 256, 1, ()),
        (512 // 256, 4 * 2, ()),
        (3, 1, (16,)),
        (3, (1 + 1 + 1 + 4) * 2, ()),
        (1, 32, ()),
    ]
    full, empty, acc_full, acc_empty, answer, read, freed = rows
    assert threads(full.arrives) == [(1, 0)]
    assert threads(full.waits) == [(32, 0)]
    assert [(p.instruction, p.threads, set(p.mask)) for p in (*empty.arrives, *acc_full.arrives)] == [
        ("tcgen05.commit", (1, 0), {3})
    ] * 2  # fmt: skip
    assert set(threads(empty.waits)) == {(32, 32)}
    assert threads(acc_full.waits) == [(128, 128)]
    assert [(p.threads, p.remote) for p in acc_empty.arrives] == [((4, 4), True)]
    assert set(threads(acc_empty.waits)) == {(32, 0)}
    assert [(p.threads, p.remote) for p in answer.arrives] == [((2, 0), True)]
    assert [p.threads for p in answer.completes] == [(1, 0)]
    assert threads(answer.waits) == [(32, 32)] * 3 + [(128, 128)]
    assert threads(read.arrives) == [(1, 1)] * 3 + [(4, 4)]
    assert all(party.remote for party in read.arrives)
    assert set(threads(read.waits)) == {(32, 0)}
    assert [(p.threads, p.remote) for p in freed.arrives] == [((32, 32), True)]


def test_loop_of_quacks_pair_gemm_is_its_source_s(contract: KernelContract) -> None:
    """tile_scheduler.py: _issue_clc_query_multicast, _get_current_work_clc, advance_to_next_work."""
    asks, throttle, slot, flight, *rest = (re.sub(r" \(line \d+\)", "", x) for x in contract.clc)
    assert asks.startswith("asks: at most 1 of CTA 0, to every CTA of the cluster")
    assert asks.endswith("3 responses in turn")
    assert throttle == "throttle: meets others at barrier 8 of the CTA"
    assert slot.endswith(", 14 arrivals")
    assert flight.startswith("in flight: one request")
    reads = [line for line in rest if line.startswith("reads:")]
    assert sum("get_first_ctaid::x" in line for line in reads) == 2, "TMA and epilogue warps"
    assert sum("get_first_ctaid" not in line for line in reads) == 2, "MMA and scheduler warps"
    assert sum("leave the loop" in line for line in rest) == 4, "one a role"
    assert contract.dsmem == ()
