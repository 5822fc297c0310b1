"""Points known up to a rotation, turned to where they belong.

By a few known records (Giannella, Liu and Kargupta 2013): the rotation is decided in their span. What is left of it
keeps the values within public bounds: a point of two sets, one of them not convex, found by reflecting in both
(Douglas and Rachford; Elser 2003). Many values that lie on a bound, such as zeros, decide it. Columns in which no known
record differs from another are found too, but not which of them is which.

By others of the same population, where no record of the table need be known. The principal axes of the points are laid
on those of a public sample, each in the direction in which the values are distributed alike (Liu, Giannella and
Kargupta 2006). Then every point is matched with the nearest of the sample, and every one of the sample with the nearest
point, the rotation is fitted to the pairs, and so on (Besl and McKay 1992).
"""

from __future__ import annotations

import torch
from scipy.spatial import cKDTree
from torch import Tensor

MOST = 2000  # points and others that are matched
TURNS = 20
EXACT = 1e-6  # of the largest singular value of known columns: below that they do not differ
STARTS, TURNS_A_START, FEW = 8, 300, 600  # of the search for the rest of a rotation; FEW: records looked at
POLISH = 50
GRID_STARTS = 24  # where values are also on a grid, which has more places to get stuck in
SURE = 0.1  # of a step of the grid: a column whose every value is so near to it has been found
FEW_UNDECIDED = 4  # directions: with more of them one turn that keeps to the bounds is enough, and takes its time
SETTLED = 1e-4  # of the rest's squares: with less of them outside the bounds, the search is over
LEVELS = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)


def spanned(columns: Tensor) -> int:
    """In how many directions the known records differ."""
    sizes = torch.linalg.svdvals(columns - columns.mean(0)) if len(columns) else columns.new_zeros(0)
    return int((sizes > EXACT * sizes.max()).sum()) if len(sizes) else 0


def few_known(
    points: Tensor,
    rows: Tensor,
    columns: Tensor,
    bounds: tuple[float, float] | None = None,
    grid: Tensor | None = None,
) -> Tensor:
    """(records, columns): the rotation that takes the known points to the known records, as far as these decide it.

    The rest of a record is taken for the known ones' mean, unless public bounds decide that too. ``grid``
    (columns,): what values of each are known to be multiples of; it tells apart what bounds do not.
    """
    middle, mean, known = points[rows].mean(0), columns.mean(0), min(spanned(columns), points.shape[1])
    left, sizes, right = torch.linalg.svd(columns - mean, full_matrices=True)
    where = (left[:, :known] / sizes[:known]).T @ (points[rows] - middle)  # each direction of theirs among the points
    turn, signs = torch.linalg.qr(where.T, mode="complete")  # in order of size, so that the surer ones stay as they are
    turn[:, :known] *= signs.diagonal().sign()
    decided: Tensor = mean + (points - middle) @ turn[:, :known] @ right[:known]
    rest, free = (points - middle) @ turn[:, known:], right[known:]
    if bounds is None or not rest.shape[1]:
        return decided
    if grid is None:
        return _within(decided, rest, free, bounds)
    found = _on_grid(decided, rest, free, bounds, grid)
    return _peeled(found, points - middle, rows, columns, bounds, grid)


def _peeled(
    found: Tensor, points: Tensor, rows: Tensor, columns: Tensor, bounds: tuple[float, float], grid: Tensor
) -> Tensor:
    """Columns that lie on the grid throughout are taken for found, and the others looked for in what these leave.

    There known records decide more: in one of them a single pixel may be all that is left.
    """
    there = _snapped(found, bounds, grid)
    sure = ((found - there).abs() < SURE * grid).all(0)
    if sure.all() or not sure.any():
        return found
    turn = torch.linalg.lstsq(points, there[:, sure] - columns[:, sure].mean(0), driver="gelsd").solution
    left, sizes, _ = torch.linalg.svd(turn, full_matrices=True)
    rest = points @ left[:, int((sizes > 0.5).sum()) :]  # columns are turned, not stretched: 1, or 0 where none varies
    if not rest.shape[1]:
        return found
    found = there.clone()
    found[:, ~sure] = few_known(rest, rows, columns[:, ~sure], bounds, grid[~sure])
    return found


def _snapped(values: Tensor, bounds: tuple[float, float], grid: Tensor) -> Tensor:
    return (values / grid).round().mul(grid).clamp(*bounds)


def _on_grid(decided: Tensor, rest: Tensor, free: Tensor, bounds: tuple[float, float], grid: Tensor) -> Tensor:
    """As ``_within``, and of several turns the one after which values are nearest to the grid."""
    draws, best, least = torch.Generator().manual_seed(0), decided, float("inf")
    sample = torch.randperm(len(rest), generator=draws)[:FEW]
    known, mine, enough = decided[sample], rest[sample], SETTLED * float(rest.square().sum())
    for _ in range(GRID_STARTS):
        turn = _isometry(torch.randn(rest.shape[1], len(free), generator=draws, dtype=torch.float64))
        turn = _polished(_reflected(turn, known, mine, free, bounds), known, mine, free, bounds)
        for _ in range(2 * POLISH):
            place = decided + rest @ turn @ free
            turn = _isometry(rest.T @ (_snapped(place, bounds, grid) - decided) @ free.T)
        found = decided + rest @ turn @ free
        off = float((found - _snapped(found, bounds, grid)).square().sum())
        if off < least:
            best, least = found, off
        if least <= enough:
            break
    return best


