"""IFCA (Ghosh et al. 2020): each client trains the cluster model that fits its own data best."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.errors import InvalidInput, require, require_count
from coterie.flow.admission import Expected
from coterie.flow.ask import Ask, Sums
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard
from coterie.flow.protocol import Running, Server
from coterie.learn.params import Layout, Params, map_leaves, stack
from coterie.protocols.base import MOST_MODELS, Models, ModelTrainer
from coterie.wire.messages import CHOOSE, Contributions, Kind, Published

NAME, JUDGE = Kind("name"), Kind("judge")
VOTERS = 256  # clients that take part in choosing the start
NAMERS = 16  # of them say how a vote ended that only they can read
SETS = 500  # sets of models that they vote on
VOTED_NUMBERS = 1 << 22  # parameters of candidates that are looked at together
VOTE_EXAMPLES = 20  # untrained models differ enough on a few examples


@dataclass(frozen=True)
class Ifca(ModelTrainer):
    """Model averaging, or gradient averaging with ``average_gradients``.

    Random models tend to collapse: one of them is the least bad for everybody, so everybody trains it, and the others
    stay as they were. So the server first draws ``candidates`` models, many sets of ``clusters`` of them, and lets the
    clients choose within each set; it starts from the set whose choices are spread most evenly (by entropy). It needs
    only the sum of the votes, so this also works where it must not see who chose what; or, where clients alone can read
    that sum, the name of the winner. ``candidates=0`` is the original's plain random start.

    Neither start can see that two groups will merge: that shows in the loss, after some rounds. With ``starts`` above 1
    that many starts are tried for ``trial`` rounds each, one after the other, and the one of which the clients' mean
    smallest loss is the least goes on; the server needs only the sum of these losses (and believes them: one client
    that lies can decide between starts, not spoil one). Trials count among ``rounds``.

    ``shared`` names the leaves (by prefix) that are averaged over all clients, as in MingledPie's system setting; only
    the rest is per cluster. Models that share leaves share them from the start: the average of layers that were drawn
    apart would be worth less than any of them.

    A cluster that nobody chose keeps its model. A client without data predicts with the first cluster's. If nobody
    votes on the start, it is a random one.
    """

    reveals: ClassVar[str] = (
        "each round, the cluster whose model fits its raw data best (with several starts, its loss)"
    )

    clusters: int = 5
    candidates: int = 30
    choose_on: int | None = None  # examples on which losses are compared, drawn every round; None: all
    choose_on_batch: bool = False  # compare them on the first batch that is then trained on, as paper 000's clients do
    average_gradients: bool = False
    shared: tuple[str, ...] = ()
    starts: int = 1
    trial: int = 10  # rounds a start

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("clusters", self.clusters, 1, MOST_MODELS)
        require_count("candidates", self.candidates, 0, MOST_MODELS)
        require(
            self.candidates == 0 or self.candidates >= self.clusters,
            "clusters",
            self.clusters,
            f"must be at most candidates={self.candidates}, of which they are chosen; candidates=0 draws them",
        )
        require(self.choose_on is None or self.choose_on >= 1, "choose_on", self.choose_on, "must be at least 1")
        require(
            not (self.choose_on_batch and self.local.poisson),
            "choose_on_batch",
            self.choose_on_batch,
            "has no place under Poisson sampling, whose batches are secret and may be empty; set choose_on",
        )
        require(self.starts >= 1, "starts", self.starts, "must be at least 1")
        require(self.trial >= 1, "trial", self.trial, "must be at least 1")
        tried = self.starts * self.trial if self.starts > 1 else 0
        require(tried <= self.rounds, "starts", self.starts, f"x trial={self.trial} must fit in rounds={self.rounds}")
        require(self.starts == 1 or self.begins.drawn, "starts", self.starts, "must be 1 where begins gives the models")
        if self.average_gradients:
            require(self.local.steps == 1 and not self.local.epochs, "local", self.local, "must be Local(steps=1)")

    @property
    def slots(self) -> int:
        return self.clusters

    @property
    def choices(self) -> int:
        return self.clusters

    @property
    def numberings(self) -> int:
        return self.starts

    def asked_together(self, clients: int) -> int:
        votes = self.begins.drawn and self.candidates > 0
        return min(super().asked_together(clients), VOTERS) if votes else super().asked_together(clients)

    @property
    def looks(self) -> str:
        why = "the sums of all clusters in the clear, for averaged gradients" if self.average_gradients else ""
        return why or super().looks

    def start(self, server: Server) -> Models:
        return Models(0, self._beginning(server, 0))

    def _beginning(self, server: Server, trial: int) -> Published:
        """The models of a start, or the seeds of those that are voted on."""
        if not self.begins.drawn:
            return Published(self._sharing(self.begins.models(server, self.clusters)))
        self.begins.require_drawable(server, self.clusters)
        rng = server.rng.child("trial", trial) if trial else server.rng
        if self.candidates == 0:
            drawn = stack(server.init(rng.child("init", slot).seed()) for slot in range(self.clusters))
            return Published(self._sharing(drawn))
        seeds = [rng.child("candidate", number).seed() for number in range(self.candidates)]
        return Published({"seeds": torch.tensor([seeds])})

    def run(self, state: Models, server: Server) -> Running[Models]:
        for trial in range(state.trial, self.starts):
            if "seeds" in state.published.values:
                state = yield from self._voted(state, server)
            if self.starts > 1:
                state = yield from self.rounds_until(self.trial * (trial + 1), state, server)
                state = yield from self._judged(state, server)
        return (yield from self.rounds_until(self.rounds, state, server))

    def _voted(self, state: Models, server: Server) -> Running[Models]:
        """The models of the set of candidates whose votes are spread most evenly."""
        seeds, best = state.published.values["seeds"][0], 0
        if not state.published.sealed:
            ask = Ask(CHOOSE, state.round, self._voters(state, server), state.published, state)
            sums = yield from server.collect(ask)
            best = most_even(sums.values["votes"][0]) if sums.values else 0  # votes (sets, clusters)
            state = replace(state, published=replace(state.published, sealed=sums.sealed))
        if state.published.sealed:  # only clients can read the votes, and they all say the same
            ask = Ask(NAME, state.round, self._voters(state, server)[:NAMERS], state.published, state)
            named = yield from server.collect(ask)
            best = int(named.values["best"][0].argmax()) if named.values else 0
        which = candidate_sets(seeds, self.clusters)[best]
        return replace(state, published=Published(self._drawn(server.init, seeds, which)))

    def _judged(self, state: Models, server: Server) -> Running[Models]:
        """After a trial: the better of this start and the best before it, and the next one, or the best of all."""
        voters = self._voters(state, server)
        sums = yield from server.collect(Ask(JUDGE, state.round, voters, state.published, state))
        loss = math.inf if sums.empty else float(sums.values["loss"] / sums.weights)
        if state.best is None or loss < state.best_loss:
            state = replace(state, best=state.published, best_loss=loss)
        server.metrics.note(f"loss of start {state.trial}", loss)
        assert state.best is not None
        last = state.trial == self.starts - 1
        following = state.best if last else self._beginning(server, state.trial + 1)
        return replace(state, trial=state.trial + 1, published=following, best=None if last else state.best, moments={})

    def _voters(self, state: Models, server: Server) -> Tensor:
        """Drawn: the first clients may all be of one group."""
        present = server.clients.present(state.round)
        order = torch.randperm(len(present), generator=server.rng.child("voters", state.trial).torch())
        return present[order[:VOTERS].sort().values]

    def result(self, state: Models) -> Published:
        if "seeds" in state.published.values:
            raise InvalidInput("round=0 of Ifca has no models before the clients have chosen a start; run it first")
        return state.published

    def averaged(self, sums: Sums, previous: Published) -> Published:
        mean = sums.mean(previous)
        if not (self.shared or self.average_gradients):
            return mean
        if mean.origin is not None:  # sealed: whoever opens the sums averages
            return replace(mean, shared=tuple(self._shared_names(mean.origin.values)))
        shares = (sums.weights / sums.weights.sum()).float()  # (clusters,)
        values = dict(mean.values)
        if self.average_gradients:  # Algorithm 1, option I divides by all clients, not by the cluster's
            values = map_leaves(lambda old, new: old + _scaled(new - old, shares), previous.values, values)
        for name in self._shared_names(values):  # over all clients, whichever cluster they are in
            leaf = mean.values[name]
            values[name] = torch.tensordot(shares, leaf, 1).expand_as(leaf).contiguous()
        return replace(mean, values=values)

    def _drawn(self, init: Callable[[int], Params], seeds: Tensor, which: Tensor) -> dict[str, Tensor]:
        """These candidates, leaves (len(which), ...); the shared leaves are the first candidate's."""
        models = stack(init(int(seeds[index])) for index in which)
        return self._sharing(models, init(int(seeds[0]))) if self.shared else models

    def _sharing(self, models: Params, source: Params | None = None) -> dict[str, Tensor]:
        """The models with the shared leaves of the source (or of the first) in all of them."""
        common = {
            name: (models[name][0] if source is None else source[name]).expand_as(models[name]).contiguous()
            for name in self._shared_names(models)
        }
        return dict(models) | common

    def _shared_names(self, models: Params) -> list[str]:
        for prefix in self.shared:
            require(
                any(name.startswith(prefix) for name in models),
                "shared",
                prefix,
                f"matches no leaf of the model; it has {sorted(models)}",
            )
        return [name for name in models if name.startswith(self.shared)] if self.shared else []

    def expects(self, ask: Ask[Models], server: Server) -> Expected | None:
        if ask.kind == JUDGE:
            return Expected({"loss": (1, 1)}, slots=1, between=(0.0, math.inf))
        if ask.kind == NAME:
            return Expected({"best": (1, SETS)}, slots=1, between=(0.0, 1.0))
        if ask.kind != CHOOSE:
            return super().expects(ask, server)
        sets = candidate_sets(ask.published.values["seeds"][0], self.clusters)
        return Expected({"votes": (1, len(sets), self.clusters)}, slots=1, between=(0.0, 1.0))

    # -- the client's side ---------------------------------------------------------------------------------------

    def answer(self, kind: Kind, models: Params, cohort: Cohort, guard: ClientGuard) -> Contributions:
        if kind == CHOOSE:
            return self.votes(models["seeds"][0], cohort)
        if kind == NAME:
            best = one_hot(torch.tensor(most_even(models["votes"][0])), SETS).float().expand(len(cohort), 1, -1)
            return Contributions(cohort.ids, {"best": best}, torch.ones(len(cohort)), torch.ones(len(cohort), 1))
        if kind == JUDGE:
            least = cohort.losses(models).min(1).values.view(-1, 1, 1)  # (clients, 1, 1)
            return Contributions(cohort.ids, {"loss": least}, torch.ones(len(cohort)), torch.ones(len(cohort), 1))
        looked_at = cohort.first_batches(self.local) if self.choose_on_batch else None
        choice = cohort.losses(models, self.choose_on, looked_at).argmin(1)  # (clients,)
        trained = cohort.train(cohort.copies(models, choice), self.local, guard)
        return self.contribution(cohort, trained, one_hot(choice, self.clusters).float())

    def votes(self, seeds: Tensor, cohort: Cohort) -> Contributions:
        """In every set of candidates, the one that fits the client best."""
        init = cohort.trained.init
        at_once = max(1, VOTED_NUMBERS // Layout.of(init(int(seeds[0]))).length)
        columns = [
            cohort.losses(self._drawn(init, seeds, some), VOTE_EXAMPLES)
            for some in torch.arange(len(seeds)).split(at_once)
        ]
        losses = torch.cat(columns, 1)[:, candidate_sets(seeds, self.clusters)]  # (clients, sets, clusters)
        votes = one_hot(losses.argmin(2), self.clusters).float()
        return Contributions(
            cohort.ids, {"votes": votes.unsqueeze(1)}, torch.ones(len(cohort)), torch.ones(len(cohort), 1)
        )

    def choose(self, models: Params, cohort: Cohort) -> Tensor:
        return one_hot(cohort.losses(models, self.choose_on).argmin(1), self.clusters).float()


def candidate_sets(seeds: Tensor, clusters: int) -> Tensor:
    """(sets, clusters): the sets that are voted on; they follow from the seeds, so everybody knows them."""
    return _sets(int(seeds[0]), len(seeds), clusters)


@lru_cache(maxsize=64)
def _sets(seed: int, candidates: int, clusters: int) -> Tensor:
    """Nobody writes to them: the same are needed to ask, to vote, to check the votes, and to count them."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(candidates, generator=generator)[:clusters] for _ in range(SETS)])


def most_even(votes: Tensor) -> int:
    """The set whose votes (sets, clusters) have the largest entropy."""
    shares = votes / votes.sum(1, keepdim=True)
    return int(torch.special.entr(shares).sum(1).argmax())


def _scaled(leaf: Tensor, shares: Tensor) -> Tensor:
    return leaf * shares.view(-1, *[1] * (leaf.dim() - 1))
