"""What a membership test achieved over many runs, and the epsilon that it proves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.attacks.membership import log_ratios
from coterie.data.federation import Federation
from coterie.errors import InvalidInput
from coterie.flow.guard import ClientGuard, Defence, ServerGuard, Turn
from coterie.flow.protocol import Protocol, Server
from coterie.flow.simulate import Simulator, population
from coterie.learn.models.model import Model
from coterie.measure.claims import Verdict, judge_guarantee
from coterie.measure.curves import curve_of
from coterie.measure.epsilon import (
    EpsilonBound,
    LowFpr,
    Scores,
    auc,
    epsilon_lower_bound,
    tpr_at,
)
from coterie.measure.intervals import Floats, Interval
from coterie.privacy.guarantee import Guarantee
from coterie.rng import Rng
from coterie.wire.messages import Contributions, Envelope


@dataclass(frozen=True)
class Membership:
    """One test on one target: its curve's usual figures, and a lower bound on epsilon at 95 % confidence."""

    auc: Interval
    at_1_percent: LowFpr
    at_0_1_percent: LowFpr
    bound: EpsilonBound


def measure_membership(scores: Scores, delta: float, claim: Guarantee | None, rng: Rng) -> Membership:
    """The claim's own trade-off curve chooses the bound; without a claim it is the one for any mechanism."""
    return Membership(
        auc(scores),
        tpr_at(scores, 0.01),
        tpr_at(scores, 0.001),
        epsilon_lower_bound(scores, delta, rng.child("bound"), curve=curve_of(claim)),
    )


def audit(scores: Scores, claim: Guarantee, rng: Rng, delta: float | None = None) -> Verdict:
    """The claim beside what the test proves, at the claim's own delta."""
    found = measure_membership(scores, claim.delta if delta is None else delta, claim, rng)
    return judge_guarantee(claim, [found.bound])


@dataclass(frozen=True)
class Releases:
    """A run's first request, answered once and released again and again under fresh noise.

    Data and protocol do not change from one release to the next, so an audit of tens of thousands of them need not
    compute the same sums each time. Guards, noise and aggregation are those of the run.
    """

    kind: str
    round: int
    answers: tuple[Contributions, ...]
    defence: Defence

    @staticmethod
    def of(protocol: Protocol[Any], federation: Federation, model: Model, defence: Defence, rng: Rng) -> Releases:
        server = Server(population(federation), model.init, ServerGuard(), rng.child("server"))
        simulator = Simulator(protocol, federation, model, ClientGuard(), rng.child("clients"), processes=0)
        ask = next(protocol.run(protocol.start(server), server))
        down = Envelope(ask.kind, ask.round, ask.clients, ask.published, ask.sees)
        answers = []
        for envelope in simulator.exchange(down):
            if not isinstance(envelope.payload, Contributions):
                raise InvalidInput(f"answer={type(envelope.payload).__name__} must be contributions")
            answers.append(envelope.payload)
        return Releases(ask.kind, ask.round, tuple(answers), defence)

    def exact(self) -> dict[str, Tensor]:
        """The sums without noise, leaves (...)."""
        sums = ServerGuard().aggregate(self.answers, Turn(self.round, Rng.seeded(0), self.kind))
        return {name: leaf[0] for name, leaf in sums.values.items()}

    def draw(self, trials: int, rng: Rng) -> Iterator[dict[str, Tensor]]:
        client, server = self.defence.client, self.defence.server
        for trial in range(trials):
            turn = Turn(self.round, rng.child("trial", trial), self.kind)
            sums = server.aggregate((client.contribute(answer, turn) for answer in self.answers), turn)
            yield {name: leaf[0] for name, leaf in sums.values.items()}


def optimal_scores(inside: Releases, outside: Releases, noise: Mapping[str, float], trials: int, rng: Rng) -> Scores:
    """The optimal test's scores of releases with the target and without it; ``noise`` is what the claim says it is."""
    out = outside.exact()
    change = {name: leaf - out[name] for name, leaf in inside.exact().items()}

    def scores(side: Releases, streams: Rng) -> Floats:
        drawn = list(side.draw(trials, streams))
        total = torch.zeros(trials, dtype=torch.float64)
        for name, moved in change.items():
            released = torch.stack([one[name] for one in drawn])
            total += log_ratios(released, out[name], moved, noise[f"{side.kind}/{name}"])
        return total.numpy()

    return Scores(scores(inside, rng.child("inside")), scores(outside, rng.child("outside")))
