"""What a membership test achieved over many runs, and the epsilon that it proves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.attacks.membership import log_ratios
from coterie.data.federation import Federation
from coterie.errors import InvalidInput
from coterie.flow.ask import Ask, Replies, Sums
from coterie.flow.cohort import Cohort
from coterie.flow.drive import message_of
from coterie.flow.guard import Collecting, Defence
from coterie.flow.protocol import AnyProtocol
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots, Turn
from coterie.measure.claims import Promise, judge_guarantee
from coterie.measure.curves import curve_of
from coterie.measure.epsilon import (
    EpsilonBound,
    LowFpr,
    Scores,
    auc,
    epsilon_lower_bound,
    tpr_at,
)
from coterie.measure.intervals import CONFIDENCE, Floats, Interval
from coterie.privacy.guarantee import Guarantee
from coterie.rng import Rng
from coterie.wire.messages import Contributions, Kind, Published


@dataclass(frozen=True)
class Membership:
    """One test on one target: its curve's usual figures, and a lower bound on epsilon at 95 % confidence."""

    auc: Interval
    at_1_percent: LowFpr
    at_0_1_percent: LowFpr
    bound: EpsilonBound


def measure_membership(
    scores: Scores, delta: float, claim: Guarantee | None, rng: Rng, error: float = 1 - CONFIDENCE
) -> Membership:
    """The claim's own trade-off curve chooses the bound; without a claim it is the one for any mechanism."""
    return Membership(
        auc(scores),
        tpr_at(scores, 0.01),
        tpr_at(scores, 0.001),
        epsilon_lower_bound(scores, delta, rng.child("bound"), 1 - error, curve_of(claim)),
    )


def audit(scores: Scores, claim: Guarantee, rng: Rng, delta: float | None = None) -> Promise:
    """The claim beside what the test proves, at the claim's own delta."""
    found = measure_membership(scores, claim.delta if delta is None else delta, claim, rng)
    return judge_guarantee(claim, [found.bound])


@dataclass(frozen=True)
class Releases:
    """A run's first request, answered once and released again and again under fresh noise.

    Data and protocol do not change from one release to the next, so an audit of tens of thousands of them need not
    compute the same sums each time. Guards, noise and aggregation are those of the run.
    """

    kind: Kind
    round: int
    answers: tuple[Contributions, ...]
    defence: Defence

    @staticmethod
    def of(protocol: AnyProtocol, federation: Federation, defence: Defence, rng: Rng) -> Releases:
        ring = Ring(protocol, federation, roots=Roots.same(rng), processes=0)
        ask = next(protocol.run(protocol.start(ring.server), ring.server))
        answers = tuple(up.sent for up in ring.clients.exchange(message_of(ask, ring.server)))
        return Releases(ask.kind, ask.round, answers, defence)

    def exact(self) -> dict[str, Tensor]:
        """The sums without noise, leaves (...)."""
        sums = Sums.over(self.answers)
        return {name: leaf[0] for name, leaf in sums.values.items()}

    def draw(self, trials: int, rng: Rng) -> Iterator[dict[str, Tensor]]:
        client, server = self.defence.client, self.defence.server
        for trial in range(trials):
            turn = Turn(self.round, Roots.same(rng.child("trial", trial)), self.kind)
            sent = [client.contribute(answer, Cohort(answer.ids, turn)) for answer in self.answers]
            steps = server.collect(Ask(self.kind, self.round, torch.arange(0), Published({}), None), turn)
            next(steps)
            sums = server.release(_finished(steps, Replies(iter(sent))), turn)
            yield {name: leaf[0] for name, leaf in sums.values.items()}


def _finished(steps: Collecting[None], replies: Replies) -> Sums:
    try:
        steps.send(replies)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise InvalidInput("defence=a conversation of several requests cannot be released again and again; leave masks out")


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
