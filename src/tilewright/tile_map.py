"""Tile maps: which cluster does which tile, and which CTA of it owns and shares what.

A problem is cut into CTA tiles, CTA tiles into cluster tiles; a cluster never straddles two groups, so a
group whose tile count does not divide by the cluster is padded with CTAs that own no output. Linear
cluster ids count group by group. Within a group the order runs in strips: `swizzle` cluster tiles wide
along the minor axis, the whole group long along the major one, minor axis first. A wave of R clusters
thus covers about swizzle x R/swizzle tiles, and the strip's panel of the minor operand is reused.
The last strip is narrower, so every tile occurs exactly once for any sizes.

The grid is laid along x only: clusters along z would meet its limit of 65,535.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from tilewright.errors import BadInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tilewright.mma import Shape
    from tilewright.problem import Groups

Along = Literal["m", "n"]
GRID_X_MAX = 2**31 - 1


class Raster(NamedTuple):
    """Order of cluster tiles within a group.

    Attributes:
        along: the major axis, which each strip follows from end to end.
        swizzle: width of a strip along the other axis, in cluster tiles.
    """

    along: Along
    swizzle: int

    def __str__(self) -> str:
        return f"along {self.along}, strips of {self.swizzle}"


class Tile(NamedTuple):
    """One cluster tile: its group (batch entries count as groups) and its place in cluster tiles."""

    group: int
    m: int
    n: int


@dataclass(frozen=True)
class TileMap:
    """The bijection between linear cluster ids and cluster tiles.

    Attributes:
        groups: the GEMMs of the problem.
        cta_tile: output rows and columns of one CTA, and K of one stage.
        cluster_shape: CTAs along M, along N, and 1.
        raster: order within a group.
    """

    groups: Groups
    cta_tile: Shape
    cluster_shape: tuple[int, int, int]
    raster: Raster

    def __post_init__(self) -> None:
        if self.raster.swizzle < 1:
            raise BadInput(f"swizzle {self.raster.swizzle} must be at least 1")
        if self.grid_ctas > GRID_X_MAX:
            raise BadInput(
                f"{self.grid_ctas} CTAs exceed the grid limit of {GRID_X_MAX} along x; use larger tiles",
                given=self.grid_ctas,
                allowed=str(GRID_X_MAX),
            )

    @cached_property
    def m_tiles(self) -> NDArray[np.int64]:
        """Cluster tiles along M of each group."""
        return _ceil_div(self.groups.m, self.cta_tile.m * self.cluster_shape[0])

    @cached_property
    def n_tiles(self) -> NDArray[np.int64]:
        """Cluster tiles along N of each group."""
        return _ceil_div(self.groups.n, self.cta_tile.n * self.cluster_shape[1])

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Linear id of each group's first cluster, and the total at the end."""
        return np.concatenate(
            [[0], np.cumsum(np.tile(self.m_tiles * self.n_tiles, self.groups.repeat))]
        )

    @property
    def num_tiles(self) -> int:
        """Cluster tiles of the problem: the grid of a one-tile-a-cluster or CLC launch."""
        return int(np.sum(self.m_tiles * self.n_tiles)) * self.groups.repeat

    @property
    def grid_ctas(self) -> int:
        """CTAs of a launch with a cluster for every tile."""
        x, y, z = self.cluster_shape
        return self.num_tiles * x * y * z

    @property
    def useful_fraction(self) -> float:
        """Output elements asked for over output elements computed."""
        asked = float(np.sum(self.groups.m.astype(float) * self.groups.n)) * self.groups.repeat
        computed = float(self.grid_ctas) * self.cta_tile.m * self.cta_tile.n
        return asked / computed if computed else 1.0

    @property
    def padded_ctas(self) -> int:
        """CTAs that own no output: they fill clusters up and still take part in their barriers."""
        m = _ceil_div(self.groups.m, self.cta_tile.m)
        n = _ceil_div(self.groups.n, self.cta_tile.n)
        return self.grid_ctas - int(np.sum(m * n)) * self.groups.repeat

    @property
    def k_steps(self) -> NDArray[np.int64]:
        """Stages along K of a tile of each group; 0 where the group only writes zeros."""
        return _ceil_div(self.groups.k, self.cta_tile.k)

    def tile_k_steps(self) -> NDArray[np.int64]:
        """Stages along K of every cluster tile, in linear order."""
        per_group = np.repeat(self.k_steps, self.m_tiles * self.n_tiles)
        return np.tile(per_group, self.groups.repeat)

    def locate(self, cluster: int) -> Tile:
        """The tile of one linear cluster id: a binary search in prefix sums, then strip arithmetic."""
        if not 0 <= cluster < self.num_tiles:
            raise BadInput(f"cluster {cluster} is outside 0 to {self.num_tiles - 1}", given=cluster)
        instance = int(np.searchsorted(self.starts, cluster, side="right")) - 1
        group = instance % len(self.groups.m)
        m, n = _unstrip(
            np.asarray([cluster - self.starts[instance]]),
            int(self.m_tiles[group]),
            int(self.n_tiles[group]),
            self.raster,
        )
        return Tile(instance, int(m[0]), int(n[0]))

    def coordinates(self) -> NDArray[np.int64]:
        """Every tile in linear order: rows of (group, m, n)."""
        parts = []
        for instance in range(len(self.starts) - 1):
            group = instance % len(self.groups.m)
            count = int(self.starts[instance + 1] - self.starts[instance])
            m, n = _unstrip(
                np.arange(count), int(self.m_tiles[group]), int(self.n_tiles[group]), self.raster
            )
            parts.append(np.stack([np.full(count, instance), m, n], axis=1))
        return np.concatenate(parts) if parts else np.empty((0, 3), np.int64)


