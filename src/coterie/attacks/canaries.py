"""Which canaries were trained on? From what clients send (white box), or from the final models alone (black box).

White box, as Steinke, Nasr and Jagielski (2023, Section 6) do it: the inner products of the canaries' gradients with
what was sent. Where we differ: the canaries of one client are told apart jointly. What it sent is, up to noise, a sum
over those of its canaries that were in, so the coefficients of that sum are estimated by least squares over all rounds,
with a ridge; under Gaussian noise that is the likeliest explanation, while inner products alone take canaries with
similar gradients for one another. Whoever knows a client's other records too (a guarantee holds against that) takes the
sum of their gradients for one more unknown, and is not disturbed by them. Black box: how sure the final models are of a
canary's random label.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.attacks.base import Suspicions
from coterie.attacks.coefficients import Unknowns, gradients, summed_gradients
from coterie.attacks.shadows import Asked, Seat, final
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples
from coterie.errors import NotPermitted
from coterie.learn.models.model import Model
from coterie.learn.params import Params, flatten, map_leaves, pick
from coterie.rng import Rng
from coterie.wire.messages import TRAIN, Contributions
from coterie.wire.view import ThreatModel, View

LEAST_RIDGE = 1e-3  # of the mean squared norm of a canary's gradient: similar ones must not swing against each other


def others_of(client: int) -> str:
    """The part of the auxiliary data that holds a client's other records."""
    return f"others of client {client}"


def ridge_for(noise_multiplier: float, clip: float, steps: int, rate: float) -> float:
    """The ridge under which least squares are the likeliest explanation: noise over the spread of a coin.

    In units of a coefficient of ``steps * rate`` where a canary is in, a round's noise has variance
    sigma^2 C^2 / (steps rate^2), and a coin that is in or out a quarter.
    """
    return 4 * (noise_multiplier * clip) ** 2 / (steps * rate**2)


@dataclass(frozen=True)
class CanaryTest:
    """The auxiliary examples are the canaries; ``clients`` (canaries,) says to whom each was offered.

    ``clip`` is DP-SGD's norm, which everybody knows; None: gradients are not clipped.
    """

    seat: Seat
    model: Model
    clients: Tensor = field(repr=False)
    clip: float | None = None
    ridge: float = 0.0  # ``ridge_for`` the noise that is known to be there
    rounds: tuple[int, ...] = ()  # those that it looks at; all, if empty

    @property
    def threat(self) -> ThreatModel:
        return self.seat.threat()

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Suspicions:
        if white := self.seat is Seat.UPLOADS:
            view.last(TRAIN)  # raises where nothing at all was seen, as the final models do
        scores = self._white_box(view, auxiliary) if white else self._black_box(view, auxiliary.whole())
        return Suspicions(dict(enumerate(scores.tolist())))

    def _black_box(self, view: View, canaries: Examples) -> Tensor:
        every = torch.arange(len(canaries))
        asked = Asked(every, torch.zeros_like(every), self.clients, torch.zeros_like(every, dtype=torch.bool))
        under = final(view, self.model, canaries, asked)[0]  # (canaries, slots)
        best = under.nan_to_num(nan=-torch.inf).amax(1)
        return self._centred(best.nan_to_num(neginf=0.0))

    def _white_box(self, view: View, auxiliary: Auxiliary) -> Tensor:
        canaries, unknowns = auxiliary.whole(), dict[int, Unknowns]()
        for round in self.rounds or view.rounds():
            if not view.has_sent(round):
                continue
            sent, models = view.sent(round), view.received(round).values
            if not sent.values or not models:  # sealed
                continue
            for position, client in enumerate(sent.ids.tolist()):
                theirs = (self.clients == client).nonzero().flatten()
                if len(theirs):
                    others = auxiliary.parts.get(others_of(client))
                    rows, moved = self._equations(sent, position, models, canaries.take(theirs), others)
                    unknowns.setdefault(client, Unknowns(len(theirs))).enter(rows, moved)
        if not unknowns:
            raise NotPermitted(f"{self.threat.name} sees nothing that clients sent that it could read")
        total = torch.zeros(len(canaries), dtype=torch.float64)
        for client, unknown in unknowns.items():
            total[self.clients == client] = unknown.solved(self.ridge, LEAST_RIDGE)
        return self._centred(total)

    def _equations(
        self, sent: Contributions, position: int, models: Params, own: Examples, others: Examples | None
    ) -> tuple[Tensor, Tensor]:
        """(unknowns, length): the gradients of the canaries, their sum, and the sum over the client's other records;
        and what the client moved against them, (length,)."""
        slot = int(sent.membership[position].argmax())
        start = pick(models, slot)
        leaves = {name: leaf[position, slot if leaf.shape[1] > 1 else 0] for name, leaf in sent.values.items()}
        moved = flatten(map_leaves(torch.sub, start, leaves), leading=0).double()
        grads = gradients(self.model, start, own.x, own.y, self.clip).double()
        rows = [grads, grads.sum(0, keepdim=True)]
        if others is not None:
            x, y = others.x.unsqueeze(0), others.y.unsqueeze(0)
            rows.append(summed_gradients(self.model, start, x, y, self.clip).double())
        return torch.cat(rows), moved

    def _centred(self, scores: Tensor) -> Tensor:
        """Clients differ in what they do to all of their canaries; only what sets one apart tells."""
        found = scores.double().clone()
        for client in self.clients.unique():
            own = self.clients == client
            found[own] -= found[own].median()
        return found