def _within(decided: Tensor, rest: Tensor, free: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Turns the ``rest`` (records, undecided) into the ``free`` directions so that values keep to their bounds.

    Where there are more free directions than undecided ones (of two open columns only one varies), several turns keep
    to the bounds, and their mean is taken.
    """
    draws, found, outside = torch.Generator().manual_seed(0), [], []
    sample = torch.randperm(len(rest), generator=draws)[:FEW]
    known, mine, enough = decided[sample], rest[sample], SETTLED * float(rest.square().sum())
    for _ in range(STARTS):
        turn = _isometry(torch.randn(rest.shape[1], len(free), generator=draws, dtype=torch.float64))
        turn = _polished(_reflected(turn, known, mine, free, bounds), known, mine, free, bounds)
        found.append(decided + rest @ turn @ free)
        outside.append(float((found[-1] - found[-1].clamp(*bounds)).square().sum()))
        if outside[-1] <= enough and not FEW_UNDECIDED >= rest.shape[1] < len(free):
            return found[-1]
    least = max(min(outside), enough if rest.shape[1] < len(free) else 0.0)
    return torch.stack([one for one, size in zip(found, outside, strict=True) if size <= least]).mean(0)


def _reflected(turn: Tensor, known: Tensor, rest: Tensor, free: Tensor, bounds: tuple[float, float]) -> Tensor:
    """By turns: cut to the bounds, reflect in them, and take the rotation nearest to that."""
    place = known + rest @ turn @ free
    for _ in range(TURNS_A_START):
        cut = place.clamp(*bounds)
        turn = _isometry(rest.T @ (2 * cut - place - known) @ free.T)
        place = place + known + rest @ turn @ free - cut
    return turn


def _polished(turn: Tensor, known: Tensor, rest: Tensor, free: Tensor, bounds: tuple[float, float]) -> Tensor:
    for _ in range(POLISH):
        cut = (known + rest @ turn @ free).clamp(*bounds)
        turn = _isometry(rest.T @ (cut - known) @ free.T)
    return turn


def _isometry(matrix: Tensor) -> Tensor:
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    nearest: Tensor = left @ right
    return nearest


def registered(points: Tensor, population: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """(records, columns): ``points`` (records, rank) turned to the ``population`` (others, columns).

    Records that are known, ``columns`` at ``rows``, count as much as all pairs together.
    """
    cloud, others = points - points.mean(0), population[:MOST]
    sample = cloud[torch.randperm(len(cloud), generator=torch.Generator().manual_seed(0))[:MOST]]
    found = _axes_on_axes(cloud, others)
    turned = torch.cat([found(cloud[rows]), found(sample)])
    moved = torch.cat([cloud[rows], sample])
    weight = len(sample) / max(1, len(rows))
    tree = cKDTree(others.numpy())
    for _ in range(TURNS):
        there = turned[len(rows) :]
        near = torch.from_numpy(tree.query(there.numpy())[1])
        back = torch.from_numpy(cKDTree(there.numpy()).query(others.numpy())[1])
        given = torch.cat([moved, sample[back]])
        wanted = torch.cat([columns, others[near], others])
        heavy = torch.cat([torch.full((len(rows),), weight), torch.ones(len(given) - len(rows))]).double()
        found = _rotation(given, wanted, heavy)
        turned = found(moved)
    return found(cloud)


class _Turn:
    """x -> (x - from) turned + to."""

    def __init__(self, middle: Tensor, turn: Tensor, mean: Tensor) -> None:
        self.middle, self.turn, self.mean = middle, turn, mean

    def __call__(self, points: Tensor) -> Tensor:
        found: Tensor = self.mean + (points - self.middle) @ self.turn
        return found


def _axes_on_axes(cloud: Tensor, others: Tensor) -> _Turn:
    rank, mean = cloud.shape[1], others.mean(0)
    ours = torch.linalg.svd(cloud, full_matrices=False)[2]
    theirs = torch.linalg.svd(others - mean, full_matrices=False)[2][:rank]
    ours = ours[: len(theirs)]
    seen, wanted = cloud @ ours.T, (others - mean) @ theirs.T
    levels = torch.quantile(wanted, LEVELS, 0)
    plus, minus = ((torch.quantile(sign * _few(seen), LEVELS, 0) - levels).abs().sum(0) for sign in (1, -1))
    signs = torch.where(plus <= minus, 1.0, -1.0).double()
    return _Turn(torch.zeros(rank, dtype=torch.float64), (ours.T * signs) @ theirs, mean)


def _few(points: Tensor) -> Tensor:
    return points[: 16 * MOST]  # a quantile of more is refused, and says nothing more


def _rotation(given: Tensor, wanted: Tensor, weights: Tensor) -> _Turn:
    """The rotation (or reflection) that takes the given to the wanted best (Procrustes)."""
    share = (weights / weights.sum()).unsqueeze(1)
    middle, mean = (share * given).sum(0), (share * wanted).sum(0)
    return _Turn(middle, _isometry((share * (given - middle)).T @ (wanted - mean)), mean)
