"""What private steps of Lloyd have in common: a bound that weighs noise against bias, and steps that noise explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.errors import require, require_count
from coterie.flow.ask import Sums
from coterie.flow.protocol import Server
from coterie.learn.clusters.lloyd import followed_centres
from coterie.learn.clusters.quantile import best_bound, quantile, standing_out
from coterie.learn.clusters.statistics import BINS, WATCH, sums_worth, unscaled
from coterie.learn.params import Params
from coterie.privacy.guarantee import Level
from coterie.protocols.clusterings.base import MOST_STEPS, Clusterer, Clusters, Steps

STILL = 1e-6  # of the largest coordinate: below that, only rounding moves
NOBODY = 1e-6  # a count below this is none: a client with a million points in one cluster and one in another says so
DROWNED = "drowned"
"""Known if noise hid how long the vectors are; the bound is then a guess from what is public."""


@dataclass(frozen=True, eq=False)
class Stepping(Clusterer):
    """At most ``steps`` steps of Lloyd on bounded sums.

    ``bound`` limits the norm that a unit adds to a sum, about the centres so far. None: it is estimated from a
    histogram of norms, which is a release of its own. ``share`` then sets the share of the units that stay below it;
    None: the bound that errs least, where noise (which grows with it) and bias (which shrinks) add up. At record level
    every step also releases how long its vectors were, and the next bound follows the centres.

    ``planned`` are the deviations of the noise as it was planned, of which only the ratios matter: by them the server
    knows how noisy a sum will be before it asks. ``box`` (low, high), each (features,), is public: centres are put into
    it after every step.
    """

    steps: int = 20
    bound: float | None = None
    share: float | None = None
    planned: Mapping[str, float] = field(default_factory=dict)
    box: tuple[Tensor, Tensor] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("steps", self.steps, 0, MOST_STEPS)
        require(self.bound is None or self.bound > 0, "bound", self.bound, "must be positive, or None to estimate it")
        require(self.share is None or 0 < self.share <= 1, "share", self.share, "must lie in (0, 1], or be None")

    @property
    def estimates(self) -> bool:
        return self.level is not None and self.bound is None

    @property
    def watches(self) -> bool:
        """Whether every step says how long its vectors were. With few clients that costs more than it brings."""
        return self.estimates and self.share is None and self.level is Level.RECORD

    @property
    def moves(self) -> tuple[str, ...]:
        return tuple(f"lloyd {step}" for step in range(1, self.steps + 1))

    def moved(self, kinds: Sequence[str]) -> list[str]:
        """The sums that these requests release."""
        leaves = ("sums", "counts", "norms") if self.watches else ("sums", "counts")
        return [f"{kind}/{leaf}" for kind in kinds for leaf in leaves]

    def bounds(self) -> dict[str, Tensor]:
        """What is known of bounds before the first request, leaves (1, ...)."""
        known = {} if self.bound is None else {"bound": torch.tensor([self.bound])}
        return {**known, WATCH: torch.ones(1)} if self.watches else known

    def facts_of_a_move(self) -> list[str]:
        private = [] if self.level is None else ["bound"]
        return ["centres", *private, *([WATCH] if self.watches else [])]

    # -- the server's side ---------------------------------------------------------------------------------------

    def find_bound(self, kind: str, following: str, guess: float, state: Clusters, server: Server) -> Steps[Clusters]:
        """How to bound the vectors of the request that follows; ``guess`` if noise hides how long they are."""
        sums = yield from self.ask(kind, ["centres"], state, server)
        centres = state.known["centres"].shape[1]
        return state.after(kind, sums, self._bound_from(sums, kind, following, centres, guess))

    def _bound_from(self, sums: Sums, kind: str, following: str, centres: int, guess: float) -> dict[str, Tensor]:
        noise = sums.noise.get("norms", 0.0)
        found = standing_out(sums.values["norms"][0], BINS, noise)
        if found is None:
            return {"bound": torch.tensor(guess), DROWNED: torch.tensor(1.0)}
        if self.share is not None:
            return {"bound": torch.tensor(quantile(*found, self.share))}
        deviation = self.expected(f"{following}/sums", f"{kind}/norms", noise)
        price = self.features * (centres * deviation) ** 2
        return {"bound": torch.tensor(best_bound(*found, price))}

    @property
    def features(self) -> int:
        raise NotImplementedError

    def expected(self, release: str, seen: str, noise: float) -> float:
        """The deviation of a sum that is yet to be asked for, by one that was seen. Not planned: the same."""
        known = release in self.planned and self.planned.get(seen, 0.0) > 0
        return noise * self.planned[release] / self.planned[seen] if known else noise

    def move(
        self, kind: str, names: Sequence[str], state: Clusters, server: Server, following: str | None = None
    ) -> Steps[Clusters]:
        """New centres from sums about the old ones. A cluster with next to no points in it keeps its centre."""
        sums = yield from self.ask(kind, names, state, server)
        public = state.get(*names)
        learnt: dict[str, Tensor] = {}
        if WATCH in names and following is not None:
            learnt = self._bound_from(sums, kind, following, self.clusters, float(public["bound"]))
            learnt.pop(DROWNED, None)  # then the bound before stays, which was seen
        doubt = state.known["doubt"][0] if "doubt" in state.known else None
        if doubt is not None and len(doubt) != len(public["centres"]):  # cells that were merged since
            doubt = None
        return state.after(kind, sums, {**learnt, **self._moved(sums, public, doubt)})

    def _moved(self, sums: Sums, public: Params, doubt: Tensor | None) -> dict[str, Tensor]:
        """The centres, their doubt, and how many points they stand for: none, if noise explains the count."""
        total, heads = (unscaled(leaf, sums.values[leaf][0], public, self.unit).float() for leaf in ("sums", "counts"))
        noise = sums.noise.get("sums", 0.0) * sums_worth(public, self.unit)
        least = max(NOBODY, 2 * sums.noise.get("counts", 0.0))
        centres, after = followed_centres(public["centres"], total, heads, least, noise, doubt)
        return {"centres": self.boxed(centres), "doubt": after, "heads": torch.where(heads >= least, heads, 0.0)}

    def boxed(self, centres: Tensor) -> Tensor:
        return centres if self.box is None else torch.minimum(torch.maximum(centres, self.box[0]), self.box[1])

    def descend(self, first: int, state: Clusters, server: Server) -> Steps[Clusters]:
        """Lloyd's steps, the first of which is round ``first``; without noise, until nothing moves.

        How many of them are steps follows from the signal: one that noise alone explains is not followed but averaged
        with those before it (``followed_centres``), so that a budget planned for many steps is not lost on few.
        """
        last = first + self.steps - 1
        while state.round <= last:
            number = state.round - first
            before, kind = state.known["centres"], self.moves[number]
            following = self.moves[number + 1] if state.round < last else None
            state = yield from self.move(kind, self.facts_of_a_move(), state, server, following)
            moved = float((before - state.known["centres"]).abs().max())
            if self.level is None and moved <= STILL * float(before.abs().max()):
                state = state.at(last + 1)
        return state
