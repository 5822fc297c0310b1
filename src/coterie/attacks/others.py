"""What the others sent: a cluster's aggregate without the adversary's own part in it, as Melis et al. 2019 look at it.

An aggregate is ``s u + (1 - s) v``: ``u`` is the update of the adversary's own clients, which it knows, ``v`` the mean
of the others', which it is after, and ``s`` its own share. The share follows from the cluster's size where the view
tells it or the rules fix it (one model, and everybody takes part). Else it is read off the aggregate itself: how far
that lies along the part of ``u`` that no imagined client's update explains. An upload that was scaled up stands out so
much that the size is hardly ever missed. Clients seldom move, so rounds are put together: what earlier ones said of a
cluster's size is believed before the next is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import t as student

from coterie.attacks.updates import Observed
from coterie.errors import require
from coterie.learn.params import Params, flatten, map_leaves
from coterie.wire.view import View

ALONE = 1e-3  # of its own length: an aggregate that is no farther from the own update is of nobody else
RATIOS = tuple(2.0 ** (step / 4) for step in range(-12, 13))  # what others may weigh beside the adversary's clients
UNEXPLAINED = 1e-9  # of its squared length: an own update of which less is its alone tells nothing
LEAST_SPREAD = 1e-5  # of a share: rounding, and what a normal distribution of few moments does not know
MOVES = (0.01, 0.1, 1.0)  # how often a cluster's size may change; at 1 a round says nothing of the next

Candidate = tuple[int, float]  # so many others, and what each weighs beside one of the adversary's own clients
Belief = dict[tuple[float, Candidate], float]  # how likely it is, by the rounds so far, that sizes change so often
Beliefs = dict[int, Belief]  # by cluster


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
    beliefs: Beliefs,
) -> dict[int, Behind]:
    """For each of a round's clusters; ``imagined`` are updates (clients, ...) of clients that start from it.

    ``beliefs`` are brought up to date; without any ({}) the round stands alone.
    """
    elsewhere = len(seen) - len(own)
    left, found = rules.total, {}
    for observed in seen:
        if observed.slot in own:
            most = rules.sizes[1] if left is None else min(rules.sizes[1], left - elsewhere)
            before = beliefs.get(observed.slot, {})
            here, beliefs[observed.slot] = _with_own(observed, own[observed.slot], rules, most, imagined, before)
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
    observed: Observed,
    own: Own,
    rules: Rules,
    most: int,
    imagined: Callable[[Observed], Params],
    before: Belief,
) -> tuple[Behind, Belief]:
    """Who stands behind it, and what is believed of that from now on."""
    mine, all_ = flatten(own.update, 0), flatten(observed.update, 0)
    told = observed.size
    if told == own.clients or (told is None and float((all_ - mine).norm()) <= ALONE * float(mine.norm())):
        return Behind(own, 1.0, (0, 0)), before
    fewest = own.clients + 1
    sizes = [told] if told is not None else range(max(rules.sizes[0], fewest), max(most, fewest) + 1)
    ratios = RATIOS if rules.weighted else (1.0,)
    candidates = [(size - own.clients, ratio) for size in sizes for ratio in ratios]
    best = 0
    found = along(imagined(observed), mine, all_) if len(candidates) > 1 and bool(mine.any()) else None
    if found is not None:
        best, before = _believed(candidates, before, log_chances(candidates, own.clients, found))
    others, ratio = candidates[best]
    return Behind(own, own.clients / (own.clients + ratio * others), (others, others)), before


def _believed(candidates: Sequence[Candidate], before: Belief, chances: Sequence[float]) -> tuple[int, Belief]:
    """Which is the likeliest after a round, and how likely each is: Bayes' rule for a size that stays or is any other.

    How often it changes is learnt along: where the rounds contradict each other, each comes to stand alone.
    """
    states = [[(moves, candidate) for candidate in candidates] for moves in MOVES]
    known = np.array([[before.get(state, 0.0) for state in row] for row in states])
    known = known if known.any() else np.ones(known.shape)
    rates = np.array(MOVES)[:, None]
    expected = (1 - rates) * known + rates * known.mean(1, keepdims=True)
    likely = expected * np.exp(np.array(chances) - max(chances))
    likely /= likely.sum()
    after = {
        state: float(one)
        for row, found in zip(states, likely, strict=True)
        for state, one in zip(row, found, strict=True)
    }
    return int(likely.sum(0).argmax()), after


@dataclass(frozen=True)
class Along:
    """How far the aggregate, and each of several imagined updates, lies along what is the own update's alone.

    All that start from the same model move alike, and how much alike depends on labels that the adversary can only
    guess. The noise of its own batch, and what it did to its upload, is nobody else's: the part of the own update that
    imagined ones do not explain. An imagined one is compared with what the rest of them leave unexplained, for it would
    explain itself. In units in which the own update lies at 1.
    """

    imagined: NDArray[np.float64]  # (imagined,)
    seen: float


def along(imagined: Params, own: torch.Tensor, aggregate: torch.Tensor) -> Along | None:
    """None if the imagined explain all of the own update."""
    rows = torch.cat([flatten(imagined), own.unsqueeze(0), aggregate.unsqueeze(0)]).double()
    inner = (rows @ rows.T).numpy()  # imagined, own, aggregate
    count = len(inner) - 2
    numbers = np.arange(count)
    whole = _unexplained(inner, numbers)
    if whole is None:
        return None
    each = [_unexplained(inner, numbers[numbers != one]) for one in numbers]
    return Along(np.array([by[one] for one, by in enumerate(each) if by is not None]), float(whole[-1]))


def _unexplained(inner: NDArray[np.float64], by: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """Inner products of all with the part of the own update that these do not explain, its own being 1."""
    own = len(inner) - 2
    explained = np.linalg.lstsq(inner[np.ix_(by, by)], inner[by, own], rcond=UNEXPLAINED)[0]
    left: NDArray[np.float64] = inner[own] - explained @ inner[by]
    return left / left[own] if left[own] > UNEXPLAINED * inner[own, own] else None


def log_chances(candidates: Sequence[Candidate], own: int, found: Along) -> list[float]:
    """The logarithm of how likely each of these is: Student's, for the moments are of few imagined clients."""
    count, mean = len(found.imagined), float(found.imagined.mean())
    variance, chances = float(found.imagined.var(ddof=1)), []
    for others, ratio in candidates:
        share = own / (own + ratio * others)
        spread = (1 - share) ** 2 * variance * (1 / others + 1 / count) + LEAST_SPREAD
        away = found.seen - share - (1 - share) * mean
        chances.append(float(student.logpdf(away, count - 1, scale=math.sqrt(spread))))
    return chances
