"""Does the kernel compute what it should, at the edges of tiles, groups and the grid too?

Needs a GPU, numpy and pytest. Operands are small integers, so that every sum is exact in fp32 and D must
equal the rounded reference bit for bit; one test takes random values and a bound.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import DeviceArray, LaunchError, check_array, decode, encode, view
from launcher import Gemm, Shape, cluster_tile
from paths import read_constants

CONSTANTS = read_constants()
PROBLEM = CONSTANTS["problem"]
RAGGED, DTYPE, OUT = PROBLEM["ragged"], PROBLEM["dtype"], PROBLEM["out_dtype"]
PATHS = [path["name"] for path in CONSTANTS["paths"]]
POISON = 0xC5


@pytest.fixture(params=PATHS, scope="module")
def gemm(request: pytest.FixtureRequest) -> Gemm:
    """Each path that this GPU runs."""
    try:
        return Gemm(path=request.param)
    except LaunchError as error:
        if "needs compute capability" in str(error):
            pytest.skip(str(error))
        raise


def tile(gemm: Gemm) -> tuple[int, int, int]:
    """Rows and columns of D that a cluster does, and K of a stage."""
    path = gemm.numbers
    rows, columns = cluster_tile(path)
    return (
        (columns, rows, path["cta_tile"][2])
        if path["swap_ab"]
        else (rows, columns, path["cta_tile"][2])
    )


def whole(columns: int) -> int:
    """Columns of D whose rows are 16-byte aligned, if this kernel needs that; else an odd number."""
    step = 16 // PROBLEM["out_bytes"]
    aligned = all(path["store_by_tma"] for path in CONSTANTS["paths"])
    return -(-columns // step) * step if aligned else columns | 1


def operands(
    shape: Shape, rng: np.random.Generator, *, exact: bool = True
) -> dict[str, np.ndarray[Any, Any]]:
    """A, B and what the epilogue adds, in storage types."""
    m, n, k, groups = shape
    single = RAGGED in {"m", "k"}
    sizes = {"a": (1 if single else groups, m, k), "b": (1 if RAGGED == "k" else groups, n, k)}
    sizes["c"] = (1 if RAGGED == "m" else groups, m, n)
    made = {}
    for name, size in sizes.items():
        values = rng.integers(-2, 3, size) if exact else rng.uniform(-1, 1, size)
        made[name] = encode(values.astype(np.float32), OUT if name == "c" else DTYPE)
    made["bias"] = rng.integers(-2, 3, n).astype(np.float32)
    return made


def expected(
    given: dict[str, np.ndarray[Any, Any]],
    shape: Shape,
    counts: list[int] | None,
    alpha: float,
    beta: float,
) -> np.ndarray[Any, Any]:
    """D in float64, [groups or 1, m, n]."""
    a, b = decode(given["a"], DTYPE), decode(given["b"], DTYPE)
    ends = np.cumsum([0, *(counts or [])])
    if RAGGED == "m":
        d = np.zeros((1, shape.m, shape.n))
        for group in range(shape.groups):
            rows = slice(ends[group], ends[group + 1])
            d[0, rows] = a[0, rows] @ b[group].T
    elif RAGGED == "k":
        parts = [slice(ends[group], ends[group + 1]) for group in range(shape.groups)]
        d = np.stack([a[0][:, part] @ b[0][:, part].T for part in parts])
    else:
        d = a @ b.transpose(0, 2, 1)
    d = alpha * d
    if CONSTANTS["has_c"]:
        d = d + beta * decode(given["c"], OUT)
    if CONSTANTS["has_bias"]:
        d = d + given["bias"]
    return d


def run(
    gemm: Gemm,
    shape: Shape,
    counts: list[int] | None = None,
    *,
    exact: bool = True,
    on_gpu: bool = False,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """D as launched into poisoned memory, and the reference."""
    alpha, beta = (2.0, -1.0) if CONSTANTS["has_c"] else (2.0, 0.0)
    given = operands(shape, np.random.default_rng(sum(shape)), exact=exact)
    want = expected(given, shape, counts, alpha, beta)

    def put(name: str, dtype: str, *, flat: bool) -> DeviceArray:
        values = given[name][0] if flat else given[name]
        return DeviceArray.of(gemm.cuda, values, dtype)

    lone = RAGGED == "none" and shape.groups == 1
    extras: dict[str, Any] = {}
    if CONSTANTS["has_c"]:
        extras["c"] = put("c", OUT, flat=lone or RAGGED == "m")
    if CONSTANTS["has_bias"]:
        extras["bias"] = put("bias", "fp32", flat=False)
    if counts is not None:
        extras["counts"] = (
            DeviceArray.of(gemm.cuda, np.asarray(counts, np.int32), "int32") if on_gpu else counts
        )
    out = DeviceArray(gemm.cuda, want.shape[1:] if lone or RAGGED == "m" else want.shape, OUT)
    out.fill_bytes(POISON)
    gemm(
        put("a", DTYPE, flat=lone or RAGGED in {"m", "k"}),
        put("b", DTYPE, flat=lone or RAGGED == "k"),
        out, alpha=alpha, beta=beta, **extras,
    )  # fmt: skip
    return decode(out.numpy(), OUT).reshape(want.shape), want


def check_exact(
    gemm: Gemm, shape: Shape, counts: list[int] | None = None, *, on_gpu: bool = False
) -> None:
    """Every element is the rounded reference, bit for bit."""
    got, want = run(gemm, shape, counts, on_gpu=on_gpu)
    rounded = decode(encode(want.astype(np.float32), OUT), OUT)
    wrong = np.argwhere(got != rounded)
    assert not len(wrong), (shape, counts, len(wrong), wrong[:3].tolist())


def split(total: int, groups: int, step: int) -> list[int]:
    """Counts that add up to `total`, multiples of `step` but the last; an empty one among them."""
    counts = [0] * groups
    for i in range(0, total, step):
        counts[i // step * 7 % groups if groups > 1 else 0] += min(step, total - i)
    return counts


def dense(m: int, n: int, k: int) -> tuple[Shape, list[int] | None]:
    """The shape, cut into groups where the kernel has groups."""
    if RAGGED == "none":
        return Shape(m, n, k, 1), None
    groups = min(3, CONSTANTS["max_groups"])
    counts = split(m if RAGGED == "m" else k, groups, 1 if RAGGED == "m" and m < 64 else 64)
    if RAGGED == "k":
        counts = [0] * groups
        counts[0] = k
    return Shape(m, n, k, groups), counts


def test_edges(gemm: Gemm) -> None:
    """Less than a tile, a tile, a little more, in each direction."""
    rows, columns, step = tile(gemm)
    for m, n, k in (
        (1, whole(8), step),
        (rows, whole(columns), step),
        (rows - 1, whole(columns - 8), 3 * step),
        (rows + 1, whole(columns + 8), 7 * step),
        (2 * rows + 17, whole(3 * columns + 40), 2 * step),
    ):
        check_exact(gemm, *dense(m, n, k))


def test_k_past_the_last_stage(gemm: Gemm) -> None:
    """K need not be whole stages where it is not ragged: TMA fills with zeros, copies are predicated."""
    rows, columns, step = tile(gemm)
    if RAGGED == "k":
        pytest.skip("groups along k: see test_empty_groups")
    aligned = 8 if DTYPE in {"bf16", "fp16"} else 16  # elements in 16 bytes
    check_exact(gemm, *dense(rows, whole(columns), step + aligned))


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_tiles_around_the_resident_clusters(gemm: Gemm, more: int) -> None:
    """R - 1, R and R + 1 tiles: the grid's own boundary."""
    rows, columns, step = tile(gemm)
    tiles = max(1, gemm.resident_clusters + more)
    if RAGGED == "m":
        check_exact(gemm, Shape(tiles * rows, whole(columns), 2 * step, 1), [tiles * rows])
    elif RAGGED == "k":
        check_exact(gemm, Shape(tiles * rows, whole(columns), 2 * step, 1), [2 * step])
    else:
        check_exact(gemm, Shape(tiles * rows, whole(columns), 2 * step, 1))


