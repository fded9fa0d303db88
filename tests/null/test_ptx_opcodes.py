"""The opcode table against what ptxas 13.0 accepted and refused, and against compiled kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.ptx import parse_ptx, parse_ptx_file
from tilewright.ptx.nodes import Opcode
from tilewright.ptx.opcodes import (
    _document,
    _table,
    find_facts,
    operands_by_role,
    state_spaces,
    unsupported_because,
)

DATA = Path(__file__).parents[1] / "data" / "ptx"

CANCEL = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
MULTICAST = f"{CANCEL}.multicast::cluster::all.b128"
UNICAST = f"{CANCEL}.b128"
ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"
RELEASE = "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster"
COPY = (
    "cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
)


def opcode(text: str) -> Opcode:
    root, *modifiers = text.split(".")
    return Opcode(root, tuple(modifiers))


# One-instruction modules given to ptxas 13.0 (V13.0.88): text, target, PTX ISA, whether it was accepted.
PTXAS = [
    (MULTICAST, "sm_100a", (9, 0), True),
    (UNICAST, "sm_100a", (9, 0), True),
    (MULTICAST, "sm_100f", (9, 0), True),
    (MULTICAST, "sm_100", (9, 0), False),
    (UNICAST, "sm_100", (9, 0), True),
    (MULTICAST, "sm_103a", (9, 0), True),
    (MULTICAST, "sm_120a", (9, 0), True),
    (MULTICAST, "sm_120", (9, 0), False),
    (UNICAST, "sm_120", (9, 0), True),
    (MULTICAST, "sm_90a", (9, 0), False),
    (UNICAST, "sm_90a", (9, 0), False),
    (UNICAST, "sm_100", (8, 5), False),
    (UNICAST, "sm_100", (8, 6), True),
    (MULTICAST, "sm_100f", (8, 7), False),
    (MULTICAST, "sm_100f", (8, 8), True),
    ("clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128", "sm_100", (9, 0), True),
    (RELEASE, "sm_100a", (9, 0), True),
    (RELEASE, "sm_90", (9, 0), True),
    (RELEASE, "sm_90", (8, 5), False),
    (ALLOC, "sm_100a", (9, 0), True),
    (ALLOC, "sm_100", (9, 0), False),
    ("tcgen05.mma.cta_group::1.kind::i8", "sm_100f", (9, 0), False),
    ("tcgen05.mma.cta_group::1.kind::i8", "sm_100a", (9, 0), True),
    ("tcgen05.mma.cta_group::1.kind::f16", "sm_90a", (9, 0), False),
    ("wgmma.fence.sync.aligned", "sm_100a", (9, 0), False),
    ("wgmma.fence.sync.aligned", "sm_90", (9, 0), False),
    ("wgmma.fence.sync.aligned", "sm_90a", (9, 0), True),
    ("setmaxnreg.dec.sync.aligned.u32", "sm_100", (9, 0), False),
    ("setmaxnreg.dec.sync.aligned.u32", "sm_100a", (9, 0), True),
    (COPY, "sm_90a", (9, 0), False),
    (COPY, "sm_100", (9, 0), False),
    (COPY, "sm_100a", (9, 0), True),
]


@pytest.mark.parametrize(("text", "target", "version", "accepted"), PTXAS)
def test_support_is_what_ptxas_said(
    text: str, target: str, version: tuple[int, int], accepted: bool
) -> None:
    facts = find_facts(opcode(text))
    assert facts is not None
    assert (unsupported_because(facts, version, target) is None) == accepted


def test_the_reason_names_what_is_needed_and_what_is_there() -> None:
    facts = find_facts(opcode(UNICAST))
    assert facts is not None
    name = "clusterlaunchcontrol.try_cancel"
    assert unsupported_because(facts, (8, 5), "sm_100") == (
        f"{name} needs PTX ISA 8.6; the module declares 8.5"
    )
    assert unsupported_because(facts, (8, 6), "sm_90a") == (
        f"{name} needs target sm_100; the module declares sm_90a"
    )


def test_the_longest_entry_wins() -> None:
    for text, name in {
        COPY: "cp.async.bulk.tensor",
        "cp.async.bulk.prefetch.tensor.2d.L2.global.tile": "cp.async.bulk.prefetch.tensor",
        "cp.async.ca.shared.global": "cp.async",
        "cp.async.mbarrier.arrive.noinc.b64": "cp.async.mbarrier.arrive",
        "fence.proxy.async.shared::cta": "fence.proxy.async",
        RELEASE: "fence.proxy.async::generic",
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32": "st.async",
        "st.shared.f32": "st",
        "bar.warp.sync": "bar.warp.sync",
        "barrier.cluster.wait.acquire.aligned": "barrier.cluster.wait",
        "tcgen05.mma.ws.sp.cta_group::1.kind::f16": "tcgen05.mma.ws.sp",
    }.items():
        facts = find_facts(opcode(text))
        assert facts is not None
        assert facts.name == name
    assert find_facts(opcode("add.s32")) is None


def test_modifiers_change_operands_effect_and_needs() -> None:
    expect = find_facts(opcode("mbarrier.arrive.expect_tx.relaxed.cluster.shared::cta.b64"))
    assert expect is not None
    assert [(role.name, role.access) for role in expect.operands] == [
        ("state", "write"),
        ("mbar", "update"),
        ("tx_bytes", "read"),
    ]
    assert (expect.ptx, expect.effect) == ((8, 6), "arrive_expect")
    load = find_facts(opcode("ld.acquire.gpu.global.b32"))
    assert load is not None
    assert (load.effect, load.ptx) == ("acquire", (6, 0))


@pytest.mark.parametrize(
    ("text", "roles"),
    [
        (f"{COPY} [a], [b, {{c}}], [m];", "dst tensor mbar"),
        (f"{COPY}.multicast::cluster [a], [b, {{c}}], [m], k;", "dst tensor mbar mask"),
        (f"{COPY}.L2::cache_hint [a], [b, {{c}}], [m], p;", "dst tensor mbar policy"),
        ("tcgen05.mma.cta_group::1.kind::f16 [d], a, b, i, p;", "d a b idesc enable_d"),
        (
            "tcgen05.mma.cta_group::1.kind::f16 [d], a, b, i, {x, x, x, x}, p;",
            "d a b idesc disable_lane enable_d",
        ),
        ("tcgen05.mma.cta_group::1.kind::f16 [d], a, b, i, p, 3;", "d a b idesc enable_d scale_d"),
        ("mbarrier.arrive.b64 _, [m];", "state mbar"),
        ("mbarrier.arrive.b64 _, [m], 2;", "state mbar count"),
        ("atom.global.cas.b32 o, [a], c, n;", "old dst value value2"),
        ("bar.sync 1, 64;", "barrier threads"),
    ],
)
def test_operands_get_the_names_of_their_roles(text: str, roles: str) -> None:
    (instruction,) = parse_ptx(f".entry k {{ {text} }}").functions[0].instructions()
    facts = find_facts(instruction.opcode)
    assert facts is not None
    assert list(operands_by_role(facts, instruction)) == roles.split()


def test_state_spaces_in_the_order_written() -> None:
    assert state_spaces(opcode(COPY)) == ("shared::cluster", "global")
    assert state_spaces(opcode("ld.shared::cta.b32")) == ("shared::cta",)
    assert state_spaces(opcode("ld.b32")) == ()


def test_every_row_uses_the_words_that_the_table_explains() -> None:
    accesses = {"read", "write", "load", "store", "update", "address", "free"}
    for words, entry in _table().items():
        facts = entry.facts
        assert facts.section.startswith("9.7."), words
        assert facts.effect
        names = [role.name for role in facts.operands]
        assert len(names) == len(set(names)), words
        assert {role.access for role in facts.operands} <= accesses, words
    document = _document()
    assert set(document["when"]) <= set(document["opcode"])
    for changes in document["when"].values():
        for change in changes:
            assert change.keys() <= {"has", "ptx", "target", "operands", "effect"}


# The roots that reason about ordering, asynchrony or memory; `cvt`, `add` and their like are not here on purpose.
ROOTS = {
    *("mbarrier", "cp", "clusterlaunchcontrol", "tcgen05", "wgmma", "barrier", "bar", "fence"),
    *("membar", "mapa", "getctarank", "st", "red", "ld", "atom", "elect", "griddepcontrol"),
    *("setmaxnreg", "cvta", "isspacep", "multimem", "prefetch"),
}


@pytest.mark.parametrize(
    "name", ["CLC-01_ok", "CLC-08b_ok", "TMA-02_ok", "gemm_clc2_full", "gemm_wgmma_full"]
)
def test_compiled_kernels_use_only_what_their_module_declares(name: str) -> None:
    module = parse_ptx_file(DATA / f"{name}.ptx")
    seen = 0
    for function in module.functions:
        for instruction in function.instructions():
            facts = find_facts(instruction.opcode)
            if instruction.opcode.root not in ROOTS:
                assert facts is None
                continue
            assert facts is not None, instruction.opcode
            seen += 1
            assert unsupported_because(facts, module.version, module.target[0]) is None
            named = operands_by_role(facts, instruction)
            assert tuple(named.values()) == instruction.operands, instruction.text
    assert seen > 10