def _unstrip(
    linear: NDArray[np.int64], m_tiles: int, n_tiles: int, raster: Raster
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    major, minor = (m_tiles, n_tiles) if raster.along == "m" else (n_tiles, m_tiles)
    strip = linear // (raster.swizzle * major)
    inside = linear - strip * raster.swizzle * major
    width = np.minimum(raster.swizzle, minor - strip * raster.swizzle)
    across = strip * raster.swizzle + inside % width
    down = inside // width
    return (down, across) if raster.along == "m" else (across, down)


def _ceil_div(a: NDArray[np.int64], b: int) -> NDArray[np.int64]:
    return -(-a // b)


class CtaShare(NamedTuple):
    """What one CTA of a cluster owns and loads.

    Slices are offsets inside the cluster tile, half open. Masks have a bit a CTA rank.

    Attributes:
        rank: %cluster_ctarank.
        x, y: %cluster_ctaid along M and N.
        rows, columns: output slice that it owns.
        a_rows, b_columns: slices of A and B that it loads itself.
        a_mask, b_mask: CTAs that receive those loads; one bit set means no multicast.
        pair: ranks of the CTA pair it belongs to, empty for cta_group 1.
        leader: it issues the MMA of its pair (or of itself).
    """

    rank: int
    x: int
    y: int
    rows: tuple[int, int]
    columns: tuple[int, int]
    a_rows: tuple[int, int]
    b_columns: tuple[int, int]
    a_mask: int
    b_mask: int
    pair: tuple[int, ...]
    leader: bool


def cta_shares(
    cta_tile: Shape, cluster_shape: tuple[int, int, int], cta_group: int, *, multicast: bool
) -> list[CtaShare]:
    """The sharing plan of one cluster, a row a CTA.

    CTAs of one cluster row (same x) need the same A; each loads 1/y of it and multicasts. CTAs of one
    column (same y) need the same B; with cta_group 2 a CTA needs only the half that its place in the
    pair gives, so those of equal parity share it.
    """
    size_x, size_y, _ = cluster_shape
    shares = []
    for rank in range(size_x * size_y):
        x, y = rank % size_x, rank // size_x
        a_peers = [x + size_x * other for other in range(size_y)]
        b_peers = [other + size_x * y for other in range(x % cta_group, size_x, cta_group)]
        if not multicast:
            a_peers, b_peers = [rank], [rank]
        a_piece = cta_tile.m // len(a_peers)
        b_piece = cta_tile.n // cta_group // len(b_peers)
        a_start = x * cta_tile.m + a_peers.index(rank) * a_piece
        b_start = (
            y * cta_tile.n
            + (x % cta_group) * (cta_tile.n // cta_group)
            + b_peers.index(rank) * b_piece
        )
        shares.append(
            CtaShare(
                rank=rank,
                x=x,
                y=y,
                rows=(x * cta_tile.m, (x + 1) * cta_tile.m),
                columns=(y * cta_tile.n, (y + 1) * cta_tile.n),
                a_rows=(a_start, a_start + a_piece),
                b_columns=(b_start, b_start + b_piece),
                a_mask=sum(1 << peer for peer in a_peers),
                b_mask=sum(1 << peer for peer in b_peers),
                pair=(rank & ~1, rank | 1) if cta_group == 2 else (),
                leader=cta_group == 1 or rank % 2 == 0,
            )
        )
    return shares
