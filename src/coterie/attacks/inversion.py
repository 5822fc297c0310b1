"""Gradient inversion: the pictures that a client trained on, from how its model moved (Geiping et al. 2020).

Whoever sees the model that a client was given and what it sent back (a curious server, a tap, whoever has a recording)
looks for pictures whose gradient points the same way:

    minimise  1 - cos(update, update of x)  +  tv * total variation(x)      by Adam on the signs of its gradient,

after the labels have been read off the last layer (Zhao et al. 2020, Yin et al. 2021): under cross-entropy the gradient
of a bias is the mean probability of its class less the share of the batch that has it.

Where we differ: several local steps are imitated step by step and differentiated through; entries that were not read
(``ThreatModel.share``) are left out of the cosine; the weight of the total variation falls with the step, since what it
helps to find it blurs. And the gradient of one step is first followed back through the layers as far as that goes
(``coterie.attacks.layerwise``). One picture, and often a batch that trained a dense network, needs no search then.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from coterie.attacks.base import Pictures
from coterie.attacks.layerwise import Followed, peeled
from coterie.data.auxiliary import Auxiliary
from coterie.errors import NotPermitted, require
from coterie.learn.generative.duel import last_layer
from coterie.learn.generative.losses import total_variation
from coterie.learn.models.model import Model, outputs
from coterie.learn.params import Params, flatten, pick, subtract
from coterie.learn.sgd import Local
from coterie.rng import Rng
from coterie.wire.view import ThreatModel, View

CURIOUS_SERVER = ThreatModel("curious server", server=True, knows="how clients train, and the shape of a picture")
MOST = 64  # pictures that are looked for at once, at most
DECAYS = (3 / 8, 5 / 8, 7 / 8)  # when the step and the weight of smoothness become a tenth, of all iterations
EXPLAINED = 1e-4  # one less the cosine of update and imitation, below which nothing is searched for


@dataclass(frozen=True)
class GradientInversion:
    """``local`` is how clients train, which they were told and everybody knows. ``span`` is the range of pixels.

    Clients that take more pictures in a round than ``MOST`` are refused: nothing recognisable comes of them.
    """

    model: Model
    local: Local
    shape: tuple[int, int, int]  # channels, rows, columns
    threat: ThreatModel = CURIOUS_SERVER
    clients: tuple[int, ...] | None = None  # whom to look at; None: everybody whose upload is seen
    round: int | None = None  # the first that is seen, if None
    span: tuple[float, float] = (0.0, 1.0)
    iterations: int = 600
    tries: int = 1  # starts of the search, of which the one that explains the update best is kept
    lr: float = 0.1
    tv: float = 1e-2

    def __post_init__(self) -> None:
        require(self.iterations >= 1, "iterations", self.iterations, "must be at least 1")
        require(self.tries >= 1, "tries", self.tries, "must be at least 1")
        require(self.lr > 0, "lr", self.lr, "must be positive")
        require(self.tv >= 0, "tv", self.tv, "must not be negative")
        require(self.span[0] < self.span[1], "span", self.span, "must be the lowest and the highest value of a pixel")
        plain = self.local.optimizer == "sgd" and not self.local.momentum and not self.local.weight_decay
        require(plain, "local", self.local, "must be plain SGD: other optimisers' updates are no sums of gradients")
        pictures = self.local.steps * self.local.batch_size
        require(
            self.local.epochs is None and pictures <= MOST,
            "local",
            self.local,
            f"must be steps over at most {MOST} pictures in all: an update of more shows none of them",
        )

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Pictures:
        round = view.first() if self.round is None else self.round
        given, sent = view.received(round).values, view.sent(round)
        if not sent.values:
            raise NotPermitted(f"{view.threat.name} sees nothing in round {round} that it can read: it is sealed")
        found: dict[Hashable, Tensor] = {}
        for position, client in enumerate(sent.ids.tolist()):
            if client in view.threat.clients or (self.clients is not None and client not in self.clients):
                continue
            upload = {name: leaf[position, 0].float() for name, leaf in sent.values.items()}
            start = nearest(given, upload)
            found[client] = self.inverted(start, subtract(upload, start), rng.child("client", client))
        return Pictures(found)

    def inverted(self, start: Params, update: Params, rng: Rng) -> Tensor:
        """(pictures, ...) whose training from ``start`` moves the model as ``update`` does, as nearly as was found."""
        labels = self.labels(start, update, rng.child("labels"))
        search = _Search(self, start, update, labels, self.followed(start, update, labels, rng.child("followed")))
        known = search.known
        if known is not None and float(search.apart(known).detach()) < EXPLAINED:
            return known
        starts = [rng.child("start"), *(rng.child("start", number) for number in range(1, self.tries))]
        found = [self.descended(search, one) for one in starts]
        return min(found, key=lambda one: one[1])[0]

    def descended(self, search: _Search, rng: Rng) -> tuple[Tensor, float]:
        """Where the way down from one start ends, and how far from the update that is."""
        x = search.first(rng.torch()).requires_grad_()
        adam = torch.optim.Adam([x], lr=self.lr * (self.span[1] - self.span[0]))
        milestones = [int(part * self.iterations) for part in DECAYS]
        schedule = torch.optim.lr_scheduler.MultiStepLR(adam, milestones, 0.1)
        for iteration in range(self.iterations):
            smooth = self.tv * 0.1 ** sum(iteration >= one for one in milestones)
            loss = search.apart(x) + smooth * total_variation(x)
            (x.grad,) = torch.autograd.grad(loss, [x])
            x.grad.sign_()
            adam.step()
            schedule.step()
            with torch.no_grad():
                x.clamp_(*self.span)
        return x.detach(), float(search.apart(x).detach())

    def followed(self, start: Params, update: Params, labels: Tensor, rng: Rng) -> Followed | None:
        """How far the gradient of a single step can be followed back to the pictures."""
        if len(labels) > 1:
            return None
        gradient = [-leaf / self.local.lr for leaf in update.values()]
        return peeled(self.model.module(start), gradient, self.shape, labels.flatten(), rng.torch())

    def labels(self, start: Params, update: Params, rng: Rng) -> Tensor:
        """(steps, batch): how many of each class are in it, from the last layer; their order says nothing."""
        steps, batch = self.local.steps, self.local.batch_size
        weight, bias = last_layer(start)
        gradient = -update[bias] / self.local.lr if bias else -update[weight].sum(1) / self.local.lr
        if bool(gradient.isnan().any()):
            gradient = gradient.nan_to_num(0.0)
            if not bool(gradient.any()):
                raise NotPermitted("the last layer was not read, and nothing else tells the labels; tap it too")
        low, high = self.span
        blank = low + (high - low) * torch.rand(32, *self.shape, generator=rng.torch())
        with torch.no_grad():
            expected = torch.softmax(outputs(self.model, start, blank), 1).mean(0)
        if steps * batch == 1:
            return gradient.argmin().reshape(1, 1)  # its own class is the only one whose probability should rise
        left = batch * (steps * expected - gradient)  # how many of each class, up to what training changed
        found = []
        for _ in range(steps * batch):
            label = int(left.argmax())
            found.append(label)
            left[label] -= 1
        return torch.tensor(sorted(found)).reshape(batch, steps).T


@dataclass(frozen=True)
class _Search:
    """What is minimised for one client."""

    how: GradientInversion
    start: Params
    update: Params
    labels: Tensor  # (steps, batch)
    followed: Followed | None = None
    _target: Tensor = field(init=False)
    _read: Tensor = field(init=False)

    def __post_init__(self) -> None:
        flat = flatten(self.update, leading=0)
        read = ~flat.isnan()
        require(bool(read.any()), "entries read of the upload", 0, "must be some; tap a larger share")
        object.__setattr__(self, "_read", read)
        object.__setattr__(self, "_target", flat[read])

    def first(self, draws: torch.Generator) -> Tensor:
        """Where the search begins: (pictures, ...)."""
        low, high = self.how.span
        if self.known is not None:
            return self.known
        return low + (high - low) * torch.rand(self.labels.numel(), *self.how.shape, generator=draws)

    @cached_property
    def known(self) -> Tensor | None:
        """The pictures as layers give them away, where they do."""
        found = None if self.followed is None else self.followed.examples
        if found is None and self.labels.numel() == 1:
            found = seen_through(self.update, self.how.shape)
        return None if found is None else found.float().reshape(-1, *self.how.shape).clamp(*self.how.span)

    def apart(self, x: Tensor) -> Tensor:
        """One less the cosine of the update and of what these pictures would make of the model."""
        moved = flatten(self.imitated(x), leading=0)[self._read]
        return 1 - torch.nn.functional.cosine_similarity(moved, self._target, dim=0)

    def imitated(self, x: Tensor) -> dict[str, Tensor]:
        """How a client would move that trained on these, differentiably."""
        params = {name: leaf.detach().requires_grad_() for name, leaf in self.start.items()}
        current: dict[str, Tensor] = dict(params)
        for pictures, labels in zip(x.chunk(len(self.labels)), self.labels, strict=True):
            loss = cross_entropy(outputs(self.how.model, current, pictures), labels)
            leaves = list(current.values())
            grads = torch.autograd.grad(loss, leaves, create_graph=True, materialize_grads=True)
            current = {
                name: leaf - self.how.local.lr * grad for (name, leaf), grad in zip(current.items(), grads, strict=True)
            }
        return {name: leaf - params[name] for name, leaf in current.items()}


def nearest(given: Params, upload: Params) -> dict[str, Tensor]:
    """Of the published models, the one that this upload went out from: where a tap reads no membership either."""
    flat = flatten(upload, leading=0)
    if bool(flat.isnan().all()):
        raise NotPermitted("no entry of the upload was read; a share above 0 is needed")
    distances = (flatten(given) - flat).nan_to_num(0.0).norm(dim=1)
    return pick(given, int(distances.argmin()))


def seen_through(update: Params, shape: tuple[int, int, int]) -> Tensor | None:
    """(1, ...): the input of a first layer that is dense with a bias: row i of its gradient is the bias's times it."""
    (weight, leaf), *rest = update.items()
    bias = weight.removesuffix("weight") + "bias"
    if leaf.dim() != 2 or bias not in dict(rest) or leaf.shape[1] != torch.Size(shape).numel():
        return None
    strengths = update[bias].nan_to_num(0.0).abs()
    row = int(strengths.argmax())
    if float(strengths[row]) == 0 or bool(leaf[row].isnan().any()):
        return None
    return (leaf[row] / update[bias][row]).reshape(1, *shape)
