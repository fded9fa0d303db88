"""Special registers that stay the same while a warp runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.emulate.layout import SHARED_START

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilewright.emulate.warp import Warp

_LANES = np.arange(32, dtype=np.uint64)
_ONE = np.uint64(1)


def is_special(name: str) -> bool:
    """Whether this special register is emulated."""
    base, _, axis = name.partition(".")
    return name in _PLAIN or (base in _BY_AXIS and axis in {"x", "y", "z"})


def special_values(warp: Warp, name: str) -> Any:
    """The value of a special register in all lanes, or one for each."""
    base, _, axis = name.partition(".")
    if axis:
        return _BY_AXIS[base](warp)["xyz".index(axis)]
    return _PLAIN[name](warp)


def _tid(warp: Warp) -> tuple[Any, Any, Any]:
    x, y, _ = warp.machine.block
    thread = _LANES + np.uint64(32 * warp.index)
    return thread % np.uint64(x), thread // np.uint64(x) % np.uint64(y), thread // np.uint64(x * y)


def _cluster_ctaid(warp: Warp) -> tuple[int, int, int]:
    first = warp.cta.cluster.first_cta
    x, y, z = (own - begin for own, begin in zip(warp.cta.ctaid, first, strict=True))
    return x, y, z


def _nclusterid(warp: Warp) -> tuple[int, int, int]:
    machine = warp.machine
    x, y, z = (g // c for g, c in zip(machine.grid, machine.cluster_shape, strict=True))
    return x, y, z


_BY_AXIS: dict[str, Callable[[Warp], tuple[Any, Any, Any]]] = {
    "%tid": _tid,
    "%ntid": lambda warp: warp.machine.block,
    "%ctaid": lambda warp: warp.cta.ctaid,
    "%nctaid": lambda warp: warp.machine.grid,
    "%clusterid": lambda warp: warp.cta.cluster.place,
    "%nclusterid": _nclusterid,
    "%cluster_ctaid": _cluster_ctaid,
    "%cluster_nctaid": lambda warp: warp.machine.cluster_shape,
}

_PLAIN: dict[str, Callable[[Warp], Any]] = {
    "%laneid": lambda _: _LANES,
    "%warpid": lambda warp: warp.index,
    "%nwarpid": lambda warp: warp.machine.warps_per_cta,
    "%smid": lambda warp: warp.cta.cluster.stay.slot * len(warp.cta.cluster.ctas) + warp.cta.rank,
    "%nsmid": lambda warp: warp.machine.slots * len(warp.cta.cluster.ctas),
    "%gridid": lambda _: 1,
    "%cluster_ctarank": lambda warp: warp.cta.rank,
    "%cluster_nctarank": lambda warp: len(warp.cta.cluster.ctas),
    "%is_explicit_cluster": lambda warp: int(len(warp.cta.cluster.ctas) > 1),
    "%lanemask_eq": lambda _: _ONE << _LANES,
    "%lanemask_lt": lambda _: (_ONE << _LANES) - _ONE,
    "%lanemask_le": lambda _: (_ONE << (_LANES + _ONE)) - _ONE,
    "%lanemask_gt": lambda _: np.uint64(0xFFFFFFFF) & ~((_ONE << (_LANES + _ONE)) - _ONE),
    "%lanemask_ge": lambda _: np.uint64(0xFFFFFFFF) & ~((_ONE << _LANES) - _ONE),
    "%dynamic_smem_size": lambda warp: warp.machine.dynamic_shared_bytes,
    "%total_smem_size": lambda warp: warp.machine.shared_bytes,
    "%aggr_smem_size": lambda warp: warp.machine.shared_bytes,
    "%reserved_smem_offset_begin": lambda _: 0,
    "%reserved_smem_offset_end": lambda _: SHARED_START,
    "%reserved_smem_offset_cap": lambda _: SHARED_START,
}