def test_batch(gemm: Gemm) -> None:
    """A batch entry has operands of its own."""
    if RAGGED != "none":
        pytest.skip("groups are not a batch")
    rows, columns, step = tile(gemm)
    check_exact(gemm, Shape(rows + 3, whole(columns + 8), 2 * step, 3))


@pytest.mark.parametrize("on_gpu", [False, True])
def test_empty_groups(gemm: Gemm, on_gpu: bool) -> None:
    """Groups [0, 128, 0] have the tiles of 128 rows; [0, 64] along k still writes zeros."""
    if RAGGED == "none" or CONSTANTS["max_groups"] < 3:
        pytest.skip("fewer than three groups")
    rows, columns, step = tile(gemm)
    n = whole(columns + 8)
    if RAGGED == "m":
        check_exact(gemm, Shape(128, n, step, 3), [0, 128, 0], on_gpu=on_gpu)
        check_exact(
            gemm, Shape(2 * rows + 9, n, 2 * step, 3), [rows + 5, 0, rows + 4], on_gpu=on_gpu
        )
    else:
        few = gemm.numbers["k_step"]  # the next group begins inside the stage
        check_exact(gemm, Shape(rows + 8, n, 4 * step, 3), [0, 3 * step, step], on_gpu=on_gpu)
        counts = [step + few, 0, 3 * few]
        check_exact(gemm, Shape(rows, n, sum(counts), 3), counts, on_gpu=on_gpu)
        check_exact(gemm, Shape(rows, n, 0, 2), [0, 0], on_gpu=on_gpu)


