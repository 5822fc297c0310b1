"""A federation with canaries, run once, and what each seat proves from it about the claim."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch

from coterie.attacks.canaries import CanaryTest, others_of, ridge_for
from coterie.attacks.shadows import Seat
from coterie.data.auxiliary import Auxiliary
from coterie.data.canaries import Canaries, with_canaries
from coterie.data.federation import Federation
from coterie.errors import NotPermitted
from coterie.flow.guard import Defence
from coterie.flow.protocol import AnyProtocol
from coterie.flow.ring import AnyRing, Ring
from coterie.flow.turn import Roots
from coterie.learn.models.model import Model
from coterie.learn.sgd import Local
from coterie.measure.canaries import SHARE, CanaryBound, Tally, canary_bound, tally
from coterie.measure.cost import Stopwatch
from coterie.measure.epsilon import Scores
from coterie.rng import Rng
from coterie.wire.tape import Tape

SEATS = {Seat.UPLOADS: "white box", Seat.FINAL: "black box"}
DELTA = 1e-5


@dataclass(frozen=True)
class Noise:
    """What is publicly known of gradients under the defence: how they are clipped and noised."""

    clip: float | None = None
    multiplier: float = 0.0


@dataclass(frozen=True)
class Found:
    """What one seat made of the canaries."""

    seat: Seat
    scores: Scores
    tally: Tally

    def bound(self, delta: float, confidence: float) -> CanaryBound:
        return canary_bound(self.tally, delta, f"canaries of one run, {SEATS[self.seat]}", confidence)


@dataclass(frozen=True)
class Planted:
    """A run with canaries among its clients' records."""

    ring: AnyRing
    state: object
    federation: Federation  # with the canaries that were taken
    canaries: Canaries
    others: Federation  # without any
    seconds: float = 0.0  # a round

    @staticmethod
    def run(
        protocol: AnyProtocol, federation: Federation, model: Model, defence: Defence, count: int, rng: Rng
    ) -> Planted:
        planted, canaries = with_canaries(federation, count, rng.child("planted"))
        tape = Tape([seat.threat() for seat in SEATS])
        stopwatch = Stopwatch()
        with Ring(protocol, planted, model, defence, Roots.same(rng), tape) as ring:
            state = ring.run(before_ask=stopwatch.note)
        ring.hand_out(state)
        return Planted(ring, state, planted, canaries, federation, stopwatch.seconds_a_round)

    def found(self, noise: Noise, local: Local, share: float = SHARE) -> list[Found]:
        """From every seat that can read anything. They know all records but for which canaries were taken."""
        clients = self.canaries.clients.unique().tolist()
        known = {others_of(client): self.others.examples.take(self.others.train[client]) for client in clients}
        auxiliary = Auxiliary(self.canaries.examples, known)
        sizes = self.federation.train.sizes.double()
        rate = min(1.0, local.batch_size / float(sizes[sizes > 0].median()))
        ridge = ridge_for(noise.multiplier, noise.clip or 1.0, local.steps, rate)
        included: dict[Hashable, bool] = dict(enumerate(self.canaries.included.tolist()))
        results = []
        for seat in SEATS:
            assert self.ring.model is not None
            attack = CanaryTest(seat, self.ring.model, self.canaries.clients, noise.clip, ridge)
            try:
                guess = attack.infer(self.ring.view(attack.threat), auxiliary, Rng.seeded(0))
            except NotPermitted:  # sealed from this seat
                continue
            inside, outside = (
                torch.tensor([guess.scores[key] for key, was in included.items() if was is side]).numpy()
                for side in (True, False)
            )
            results.append(Found(seat, Scores(inside, outside), tally(guess, included, share)))
        return results


def bounds(found: Sequence[Found], delta: float, confidence: float) -> list[CanaryBound]:
    """One a seat, each with its share of the error, so that all of them hold together."""
    each = 1 - (1 - confidence) / max(len(found), 1)
    return [one.bound(delta, each) for one in found]
