"""A client's guard in the hands of whoever imagines clients under it: everybody who takes part has it.

Its noise comes from the one who imagines, and what it spends is on nobody's account. What a guard seals is left as it
is: that hides nothing of an aggregate that everybody is given. What adapts to a client's own data is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard
from coterie.flow.stack import StackedClient
from coterie.flow.turn import Roots, Step, Turn
from coterie.learn.models.model import Batch, Model
from coterie.learn.params import Params
from coterie.learn.sgd import Gradients
from coterie.rng import Rng
from coterie.wire.messages import Contributions


@dataclass(frozen=True)
class ImitatedGuard:
    guard: ClientGuard

    def gradients(self, model: Model, rng: Rng) -> Gradients | None:
        """Inside a local step; None: it does nothing there."""
        guard, turn = self.guard, Turn(0, Roots.same(rng))
        if not _in_steps(guard):
            return None

        def gradients(params: Params, index: int, batch: Batch) -> dict[str, Tensor]:
            clients = len(batch.divisors)
            step = Step(torch.arange(clients), index, batch.divisors, torch.ones(clients), batch.active, False, turn)
            return dict(guard.gradient(_gradients(guard, model, params, batch, step), params, step))

        return gradients

    def sent(self, start: Params, trained: Params, round: int, rng: Rng) -> Params:
        """What leaves clients that began with ``start`` and ended with ``trained`` (clients, ...)."""
        clients = len(next(iter(trained.values())))
        given = {name: leaf.unsqueeze(0) for name, leaf in start.items()}
        cohort = Cohort(torch.arange(clients), Turn(round, Roots.same(rng)), given=given)
        values = {name: leaf.unsqueeze(1) for name, leaf in trained.items()}
        sent = Contributions(cohort.ids, values, torch.ones(clients), torch.ones(clients, 1))
        for guard in _on_uploads(self.guard):
            sent = guard.contribute(sent, cohort)
        return {name: leaf[:, 0] for name, leaf in sent.values.items()}


def imitated(guard: ClientGuard) -> ImitatedGuard | None:
    """None: it leaves what clients compute and send as it is, as far as can be imagined."""
    return ImitatedGuard(guard) if _in_steps(guard) or _on_uploads(guard) else None


def _gradients(guard: ClientGuard, model: Model, params: Params, batch: Batch, step: Step) -> dict[str, Tensor]:
    """Distributed as the guard's own, in floating point: they hide nobody, and exact sums of convolutions take long."""
    if guard.gradient_noise is None:
        return guard.gradients(model, params, batch, step)
    grads = model.gradients(params, batch, guard.example_clip)
    if guard.gradient_noise > 0:
        draws = step.turn.draws("imagined gradients", step.index).torch()
        deviations = guard.gradient_noise / step.divisors  # (clients,)
        for leaf in grads.values():
            noise = torch.randn(leaf.shape, generator=draws)
            leaf.add_(noise.mul_(deviations.view(-1, *[1] * (leaf.dim() - 1))))
    return grads


def _in_steps(guard: ClientGuard) -> bool:
    own = type(guard).gradient is not ClientGuard.gradient or type(guard).gradients is not ClientGuard.gradients
    return own or guard.example_clip is not None


def _on_uploads(guard: ClientGuard) -> list[ClientGuard]:
    return [one for one in (guard.guards if isinstance(guard, StackedClient) else (guard,)) if one.noises_uploads]
