"""What the federated clusterings share: a state of public facts, requests for sums, and the result's publication."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from coterie.data.federation import Examples
from coterie.data.holdings import LARGEST
from coterie.data.lazy import AnyFederation, revealed
from coterie.errors import InvalidInput, require, require_count
from coterie.flow.admission import Expected
from coterie.flow.ask import Ask, Replies, Sums
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard
from coterie.flow.protocol import Protocol, Server
from coterie.learn.clusters.clipping import ClientClip, RecordClip, Unclipped
from coterie.learn.clusters.points import Points
from coterie.learn.clusters.statistics import Unit, statistics
from coterie.learn.params import Params
from coterie.learn.sgd import Local
from coterie.privacy.guarantee import DELTA, Level, RunFacts
from coterie.wire.codec import register
from coterie.wire.messages import RESULT, Contributions, Kind, Published

WEIGHT = "weight"  # the tag of examples that do not all count alike
Answer = TypeVar("Answer")
Steps = Generator[Ask["Clusters"], Replies, Answer]


@register
@dataclass(frozen=True)
class Clusters:
    """What is known in public by now, and the sums from which it was learnt, as the server got them."""

    round: int
    known: Mapping[str, Tensor]  # leaves (1, ...)
    released: Mapping[str, Tensor] = field(default_factory=dict)  # "request/leaf": (1, ...)

    def after(self, kind: str, sums: Sums | None, learnt: Params) -> Clusters:
        """One round on: the request's sums, and what was learnt from them, leaves (...)."""
        news = {f"{kind}/{leaf}": total.float() for leaf, total in (sums.values if sums else {}).items()}
        return replace(self.learning(learnt), round=self.round + 1, released={**self.released, **news})

    def learning(self, learnt: Params) -> Clusters:
        """The same round, and what follows from what is known, leaves (...)."""
        return replace(self, known={**self.known, **{name: value.unsqueeze(0) for name, value in learnt.items()}})

    def at(self, round: int) -> Clusters:
        return replace(self, round=round)

    def get(self, *names: str) -> dict[str, Tensor]:
        """Some of what is known, leaves (...)."""
        return {name: self.known[name][0] for name in names}


MOST_CLUSTERS = 100_000
MOST_STEPS = 10_000  # each of which is planned before the first


@dataclass(frozen=True, eq=False)  # tensors among the settings have no one truth value
class Clusterer(Protocol[Clusters]):
    """Settings of every clustering. ``level`` is the unit whose share in each sum is bounded; None: nothing is.

    The result is published together with all sums that led to it. They are what a curious server knows in any case, and
    with them anybody can audit the run. Every enrolled client is asked and answers, with zeros (and noise, where it
    adds any) if it holds nothing: who answers tells nothing about what anybody holds. A client that does not answer is
    left out of that sum; if nobody answers, the run ends with an error, for there is nothing to go on with.
    """

    clusters: int = 10
    level: Level | None = None

    reveals: ClassVar[str] = ""

    def __post_init__(self) -> None:
        require_count("clusters", self.clusters, 1, MOST_CLUSTERS)
        require(
            self.level in (None, Level.RECORD, Level.CLIENT),
            "level",
            self.level,
            "must be Level.RECORD, Level.CLIENT or None",
        )

    @property
    def unit(self) -> Unit:
        return {None: Unclipped, Level.RECORD: RecordClip, Level.CLIENT: ClientClip}[self.level]

    def releases(self) -> tuple[str, ...]:
        """The sums that a whole run asks for, each as "request/leaf": what noise must be planned for."""
        return ()

    def facts(self, federation: AnyFederation, delta: float = DELTA) -> RunFacts:
        """What a defence must know of clustering this federation to say what it guarantees."""
        rounds = len({name.split("/")[0] for name in self.releases()})
        reveals = revealed(federation, self.reveals, by_client=self.level is Level.CLIENT)
        return RunFacts(federation.clients, rounds, Local(), (), delta, reveals, self.level)

    def serves(self, state: Clusters) -> bool:
        return "centres" in state.known

    def result(self, state: Clusters) -> Published:
        if not self.serves(state):
            raise InvalidInput(f"round={state.round} of {type(self).__name__} has no centres yet; run it to its end")
        return Published({"centres": state.known["centres"]})

    # -- the server's side ---------------------------------------------------------------------------------------

    def ask(self, kind: str, names: Sequence[str], state: Clusters, server: Server) -> Steps[Sums]:
        """Publish these facts, ask everybody for the sums that follow from them, and add up."""
        clients = server.clients.enrolled(state.round)
        published = Published({name: state.known[name] for name in names})
        sums = yield from server.collect(Ask(Kind.of(kind), state.round, clients, published, state))
        require(not sums.empty, f"answers to {kind!r}", 0, "leave nothing to go on with; run it again")
        return sums

    def expects(self, ask: Ask[Clusters], server: Server) -> Expected | None:
        """What a client that holds nothing would send."""
        if ask.kind == RESULT:
            return Expected({}, slots=1)
        public = {name: leaf[0] for name, leaf in ask.published.values.items()}
        place = public.get("centres", public.get("middle"))
        if place is None:
            return None
        nothing = Points(place.new_zeros(0, place.shape[-1]), torch.zeros(2, dtype=torch.int64), finite=True)
        found = statistics(ask.kind.name, public, nothing, self.unit)
        return Expected({name: (1, *leaf.shape[1:]) for name, leaf in found.items()}, slots=1)

    def publish(self, state: Clusters, server: Server) -> Steps[Clusters]:
        """Everybody is given the centres; the answers are empty."""
        values = {"centres": state.known["centres"], **state.released}
        replies = yield Ask(RESULT, state.round, server.clients.enrolled(state.round), Published(values), state)
        for _ in replies:
            pass
        return state

    # -- the client's side ---------------------------------------------------------------------------------------

    def answer(self, kind: Kind, models: Params, cohort: Cohort, guard: ClientGuard) -> Contributions:
        if kind == RESULT:
            return contribution(cohort, {})
        public = {name: leaf[0] for name, leaf in models.items()}
        return contribution(cohort, statistics(kind.name, public, points_of(cohort), self.unit))


def contribution(cohort: Cohort, leaves: Params) -> Contributions:
    """Statistics (clients, ...) that are simply added up."""
    values = {name: leaf.unsqueeze(1) for name, leaf in leaves.items()}
    return Contributions(cohort.ids, values, torch.ones(len(cohort)), torch.ones(len(cohort), 1))


def weights_of(examples: Examples) -> Tensor | None:
    """What each example counts, (examples,) float32; None: all alike. One whose tag is NaN, or below 0, counts nothing,
    and more than ``LARGEST`` is cut to it: an error would tell of a client's data, and end everybody's run."""
    tagged = examples.tags.get(WEIGHT)
    if tagged is None:
        return None
    return tagged.double().nan_to_num(0.0, LARGEST, 0.0).clamp_(0.0, LARGEST).float()


def points_of(cohort: Cohort) -> Points:
    """The cohort's points. Rows that lie side by side are not copied: 10 million points leave no room for it."""
    rows, x = cohort.round_shards.rows, cohort.rows.x
    first, last = (int(rows[0]), int(rows[-1])) if len(rows) else (0, -1)
    side_by_side = last - first + 1 == len(rows) and bool((rows.diff() == 1).all())
    chosen = slice(first, last + 1) if side_by_side else rows
    weights = weights_of(cohort.rows)
    return Points(
        x[chosen].flatten(1),
        cohort.round_shards.offsets,
        finite=True,  # Examples has checked them
        weights=None if weights is None else weights[chosen],
    )
