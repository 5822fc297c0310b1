"""What the others sent: a cluster's aggregate without the adversary's own part in it, as Melis et al. 2019 look at it.

An aggregate is ``s u + (1 - s) v``: ``u`` is the update of the adversary's own clients, which it knows, ``v`` the mean
of the others', which it is after, and ``s`` its own share. The share follows from the cluster's size where the view
tells it or the rules fix it (one model, and everybody takes part). Else it is read off the aggregate itself: how far
that lies along the part of ``u`` that no imagined client's update explains. An upload that was scaled up stands out so
much that the size is hardly ever missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.attacks.updates import Observed
from coterie.errors import require
from coterie.learn.params import Params, flatten, map_leaves
from coterie.rng import Rng
from coterie.wire.view import View

ALONE = 1e-3  # of its own length: an aggregate that is no farther from the own update is of nobody else
RATIOS = tuple(2.0 ** (step / 4) for step in range(-12, 13))  # what others may weigh beside the adversary's clients
DRAWN = 64  # aggregates that are imagined for each size
DOUBT = 4.0  # by how much the variances of what depends on guessed labels are widened
UNEXPLAINED = 1e-9  # of its squared length: an own update of which less is its alone tells nothing by that
LEAST_SPREAD = 1e-5  # of a share: rounding, and what a normal distribution of few moments does not know


class ServerRule(Protocol):
    """The server's optimiser, in the hands of whoever has followed every move of a model (``protocols.ServerStep``)."""

    def undone(
        self, moved: Params, moments: Mapping[str, torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """By how much the clients' mean differed from the model that moved so, and what the server remembers then."""


@dataclass(frozen=True)
class Rules:
    """What everybody who takes part is told of the protocol.

    ``sizes``: how few and how many clients may stand behind an aggregate, (N, N) where N clients train one model.
    ``total``: how many take part in every round, over all clusters, where the adversary is given every cluster's model.
    ``weighted``: whether clients count by their samples, so that a size does not yet tell the own share.
    ``server``: its optimiser, where it does more than publish the clients' mean.
    ``averages``: whether it takes a mean; of a median no part is the adversary's own, and its upload is left in.
    """

    sizes: tuple[int, int] = (1, 6)
    total: int | None = None
    weighted: bool = False
    server: ServerRule | None = None
    averages: bool = True

    def __post_init__(self) -> None:
        low, high = self.sizes
        require(1 <= low <= high, "sizes", self.sizes, "must be a range of whole numbers from 1 up")

    @staticmethod
    def of(
        clients: int, models: int, everybody: bool = True, weighted: bool = False, server: ServerRule | None = None
    ) -> Rules:
        """For so many clients that train so many models, all of which are published to everybody."""
        fixed = everybody and models == 1
        return Rules((clients if fixed else 1, clients), clients if everybody else None, weighted, server)


@dataclass(frozen=True)
class Own:
    """The mean update of the adversary's own clients in a cluster, and how many they are."""

    update: Params
    clients: int


@dataclass(frozen=True)
class Behind:
    """Who stands behind an aggregate: the adversary's own clients with a share of it, and so many others."""

    own: Own | None
    share: float
    others: tuple[int, int]  # how few and how many

    @property
    def alone(self) -> bool:
        return self.others[1] == 0

    def without_own(self, update: Params) -> dict[str, torch.Tensor]:
        """The mean update of the others."""
        if self.own is None:
            return dict(update)
        return map_leaves(lambda all_, own: (all_ - self.share * own) / (1 - self.share), update, self.own.update)


def own_uploads(view: View, seen: Sequence[Observed]) -> dict[int, Own]:
    """What the adversary's clients sent to each of a round's clusters; nothing where there is no record of it."""
    sent = view.answered(seen[0].round) if seen else None
    if sent is None:
        return {}
    found = {}
    for observed in seen:
        mine = sent.membership[:, observed.slot].nonzero().flatten()
        if len(mine):
            weights = sent.weights[mine] * sent.membership[mine, observed.slot]
            parts = {name: leaf[mine, observed.slot if leaf.shape[1] > 1 else 0] for name, leaf in sent.values.items()}
            mean = {
                name: torch.tensordot((weights / weights.sum()).to(leaf.dtype), leaf, 1) for name, leaf in parts.items()
            }
            found[observed.slot] = Own({name: leaf - observed.start[name] for name, leaf in mean.items()}, len(mine))
    return found


def who_is_behind(
    seen: Sequence[Observed],
    own: Mapping[int, Own],
    rules: Rules,
    imagined: Callable[[Observed], Params],
    rng: Rng,
) -> dict[int, Behind]:
    """For each of a round's clusters; ``imagined`` are updates (clients, ...) of clients that start from it."""
    elsewhere = len(seen) - len(own)
    left, found = rules.total, {}
    for observed in seen:
        if observed.slot in own:
            most = rules.sizes[1] if left is None else min(rules.sizes[1], left - elsewhere)
            here = _with_own(observed, own[observed.slot], rules, most, imagined, rng.child("slot", observed.slot))
            found[observed.slot] = here
            left = None if left is None else left - own[observed.slot].clients - here.others[0]
    for observed in seen:
        if observed.slot not in own:
            found[observed.slot] = Behind(None, 0.0, _without_own(observed, rules, left if own else None, elsewhere))
    return found


def _without_own(observed: Observed, rules: Rules, left: int | None, clusters: int) -> tuple[int, int]:
    """How many may be in a cluster that the adversary is not in, one of so many that share those who are left."""
    if observed.size is not None:
        return observed.size, observed.size
    low, high = rules.sizes
    if left is None:
        return low, high
    most = max(1, min(high, left - (clusters - 1)))
    return (most, most) if clusters == 1 else (min(low, most), most)


def _with_own(
    observed: Observed, own: Own, rules: Rules, most: int, imagined: Callable[[Observed], Params], rng: Rng
) -> Behind:
    mine, all_ = flatten(own.update, 0), flatten(observed.update, 0)
    told = observed.size
    if told == own.clients or (told is None and float((all_ - mine).norm()) <= ALONE * float(mine.norm())):
        return Behind(own, 1.0, (0, 0))
    fewest = own.clients + 1
    sizes = [told] if told is not None else range(max(rules.sizes[0], fewest), max(most, fewest) + 1)
    ratios = RATIOS if rules.weighted else (1.0,)
    candidates = [(size - own.clients, ratio) for size in sizes for ratio in ratios]
    best = 0
    if len(candidates) > 1 and bool(mine.any()):
        best = likeliest(candidates, own.clients, products(imagined(observed), mine, all_), rng)
    others, ratio = candidates[best]
    return Behind(own, own.clients / (own.clients + ratio * others), (others, others))


@dataclass(frozen=True)
class Products:
    """Inner products of imagined updates with each other, with the own one, and with what is the own one's alone.

    All that start from the same model move alike, and how much alike depends on labels that the adversary can only
    guess. The noise of its own batch, and what it did to its upload, is nobody else's: the part of the own update that
    some of the imagined ones do not explain (``alone``). Of the others, how far each lies along it is kept, too. In
    units of the own update.
    """

    among: NDArray[np.float64]  # (imagined, imagined)
    with_own: NDArray[np.float64]  # (imagined,)
    with_alone: NDArray[np.float64]  # (imagined that explain nothing,); empty: they explain all of the own update
    seen: NDArray[np.float64]  # (2,): how far the aggregate lies along the own update, and the logarithm of its length
    seen_alone: float


def products(imagined: Params, own: torch.Tensor, aggregate: torch.Tensor) -> Products:
    rows, mine, all_ = flatten(imagined).double(), own.double(), aggregate.double()
    basis = torch.linalg.qr(rows[::2].T)[0]  # (length, those that explain)
    alone = mine - basis @ (basis.T @ mine)
    length, unit = float(mine @ mine), float(alone @ mine)
    seen = np.array([float(all_ @ mine) / length, float(_log(all_ @ all_ / length))])
    told = unit > UNEXPLAINED * length
    along = (rows[1::2] @ alone / unit).numpy() if told else np.empty(0)
    among, with_own = (rows @ rows.T / length).numpy(), (rows @ mine / length).numpy()
    return Products(among, with_own, along, seen, float(all_ @ alone) / unit if told else 0.0)


def likeliest(candidates: Sequence[tuple[int, float]], own: int, found: Products, rng: Rng) -> int:
    """Which of these (others, what each weighs beside the own) makes the aggregate look most like itself.

    By how far it lies along what is the own update's alone, taken for normal with the moments of the imagined ones;
    and, with doubt, by how far it lies along the whole of it and how long it is, beside aggregates of imagined clients.
    """
    draws, chances = rng.child("size").numpy(), []
    along = found.with_alone
    told = len(along) > 0
    mean, variance = (float(along.mean()), float(along.var(ddof=min(1, len(along) - 1)))) if told else (0.0, 0.0)
    for others, ratio in candidates:
        share = own / (own + ratio * others)
        alone = np.array([[(1 - share) ** 2 * variance / others + LEAST_SPREAD]])
        away = np.array([found.seen_alone - share - (1 - share) * mean])
        made = _aggregates(found, share, _subsets(len(found.with_own), others, draws))
        spread = DOUBT * (np.cov(made.T) + np.diag([1e-4, 1e-3]))
        chances.append((_log_density(away, alone) if told else 0.0) + _log_density(found.seen - made.mean(0), spread))
    return int(np.argmax(chances))


def _aggregates(found: Products, share: float, subsets: NDArray[np.float64]) -> NDArray[np.float64]:
    """(drawn, 2): what would be seen of aggregates of the own update and of these means of imagined ones."""
    along, squares = subsets @ found.with_own, np.einsum("si,ij,sj->s", subsets, found.among, subsets)
    length = share**2 + 2 * share * (1 - share) * along + (1 - share) ** 2 * squares
    return np.stack([share + (1 - share) * along, np.log(np.maximum(length, 1e-12))], 1)


def _subsets(imagined: int, others: int, draws: np.random.Generator) -> NDArray[np.float64]:
    """(drawn, imagined): means over so many of them; where there are too few, some stand in for several."""
    means = np.zeros((DRAWN, imagined))
    for row in means:
        np.add.at(row, draws.choice(imagined, others, replace=others > imagined), 1 / others)
    return means


def _log_density(away: NDArray[np.float64], spread: NDArray[np.float64]) -> float:
    """Of a normal distribution, so far from its mean."""
    return float(-0.5 * away @ np.linalg.solve(spread, away) - 0.5 * np.log(np.linalg.det(spread)))


def _log(value: torch.Tensor) -> torch.Tensor:
    return value.clamp_min(1e-12).log()