def test_nothing_to_do_launches_nothing(gemm: Gemm) -> None:
    """No rows, no tile, no launch."""
    _, columns, step = tile(gemm)
    if RAGGED == "k":
        assert gemm.place(Shape(128, 128, 0, 1)).tiles, "an empty group still writes zeros"
        return
    counts = None if RAGGED == "none" else [0]
    got, want = run(gemm, Shape(0, whole(columns), step, 1), counts)
    assert got.size == want.size == 0
    assert gemm.place(Shape(0, columns, step, 1), counts).grid_ctas == 0


def test_again_and_again(gemm: Gemm) -> None:
    """Launches leave nothing behind: counters are zero again."""
    rows, columns, step = tile(gemm)
    for _ in range(3):
        check_exact(gemm, *dense(3 * rows, whole(2 * columns), 2 * step))


def test_random_values(gemm: Gemm) -> None:
    """Rounding of D and of fp32 accumulation, no more."""
    rows, columns, step = tile(gemm)
    shape, counts = dense(2 * rows, whole(2 * columns), 16 * step)
    got, want = run(gemm, shape, counts, exact=False)
    unit = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-24}[OUT]
    sums = 2.0 * shape.k * (2.0**-12 if DTYPE.startswith("fp8") else 2.0**-19)
    assert np.all(np.abs(got - want) <= unit * np.abs(want) + sums)


def test_refusals(gemm: Gemm) -> None:
    """Arrays that the kernel would misread."""
    good = DeviceArray(gemm.cuda, (64, 64), DTYPE)
    device = gemm.cuda.device_id
    for seen, says in (
        (view("A", good)._replace(strides=(128, 1)), "strided"),
        (view("A", good)._replace(pointer=good.pointer + 8), "multiple of 16"),
        (view("A", good)._replace(dtype="float64"), "float64"),
        (view("A", good)._replace(device=device + 1), "lies on GPU"),
        (view("A", good)._replace(shape=(64, 32)), "shape"),
    ):
        with pytest.raises(LaunchError, match=says):
            check_array("A", seen, (64, 64), DTYPE, device)
    with pytest.raises(LaunchError, match="host memory"):
        gemm(np.zeros((64, 64)), good)
