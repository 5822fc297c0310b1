"""What a membership test achieved over many runs, and the epsilon that it proves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
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

    @staticmethod
    def again(
        protocol: AnyProtocol, federation: Federation, defence: Defence, asked: Mapping[Kind, tuple[int, Published]]
    ) -> list[Releases]:
        """All requests of a run that is over, with what was published then: each is answered once more.

        What one release told decided what the next one asked. That is held fixed here, as the view of the run has it.
        """
        ring = Ring(protocol, federation, roots=Roots.same(Rng.seeded(0)), processes=0)
        found = []
        for kind, (round, published) in asked.items():
            ask = Ask(kind, round, ring.server.clients.present(round), published, None)
            answers = tuple(up.sent for up in ring.clients.exchange(message_of(ask, ring.server)))
            found.append(Releases(kind, round, answers, defence))
        return found

    def only(self, client: int) -> Releases:
        """As if nobody else had answered: what a noisy message alone tells."""
        picked = [answer.pick((answer.ids == client).nonzero().flatten()) for answer in self.answers]
        return replace(self, answers=tuple(answer for answer in picked if len(answer)))

    def without(self, client: int) -> Releases:
        """With nothing in this client's answer."""

        def emptied(answer: Contributions) -> Contributions:
            there = (answer.ids != client).to(torch.float64)
            values = {
                name: leaf * there.to(leaf.dtype).view(-1, *[1] * (leaf.dim() - 1))
                for name, leaf in answer.values.items()
            }
            return replace(answer, values=values)

        return replace(self, answers=tuple(emptied(answer) for answer in self.answers))

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


def optimal_scores(
    inside: Releases,
    outside: Releases,
    noise: Mapping[str, float],
    trials: int,
    rng: Rng,
    target: Releases | None = None,
) -> Scores:
    """The optimal test's scores of releases with the target and without it; ``noise`` is what the claim says it is.

    ``target``: releases with what the test looks for, where ``inside`` does not have it: a control.
    """
    out = outside.exact()
    change = {name: leaf - out[name] for name, leaf in (target or inside).exact().items()}

    def scores(side: Releases, streams: Rng) -> Floats:
        drawn = list(side.draw(trials, streams))
        total = torch.zeros(trials, dtype=torch.float64)
        for name, moved in change.items():
            released = torch.stack([one[name] for one in drawn])
            total += log_ratios(released, out[name], moved, noise[f"{side.kind}/{name}"])
        return total.numpy()

    return Scores(scores(inside, rng.child("inside")), scores(outside, rng.child("outside")))


def scores_of_all(
    inside: Sequence[Releases],
    outside: Sequence[Releases],
    noise: Mapping[str, float],
    trials: int,
    rng: Rng,
    targets: Sequence[Releases] | None = None,
) -> Scores:
    """The optimal test on all releases of a run together: their log-likelihood ratios add up."""
    found = [
        optimal_scores(one, other, noise, trials, rng.child("request", number), target)
        for number, (one, other, target) in enumerate(zip(inside, outside, targets or inside, strict=True))
    ]
    return Scores(
        np.sum([scores.inside for scores in found], axis=0), np.sum([scores.outside for scores in found], axis=0)
    )
