"""Active property inference: the adversary's own client trains the shared model to tell the property apart.

Melis et al. 2019: the local model gets a second head for the property, the loss is paper 000's Equation 1,
``alpha * L(main) + (1 - alpha) * L(property)``, and the shared part is uploaded. ``alpha`` weighs the main task: the
paper's 0.9 gives the property a tenth. The scaled-up form (paper 000, Section 3.3.4) uploads
``gamma (w_local - w) + w``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from coterie.attacks.property import Known, PassiveProperty
from coterie.data.auxiliary import Auxiliary
from coterie.errors import InvalidInput, require
from coterie.learn.models.model import Model, outputs, seeded
from coterie.learn.params import Params, map_leaves, pick
from coterie.rng import Rng
from coterie.wire.codec import Memory
from coterie.wire.messages import TRAIN, Contributions, Down

HEAD_STEPS = 20  # of gradient descent on the property's head alone, before the joint steps
HEAD_EXAMPLES = 64  # of either kind


@dataclass(frozen=True)
class ActiveProperty(PassiveProperty):
    """Tampers in every round, and infers as the passive attack does.

    A ``share`` of its batch has the property, a fifth as in Melis et al.'s code. The property's head is carried along
    from round to round, one for each cluster, in the adversary's memory. Where we differ: before the joint steps the
    head alone takes a few steps more, for it is never averaged with anybody's and the model below it is. It answers
    before its guard, so that what a guard does inside a local step (clipping, noise) does not bind it.
    """

    data: Auxiliary = field(default_factory=Auxiliary)
    alpha: float = 0.9
    gamma: float = 1.0
    share: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.alpha <= 1, "alpha", self.alpha, "must lie in [0, 1]; it weighs the main task")
        require(self.gamma > 0, "gamma", self.gamma, "must be positive; 1 does not scale")
        require(0 < self.share < 1, "share", self.share, "must lie in (0, 1); it is the property's part of a batch")

    def answer(self, asked: Down, honest: Contributions, memory: Memory, rng: Rng) -> Contributions:
        """In place of its clients: trained on both tasks from the slot that each of them chose."""
        if asked.kind != TRAIN:
            return honest
        numbers = asked.slots(torch.arange(len(asked.clients))).tolist()
        places = {slot: place for place, slot in enumerate(numbers)}
        uploads = []
        for at, client in enumerate(honest.ids.tolist()):
            slot = int(honest.membership[at].argmax())
            start, name = pick(asked.published.values, places[slot]), f"head/{client}/{slot}"
            trained, memory[name] = self.train(start, memory.get(name), rng.child("client", client), asked.round)
            uploads.append(map_leaves(lambda new, old: old + self.gamma * (new - old), trained, start))
        values = {name: torch.stack([upload[name] for upload in uploads]).unsqueeze(1) for name in honest.values}
        return replace(honest, values=values)

    def train(self, start: Params, head: Tensor | None, rng: Rng, at: int = 0) -> tuple[dict[str, Tensor], Tensor]:
        """The shared part after local training on both tasks, and the head (2, width + 1), its bias last."""
        known, classes = Known.of(self.data), self.data.with_property.classes
        weight, bias = head_names(start, classes)
        rows, has = drawn(known, HEAD_EXAMPLES, HEAD_EXAMPLES, rng.child("head").torch())
        hidden = hidden_values(self.imitation.model, start, weight, bias, known.examples.x[rows])
        head = fitted_head(hidden, has, head)
        params = dict(start) | {weight: torch.cat([start[weight], head[:, :-1]])}
        if bias is not None:
            params[bias] = torch.cat([start[bias], head[:, -1]])
        local = self.imitation.local
        (steps, size), rate = local.shape(len(known.examples)), local.rate(at)
        params = map_leaves(lambda leaf: leaf.unsqueeze(0).clone(), params)  # one client, to whom steps belong
        optimiser, always = local.begin(params, at), torch.ones(1, dtype=torch.bool)
        marked = min(max(1, round(self.share * size)), size - 1) if size > 1 else 1
        draws = rng.child("batches").torch()
        for step in range(steps):
            rows, has = drawn(known, marked, size - marked, draws)
            seed = rng.child("dropout", step).seed()
            grads = self.gradient(pick(params, 0), known.examples.x[rows], known.examples.y[rows], has, seed)
            if optimiser is None:
                params = map_leaves(lambda leaf, grad: leaf - rate * grad, params, grads)
            else:  # as honest clients do: at Adam's rate a plain step would hardly move
                optimiser.step(params, map_leaves(lambda grad: grad.unsqueeze(0), grads), always)
        params = pick(params, 0)
        shift = params[bias][classes:] if bias is not None else head[:, -1]
        head = torch.cat([params[weight][classes:], shift.unsqueeze(1)], 1)
        return {name: leaf[:classes] if name in (weight, bias) else leaf for name, leaf in params.items()}, head

    def gradient(self, params: Params, x: Tensor, y: Tensor, has: Tensor, seed: int) -> dict[str, Tensor]:
        tracked = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
        with torch.enable_grad(), seeded(seed):
            logits = outputs(self.imitation.model, tracked, x, training=True)
            main = cross_entropy(logits[:, :-2], y)
            property_ = cross_entropy(logits[:, -2:], has)
            loss = self.alpha * main + (1 - self.alpha) * property_
        return dict(
            zip(tracked, torch.autograd.grad(loss, list(tracked.values()), materialize_grads=True), strict=True)
        )


def drawn(known: Known, marked: int, plain: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """So many rows with the property and so many without, and which are which."""
    marked_rows = torch.randint(known.marked, (marked,), generator=draws)
    plain_rows = known.marked + torch.randint(len(known.examples) - known.marked, (plain,), generator=draws)
    return torch.cat([marked_rows, plain_rows]), torch.cat([torch.ones(marked), torch.zeros(plain)]).long()


def head_names(params: Params, classes: int) -> tuple[str, str | None]:
    """The weight and bias of the layer whose outputs are the classes: the last dense one of that width."""
    for name in reversed(list(params)):
        if params[name].dim() == 2 and len(params[name]) == classes and name.endswith("weight"):
            bias = name.removesuffix("weight") + "bias"
            return name, bias if bias in params else None
    raise InvalidInput(
        f"model leaves={list(params)} have no dense layer with {classes} outputs at the end, to which a second head "
        "could be attached; the active attack needs one"
    )


def hidden_values(model: Model, params: Params, weight: str, bias: str | None, x: Tensor) -> Tensor:
    """What the last layer is given: its outputs if it were the identity."""
    identity = {weight: torch.eye(params[weight].shape[1])}
    if bias is not None:
        identity[bias] = torch.zeros(params[weight].shape[1])
    with torch.no_grad():
        return outputs(model, dict(params) | identity, x)


def fitted_head(hidden: Tensor, has: Tensor, start: Tensor | None = None) -> Tensor:
    """(2, width + 1): a softmax regression, its bias last, by a few steps from where it was, or from zero."""
    inputs = torch.cat([hidden, torch.ones(len(hidden), 1)], 1)
    head = torch.zeros(2, inputs.shape[1]) if start is None else start
    target = one_hot(has, 2).float()
    step = 4 / inputs.square().sum(1).mean()  # the curvature of a softmax is at most a quarter of this
    for _ in range(HEAD_STEPS):
        error = (torch.softmax(inputs @ head.T, 1) - target) / len(has)
        head = head - step * error.T @ inputs
    return head
