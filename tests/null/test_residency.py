"""Residency against the driver's own answers, and the public cases it decides."""

from __future__ import annotations

import csv
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tilewright.device import Device, load
from tilewright.errors import BadInput, NoFit, Unsupported
from tilewright.residency import (
    CtaResources,
    check_cluster_chain,
    check_grid_barrier,
    ctas_per_sm,
    find_residency,
    grid_barrier,
)
from tilewright.topology import (
    busy_bounds,
    clusters_in_group,
    clusters_resident,
    recover_topology,
    unknown_topology_bounds,
)

DATA = Path(__file__).parent.parent / "data" / "h200"
H200 = load("h200")
B200 = load("b200")
ONE_AN_SM = CtaResources(threads=128, smem_bytes=204_800)


def occupancy_rows() -> list[dict[str, str]]:
    with (DATA / "occupancy.csv").open() as file:
        return list(csv.DictReader(file))


def test_every_recorded_occupancy_row() -> None:
    """cudaOccupancyMaxActiveClusters and MaxActiveBlocksPerMultiprocessor of an H200, row by row."""
    wrong = []
    rows = occupancy_rows()
    for row in rows:
        shape = tuple(int(row[f"cluster_{axis}"]) for axis in "xyz")
        size = shape[0] * shape[1] * shape[2]
        cta = CtaResources(int(row["threads"]), int(row["smem_bytes"]))
        assert ctas_per_sm(cta, H200).ctas == int(row["ctas_per_sm"]), row
        if row["status"] != "cudaSuccess":
            with pytest.raises((BadInput, Unsupported)):
                find_residency(cta, size, H200, nonportable=False)
            continue
        if size > H200.cluster_size_max:  # the driver placed 17; the attribute's maximum is 16
            found = clusters_resident(H200.gpc_sms or (), min(8, ctas_per_sm(cta, H200).ctas), size)
        else:
            found = find_residency(cta, size, H200).resident_clusters
        if found != int(row["resident_clusters"]):
            wrong.append((row, found))
    assert len(rows) == 995
    assert not wrong


def test_published_b200_row() -> None:
    """The row of one B200 (page "The B200 SM", section 4.5), and the B300 count of clusters of four."""
    tiny = CtaResources(threads=128, smem_bytes=0)
    row = {1: 1184, 2: 592, 4: 284, 8: 142, 12: 87, 16: 66}
    for size, clusters in row.items():
        assert find_residency(tiny, size, B200).resident_clusters == clusters
    assert find_residency(ONE_AN_SM, 4, B200).resident_clusters == 33
    assert find_residency(ONE_AN_SM, 2, B200).resident_clusters == 74


def test_topology_is_recovered_from_counts() -> None:
    published = {1: 1184, 2: 592, 4: 284, 8: 142, 12: 87, 16: 66}
    found = recover_topology(published, slots_per_sm=8, gpc_sms_max=20)
    assert found == [(20, 20, 20, 18, 18, 18, 18, 10, 2, 2, 2)]

    rows = [r for r in occupancy_rows() if r["threads"] == "1024" and r["status"] == "cudaSuccess"]
    one_a_sm = {
        int(r["cluster_x"]): int(r["resident_clusters"])
        for r in rows
        if r["ctas_per_sm"] == "1" and r["cluster_y"] == r["cluster_z"] == "1"
    }
    assert recover_topology(one_a_sm, slots_per_sm=1, gpc_sms_max=18) == [
        (18, 18, 16, 16, 16, 16, 16, 8, 2, 2, 2, 2)
    ]


def test_counts_that_no_topology_gives() -> None:
    assert recover_topology({1: 132, 2: 10}, slots_per_sm=1, gpc_sms_max=18) == []
    with pytest.raises(BadInput, match="size 1 must be given"):
        recover_topology({2: 66}, slots_per_sm=1, gpc_sms_max=18)


@given(
    st.lists(st.sampled_from([2, 4, 6, 8, 10, 12, 14, 16, 18]), min_size=1, max_size=9),
    st.integers(1, 8),
)
def test_recovery_finds_the_groups_it_was_given(groups: list[int], slots: int) -> None:
    resident = {c: clusters_resident(groups, slots, c) for c in range(1, 19)}
    found = recover_topology(resident, slots_per_sm=slots, gpc_sms_max=18)
    assert tuple(sorted(groups, reverse=True)) in found
    assert len(found) == 1


@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=8),
    st.integers(1, 6),
)
def test_group_packing_matches_brute_force(slots: list[int], size: int) -> None:
    """Place clusters one by one on the SMs with most room: optimal for distinct-SM placement."""
    room = list(slots)
    placed = 0
    while True:
        room.sort(reverse=True)
        if len(room) < size or room[size - 1] == 0:
            break
        for i in range(size):
            room[i] -= 1
        placed += 1
    assert clusters_in_group(slots, size) == placed


def h100_unit(gpcs: tuple[int, ...]) -> Device:
    h100 = load("h100_sxm")
    return replace(h100, gpc_sms=gpcs)


