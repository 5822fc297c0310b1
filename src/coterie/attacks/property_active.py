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
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from coterie.attacks.property import Known, PassiveProperty
from coterie.data.auxiliary import Auxiliary
from coterie.errors import InvalidInput, require
from coterie.learn.models.model import Model, ModuleModel, built
from coterie.learn.params import Params, map_leaves, pick
from coterie.rng import Rng
from coterie.wire.codec import Memory
from coterie.wire.messages import TRAIN, Contributions, Down

HEAD_STEPS = 20  # of gradient descent on the property's head alone, before the joint steps
HEAD_EXAMPLES = 64  # of either kind


@dataclass(frozen=True)
class ActiveProperty(PassiveProperty):
    """Tampers in every round, and infers as the passive attack does.

    Where we differ: the property's head is fitted anew to the current model each round instead of being carried along,
    so that nothing has to be remembered between rounds.
    """

    data: Auxiliary = field(default_factory=Auxiliary)
    alpha: float = 0.9
    gamma: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.alpha <= 1, "alpha", self.alpha, "must lie in [0, 1]; it weighs the main task")
        require(self.gamma > 0, "gamma", self.gamma, "must be positive; 1 does not scale")

    def answer(self, asked: Down, honest: Contributions, memory: Memory, rng: Rng) -> Contributions:
        """In place of its clients: trained on both tasks from the slot that each of them chose."""
        if asked.kind != TRAIN:
            return honest
        numbers = asked.slots(torch.arange(len(asked.clients))).tolist()
        places = {slot: place for place, slot in enumerate(numbers)}
        uploads = []
        for at, client in enumerate(honest.ids.tolist()):
            start = pick(asked.published.values, places[int(honest.membership[at].argmax())])
            trained = self.train(start, rng.child("client", client))
            uploads.append(map_leaves(lambda new, old: old + self.gamma * (new - old), trained, start))
        values = {name: torch.stack([upload[name] for upload in uploads]).unsqueeze(1) for name in honest.values}
        return replace(honest, values=values)

    def train(self, start: Params, rng: Rng) -> dict[str, Tensor]:
        """The shared part after local training on both tasks."""
        known = Known.of(self.data)
        draws = rng.child("batches").torch()
        weight, bias = head_names(start, known.examples.classes)
        params = dict(start) | self.widened(start, weight, bias, known, rng.child("head").torch())
        half = max(1, self.imitation.local.batch_size // 2)
        for _ in range(self.imitation.local.steps):
            rows, has = balanced(known, half, draws)
            grads = self.gradient(params, known.examples.x[rows], known.examples.y[rows], has)
            params = map_leaves(lambda leaf, grad: leaf - self.imitation.local.lr * grad, params, grads)
        classes = known.examples.classes
        return {name: leaf[:classes] if name in (weight, bias) else leaf for name, leaf in params.items()}

    def gradient(self, params: Params, x: Tensor, y: Tensor, has: Tensor) -> dict[str, Tensor]:
        tracked = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
        with torch.enable_grad():
            logits = outputs(self.imitation.model, tracked, x)
            main = cross_entropy(logits[:, :-2], y)
            property_ = cross_entropy(logits[:, -2:], has)
            loss = self.alpha * main + (1 - self.alpha) * property_
        return dict(
            zip(tracked, torch.autograd.grad(loss, list(tracked.values()), materialize_grads=True), strict=True)
        )

    def widened(
        self, start: Params, weight: str, bias: str | None, known: Known, draws: torch.Generator
    ) -> dict[str, Tensor]:
        """The last layer with two more outputs, fitted to tell the property on what the layers below make of it."""
        rows, has = balanced(known, HEAD_EXAMPLES, draws)
        hidden = hidden_values(self.imitation.model, start, weight, bias, known.examples.x[rows])
        head, shift = fitted_head(hidden, has)
        if bias is None:
            return {weight: torch.cat([start[weight], head])}
        return {weight: torch.cat([start[weight], head]), bias: torch.cat([start[bias], shift])}


def balanced(known: Known, half: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows, half of them with the property, and which."""
    plain = len(known.examples) - known.marked
    marked_rows = torch.randint(known.marked, (half,), generator=draws)
    plain_rows = known.marked + torch.randint(plain, (half,), generator=draws)
    return torch.cat([marked_rows, plain_rows]), torch.cat([torch.ones(half), torch.zeros(half)]).long()


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


def outputs(model: Model, params: Params, x: Tensor) -> Tensor:
    """The model's outputs, to be differentiated; its last layer may be wider than it was built."""
    if isinstance(model, ModuleModel):
        return functional_call(built(model), dict(params), (x,))  # type: ignore[no-any-return]
    return model.logits(params, x)


def hidden_values(model: Model, params: Params, weight: str, bias: str | None, x: Tensor) -> Tensor:
    """What the last layer is given: its outputs if it were the identity."""
    identity = {weight: torch.eye(params[weight].shape[1])}
    if bias is not None:
        identity[bias] = torch.zeros(params[weight].shape[1])
    with torch.no_grad():
        return outputs(model, dict(params) | identity, x)


def fitted_head(hidden: Tensor, has: Tensor) -> tuple[Tensor, Tensor]:
    """(2, width) weights and (2,) biases of a softmax regression, by a few steps from zero."""
    weight, bias = torch.zeros(2, hidden.shape[1]), torch.zeros(2)
    target = torch.nn.functional.one_hot(has, 2).float()
    step = 4 / (1 + hidden.square().sum(1).mean())  # the curvature of a softmax is at most a quarter of this
    for _ in range(HEAD_STEPS):
        error = (torch.softmax(hidden @ weight.T + bias, 1) - target) / len(has)
        weight = weight - step * error.T @ hidden
        bias = bias - step * error.sum(0)
    return weight, bias
