"""The MMA contract of a GEMM: where operands and accumulator lie in each CTA, and who touches them.

Accumulator cells in TMEM, r = row within the CTA's share, n = column of the tile, N = its columns:

    layout  instruction             lane                  column
    A       cta_group::2, M = 256   r                     n
    B       cta_group::2, M = 128   r + 64 (n >= N/2)     n mod N/2
    D       cta_group::1, M = 128   r                     n
    F       cta_group::1, M = 64    32 (r / 16) + r % 16  n

Warp w of the epilogue reaches lanes 32 w to 32 w + 31 only. Source: PTX ISA, tcgen05 data path layouts
and tcgen05.ld access restrictions; the maps agree with CUTLASS mma_traits_sm100_frag.hpp.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tilewright.mma import MMA_BYTES_K, SWIZZLE_BYTES
from tilewright.problem import DTYPES
from tilewright.protocol.sharing import leader_of, pair_mask

if TYPE_CHECKING:
    from tilewright.tile_map import CtaShare
    from tilewright.tiling import Tiling

LANES = 128
LANES_PER_WARP = 32
ADDRESS = "lane << 16 | column"
_FORMULA = {
    "A": ("r", "n"),
    "B": ("r + 64 * (n >= N / 2)", "n % (N / 2)"),
    "D": ("r", "n"),
    "F": ("32 * (r / 16) + r % 16", "n"),
}
_SCALE_VECTOR = {"mxfp8": ("scale_vec::1X", "ue8m0"), "nvfp4": ("scale_vec::4X", "ue4m3")}


def accumulator_layout(tiling: Tiling) -> str:
    """The letter of the TMEM data path layout."""
    if tiling.cta_group == 2:
        return "A" if tiling.mma.shape.m == 256 else "B"
    return "D" if tiling.mma.shape.m == 128 else "F"


def tmem_cell(layout: str, row: int, column: int, tile_n: int) -> tuple[int, int]:
    """Lane and column, relative to the accumulator's base, of one element of a CTA's share."""
    if layout == "B":
        half = tile_n // 2
        return row + 64 * (column >= half), column % half
    if layout == "F":
        return 32 * (row // 16) + row % 16, column
    return row, column


def mma_table(tiling: Tiling, shares: list[CtaShare]) -> dict[str, Any]:
    """Instruction, operands by CTA, accumulator, scale factors, issuer, completion, epilogue."""
    mma, element = tiling.mma, DTYPES[tiling.mma.dtype]
    table: dict[str, Any] = {
        "family": mma.family,
        "kind": mma.kind,
        "shape": list(mma.shape),
        "a_type": mma.dtype,
        "b_type": mma.dtype,
        "accumulator_type": element.accumulator,
        "cta_group": tiling.cta_group,
        "per_stage": tiling.cta_tile.k // mma.shape.k,
        "cta_tile": list(tiling.cta_tile),
        "pair_tile": list(tiling.pair_tile) if tiling.pair_tile else None,
        "operands": [_operands(tiling, share) for share in shares],
        "smem_layout": _smem_layout(tiling),
    }
    if mma.family == "tcgen05":
        return table | _tcgen05(tiling, shares)
    return table | (_wgmma(tiling) if mma.family == "wgmma" else _mma_sync(tiling))


def _operands(tiling: Tiling, share: CtaShare) -> dict[str, Any]:
    """Rows of A and columns of B in the shared memory of one CTA, whoever loaded them."""
    half = tiling.cta_tile.n // tiling.cta_group
    start = share.y * tiling.cta_tile.n + share.x % tiling.cta_group * half
    return {
        "rank": share.rank,
        "smem_a_rows": list(share.rows),
        "smem_b_columns": [start, start + half],
        "d_rows": list(share.rows),
        "d_columns": list(share.columns),
    }


def _smem_layout(tiling: Tiling) -> dict[str, Any]:
    row_bytes = tiling.cta_tile.k * DTYPES[tiling.mma.dtype].bits // 8
    if tiling.mma.family == "mma.sync":
        return {
            "major": "K",
            "row_bytes": row_bytes,
            "swizzle": "16-byte chunks XORed with the row by the copying thread, for ldmatrix",
        }
    return {
        "major": "K",
        "row_bytes": row_bytes,
        "swizzle": f"{SWIZZLE_BYTES}B",
        "start_alignment_bytes": 1024,
        "stride_byte_offset": 8 * SWIZZLE_BYTES,
        "advance_per_mma_bytes": MMA_BYTES_K,
        "rules": ["TMA-01", "TMA-02", "TC-20"],
    }


def _tcgen05(tiling: Tiling, shares: list[CtaShare]) -> dict[str, Any]:
    group = tiling.cta_group
    leaders = [share.rank for share in shares if share.leader]
    layout = accumulator_layout(tiling)
    lane, column = _FORMULA[layout]
    return {
        "instruction": f"tcgen05.mma.cta_group::{group}.kind::{tiling.mma.kind}"
        + (".block_scale" if tiling.mma.block_scaled else ""),
        "operand_source": "A and B by SMEM descriptor; the same offsets hold in both CTAs of a pair",
        "scale_factors": _scale_factors(tiling),
        "accumulator": {
            "layout": layout,
            "lane": lane,
            "column": column,
            "n_extent": tiling.cta_tile.n,
            "address": ADDRESS,
            "columns": tiling.accumulator_columns,
            "stages": tiling.accumulator_stages,
            "by_cta": [
                {
                    "rank": s.rank,
                    "row_of_tile": f"{s.rows[0]} + r",
                    "column_of_tile": f"{s.columns[0]} + n",
                }
                for s in shares
            ],
        },
        "issuing_thread": {
            "ctas": leaders,
            "thread": "one elected lane of warp 1",
            "rules": ["TC-09", "TC-19"],
        },
        "completion": {
            "stage": "tcgen05.commit on empty",
            "tile": "tcgen05.commit on acc_full",
            "pair_masks": {str(rank): hex(pair_mask(rank, group)) for rank in leaders},
            "leader_of": {str(s.rank): leader_of(s.rank, group) for s in shares},
            "rules": ["TC-10", "TC-11", "TC-18"],
        },
        "epilogue": _fragments(tiling, layout),
    }


def _fragments(tiling: Tiling, layout: str) -> dict[str, Any]:
    """Which warp reads which lanes, and the rows and columns that these are."""
    columns = tiling.accumulator_columns
    chunk = math.gcd(columns, 32)
    return {
        "instruction": f"tcgen05.ld.sync.aligned.32x32b.x{chunk}.b32",
        "loads": columns // chunk,
        "registers_each": chunk,
        "warps": [
            {
                "warp": 4 + w,
                "lanes": [32 * w, 32 * w + 32],
                **_fragment(layout, w, tiling.cta_tile.n),
            }
            for w in range(LANES // LANES_PER_WARP)
        ],
        "rules": ["TC-12", "TC-14", "TC-15"],
    }


def _fragment(layout: str, warp: int, tile_n: int) -> dict[str, Any]:
    if layout == "B":
        start = warp // 2 * (tile_n // 2)
        rows = [32 * (warp % 2), 32 * (warp % 2) + 32]
        return {"rows": rows, "columns": [start, start + tile_n // 2], "valid_lanes": 32}
    step = 16 if layout == "F" else 32
    return {"rows": [step * warp, step * (warp + 1)], "columns": [0, tile_n], "valid_lanes": step}


def _scale_factors(tiling: Tiling) -> dict[str, Any] | None:
    """Scale factors in SMEM and TMEM; None for types without."""
    if not tiling.mma.block_scaled:
        return None
    element = DTYPES[tiling.mma.dtype]
    m, n, k = tiling.cta_tile
    per_32_rows = -(-k // (4 * element.scale_block))
    vector, scale_type = _SCALE_VECTOR[tiling.mma.dtype]
    sfa = m // 32 * per_32_rows
    return {
        "vector": vector,
        "type": scale_type,
        "elements_a_scale": element.scale_block,
        "smem_bytes": tiling.smem.scale_bytes,
        "sfa_rows": f"the {m} rows of this CTA",
        "sfb_rows": f"all {n} columns of the tile, in both CTAs of a pair",
        "sfa_columns": sfa,
        "sfb_columns": tiling.scale_columns - sfa,
        "copy": f"tcgen05.cp.cta_group::{tiling.cta_group}.32x128b.warpx4, a copy in each 32-lane quarter",
    }


def _wgmma(tiling: Tiling) -> dict[str, Any]:
    rows = tiling.cta_tile.m // tiling.consumer_warpgroups
    return {
        "instruction": f"wgmma.mma_async.sync.aligned.m64n{tiling.mma.shape.n}k{tiling.mma.shape.k}",
        "operand_source": "A and B by SMEM descriptor",
        "scale_factors": None,
        "accumulator": {
            "where": "registers of the consumer warpgroups",
            "registers_a_thread": rows * tiling.cta_tile.n // 128,
        },
        "issuing_thread": {
            "ctas": "every CTA",
            "thread": "all 128 of a consumer warpgroup",
            "rules": ["WG-06"],
        },
        "completion": {
            "stage": "wgmma.wait_group, then arrival on empty",
            "tile": "wgmma.wait_group 0",
            "rules": ["WG-01", "WG-02", "WG-03"],
        },
        "epilogue": {
            "warpgroup_rows": [
                [g * rows, (g + 1) * rows] for g in range(tiling.consumer_warpgroups)
            ],
            "row": "64 * i + 16 * (warp % 4) + lane / 4 (+ 8)",
            "column": "8 * j + 2 * (lane % 4) (+ 1)",
        },
    }


def _mma_sync(tiling: Tiling) -> dict[str, Any]:
    return {
        "instruction": f"mma.sync.aligned.m16n8k{tiling.mma.shape.k}",
        "operand_source": "registers, by ldmatrix",
        "scale_factors": None,
        "accumulator": {
            "where": "registers of every warp",
            "registers_a_thread": tiling.cta_tile.m * tiling.cta_tile.n // tiling.threads,
        },
        "issuing_thread": {"ctas": [0], "thread": "all warps, 32 lanes each", "rules": []},
        "completion": {"stage": "synchronous", "tile": "synchronous", "rules": []},
        "epilogue": {"row": "lane / 4 (+ 8)", "column": "2 * (lane % 4) (+ 1)"},
    }