def test_case_c1_fifteen_clusters_of_eight() -> None:
    """NVIDIA/cutlass#1921: 132 SMs, cluster (4, 2, 1): 15, not 132 // 8 = 16 nor 14."""
    unit = h100_unit((18, 18, 18, 18, 16, 16, 16, 12))
    found = find_residency(ONE_AN_SM, 8, unit)
    assert (found.resident_clusters, found.sms_used) == (15, 120)
    assert "GPC boundaries" in found.limited_by
    assert -(-(4096 // 128) * (4096 // 128) // 8 // found.resident_clusters) == 9
    bounds = find_residency(ONE_AN_SM, 8, load("h100_sxm"))
    assert bounds.resident_clusters <= 15 <= bounds.resident_clusters_max
    assert "cudaOccupancyMaxActiveClusters" in bounds.decides


def test_case_c10_grid_barrier() -> None:
    """sgl-project/sglang#30592: one SM of 148 is busy, so 73 clusters of two can meet, not 74."""
    idle = find_residency(ONE_AN_SM, 2, B200)
    check_grid_barrier(74, idle)
    busy = find_residency(ONE_AN_SM, 2, B200, busy_by_group=(1,) + (0,) * 10)
    check_grid_barrier(73, busy)
    assert grid_barrier(busy).grid_ctas == 146
    with pytest.raises(NoFit, match="Launch at most 73"):
        check_grid_barrier(74, busy)
    anywhere = find_residency(ONE_AN_SM, 2, B200, busy_sms=1)
    assert anywhere.resident_clusters == anywhere.resident_clusters_max == 73


def test_case_c11_preferred_cluster_divides_the_grid() -> None:
    check_cluster_chain((8, 4, 1), (4, 2, 1), (2, 1, 1))
    with pytest.raises(BadInput, match=r"on x \(6 % 4\); x=8 passes"):
        check_cluster_chain((6, 4, 1), (4, 2, 1), (2, 1, 1))
    with pytest.raises(BadInput, match="no multiple of fallback"):
        check_cluster_chain((12, 4, 1), (4, 2, 1), (3, 1, 1))


def test_case_c12_large_clusters() -> None:
    """cupy/cupy#8778, #8851: 16 needs the attribute; Thor stops at 8; none resident is a hard stop."""
    cta = CtaResources(threads=256, smem_bytes=229_376)
    with pytest.raises(BadInput, match="NonPortableClusterSizeAllowed"):
        find_residency(cta, 16, load("h100_sxm"), nonportable=False)
    with pytest.raises(Unsupported, match="at most 8"):
        find_residency(cta, 16, load("thor"))
    small = replace(H200, gpc_sms=(14,) * 9 + (6,))
    found = find_residency(cta, 16, small)
    assert found.resident_clusters == 0
    assert "no GPC has enough SMs" in found.limited_by


def test_no_clusters_on_a100() -> None:
    with pytest.raises(Unsupported, match="no thread block clusters"):
        find_residency(CtaResources(128, 0), 2, load("a100"))
    assert find_residency(CtaResources(128, 0), 1, load("a100")).resident_clusters == 16 * 108


def test_limits_name_themselves() -> None:
    assert ctas_per_sm(CtaResources(128, 0, regs=255), H200) == (2, "registers")
    assert ctas_per_sm(CtaResources(32, 0), H200) == (32, "CTA slots")
    assert ctas_per_sm(CtaResources(1024, 0), H200) == (2, "threads, warps, registers")
    assert ctas_per_sm(CtaResources(128, 100_000), H200) == (2, "shared memory")
    assert ctas_per_sm(CtaResources(128, 0, tmem_columns=512), B200) == (1, "TMEM")


def test_one_cta_that_fits_nowhere() -> None:
    with pytest.raises(NoFit, match="232448"):
        ctas_per_sm(CtaResources(128, 232_449), H200)
    with pytest.raises(NoFit, match="64 registers a thread fit"):
        ctas_per_sm(CtaResources(1024, 0, regs=80), H200)
    with pytest.raises(NoFit, match="TMEM"):
        ctas_per_sm(CtaResources(128, 0, tmem_columns=32), H200)


def test_sm_budget_and_busy_sms() -> None:
    assert find_residency(ONE_AN_SM, 1, H200, sm_budget=100).resident_clusters == 100
    assert find_residency(ONE_AN_SM, 1, H200, sm_budget=100, busy_sms=33).resident_clusters == 67
    with pytest.raises(BadInput, match="132 SMs"):
        find_residency(ONE_AN_SM, 1, H200, sm_budget=133)


def test_foreign_ctas_leave_between_worst_and_kindest() -> None:
    """33 SMs held on an H200 left room for about 44 of 66 clusters of two (derived from makespans)."""
    low, high = busy_bounds(H200.gpc_sms or (), 1, 2, 33)
    assert (low, high) == (66 - 33, (132 - 33) // 2)
    assert low <= 44 <= high


@given(st.integers(2, 16), st.integers(0, 60))
def test_bounds_hold_for_random_placements(size: int, busy: int) -> None:
    groups = H200.gpc_sms or ()
    rng = random.Random(size * 1000 + busy)
    taken = [0] * len(groups)
    homes = [index for index, sms in enumerate(groups) for _ in range(sms)]
    for home in rng.sample(homes, busy):
        taken[home] += 1
    exact = find_residency(ONE_AN_SM, size, H200, busy_by_group=taken).resident_clusters
    low, high = busy_bounds(groups, 1, size, busy)
    assert low <= exact <= high


def test_unknown_topology_contains_the_known_units() -> None:
    for device in (H200, B200):
        assert device.gpc_sms is not None
        assert device.gpc_sms_max is not None
        for size in range(1, 17):
            low, high = unknown_topology_bounds(device.sm_count, device.gpc_sms_max, 1, size)
            assert low <= clusters_resident(device.gpc_sms, 1, size) <= high
