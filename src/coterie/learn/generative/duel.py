"""A generator and a discriminator against each other: the steps of one bout, and what must be kept between bouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, softplus

from coterie.errors import InvalidInput, require
from coterie.learn.generative.generator import PictureGenerator
from coterie.learn.generative.losses import contrast, distance, hybrid, mismatch, sameness, total_variation
from coterie.learn.params import Params
from coterie.rng import Rng

Discriminator = Callable[[Params, Tensor], Tensor]
"""(parameters, pictures) -> (pictures, classes and one more for what is made up)."""

Kept = dict[str, Any]
"""A generator between bouts: its parameters, their mean and its optimiser's moments, as values that a codec knows."""

BETAS = (0.5, 0.999)
AHEAD = 0.25  # of an update: where on the way its gradient is compared with it
STROKES_LR = 2e-4


@dataclass(frozen=True)
class Bout:
    """How long, how fast, and what the generator is told beside being taken for its class.

    ``alpha`` is the weight of being taken for its class and ``likeness`` that of paper 004's hybrid loss on the given
    samples (Equation 2), ``robust`` its lambda. The rest is not in the paper. ``matching``: to move a model as the data
    that are looked for did, asked ``every`` so many steps. ``strokes``: to look like the samples patch by patch,
    however they are turned, and ``contrast``: to be as bright as samples of the class, wherever the bright pixels lie.
    ``averaged`` is what is kept of the mean of the weights, with which pictures are drawn, from step to step. Without
    smoothness, diversity and jitter what comes out is noise, or ten times the same picture.
    """

    steps: int = 25
    batch: int = 80
    generator_lr: float = 3e-3
    discriminator_lr: float = 1e-3
    alpha: float = 0.1
    likeness: float = 0.0
    robust: float = 0.1
    matching: float = 1.0
    every: int = 1
    strokes: float = 0.3
    smooth: float = 0.5
    diversity: float = 0.0
    contrast: float = 1.0
    averaged: float = 0.0
    jitter: int = 1  # pixels by which pictures are shifted at random before they are judged
    only_fakes: bool = True  # the discriminator learns nothing but its class for what is made up; else all of it

    def __post_init__(self) -> None:
        require(self.steps >= 1, "steps", self.steps, "must be at least 1")
        require(self.batch >= 4 and self.batch % 2 == 0, "batch", self.batch, "must be even, and at least 4")
        require(self.every >= 1, "every", self.every, "must be at least 1: a number of steps")
        require(0 <= self.averaged < 1, "averaged", self.averaged, "must lie in [0, 1)")
        weights = ("alpha", "likeness", "robust", "matching", "strokes", "smooth", "diversity", "contrast")
        for name in (*weights, "jitter", "discriminator_lr"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "must not be negative")


@dataclass(frozen=True)
class Samples:
    """Pictures with labels that whoever trains the generator has of its own."""

    x: Tensor
    y: Tensor

    def like(self, labels: Tensor, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        """One of each label's own class, drawn at random, and which labels have any."""
        order = torch.argsort(self.y, stable=True)
        counts = torch.bincount(self.y, minlength=int(labels.max()) + 1)
        starts = counts.cumsum(0) - counts
        among = (torch.rand(len(labels), generator=draws) * counts[labels]).long()
        there = counts[labels] > 0
        return self.x[order[(starts[labels] + among).clamp_max(len(order) - 1)]], there

    def draw(self, count: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(self.y), (count,), generator=draws)
        return self.x[rows], self.y[rows]


@dataclass(frozen=True)
class Moved:
    """Where a model set out and how somebody's data moved it; NaN where that was not read."""

    start: Params
    update: Params

    def explained(self, discriminate: Discriminator, made: Tensor, labels: Tensor) -> Tensor:
        """How far the gradient of these pictures points from the update."""
        params = {
            name: (leaf + AHEAD * self.update[name].nan_to_num(0.0)).requires_grad_()
            for name, leaf in self.start.items()
        }
        loss = cross_entropy(discriminate(params, made), labels)
        slopes = torch.autograd.grad(loss, list(params.values()), create_graph=True, materialize_grads=True)
        return mismatch({name: -slope for name, slope in zip(params, slopes, strict=True)}, self.update)


@dataclass(frozen=True)
class After:
    """What a bout leaves: the generator, the discriminator as it ended, and the mean losses of both."""

    generator: Kept
    discriminator: dict[str, Tensor]
    generator_loss: float
    discriminator_loss: float
    apart: float  # the mean distance of what was made from samples of its class


def fight(
    how: Bout,
    generator: PictureGenerator,
    kept: Kept | None,
    discriminate: Discriminator,
    start: Params,
    samples: Samples,
    fake: int,
    threshold: float,
    rng: Rng,
    seen: Sequence[Moved] = (),
) -> After:
    """One bout: in each step the discriminator learns to tell the samples' classes and ``fake``, and the generator to
    be taken for its class and to explain one of ``seen``. The discriminator begins at ``start``."""
    net, draws = generator.build(rng.child("generator").seed()), rng.child("bout").torch()
    learner = torch.optim.Adam(net.parameters(), how.generator_lr, BETAS)
    strokes = Strokes(generator, rng.child("strokes").seed()) if how.strokes else None
    if kept is not None:
        net.load_state_dict(kept["net"])
        learner.load_state_dict(kept["adam"])
        if strokes is not None:
            strokes.load(kept["strokes"])
    average: dict[str, Tensor] = _copied(net) if kept is None else _shown(kept)
    judge = Judge(how, discriminate, start, fake)
    totals = torch.zeros(3, dtype=torch.float64)
    for step in range(how.steps):
        first = torch.randint(generator.classes, (), generator=draws)
        half = (first + torch.arange(how.batch // 2)) % generator.classes  # each as often as the others
        labels, noise = torch.cat([half, half]), generator.noise(how.batch, draws)
        made = net(noise, labels)
        if how.alpha and how.discriminator_lr:
            totals[1] += judge.learn(samples, made.detach(), draws)
        loss, apart = _told(how, made, labels, noise, samples, threshold, draws)
        if how.alpha:
            loss = loss + how.alpha * judge.taken(made, labels, draws)
        if how.matching and seen and step % how.every == 0:
            one = seen[int(torch.randint(len(seen), (), generator=draws))]
            loss = loss + how.matching * one.explained(discriminate, made, labels)
        if strokes is not None:
            strokes.learn(samples, made.detach(), draws)
            loss = loss + how.strokes * softplus(-strokes.critic(made)).mean()
        learner.zero_grad()
        loss.backward()
        learner.step()
        if how.averaged:
            average = {name: leaf.lerp(average[name], how.averaged) for name, leaf in _values(net).items()}
        totals[0] += float(loss.detach())
        totals[2] += float(apart)
    state: Kept = {"net": _values(net), "adam": learner.state_dict()}
    if how.averaged:
        state["average"] = average
    if strokes is not None:
        state["strokes"] = strokes.kept()
    means = (totals / how.steps).tolist()
    return After(state, judge.now(), means[0], means[1], means[2])


class Judge:
    """The discriminator of a bout: somebody's model, of which one class is for what is made up."""

    def __init__(self, how: Bout, discriminate: Discriminator, start: Params, fake: int) -> None:
        self.how, self.discriminate, self.fake = how, discriminate, fake
        self.params = {name: leaf.detach().clone().requires_grad_() for name, leaf in start.items()}
        self.taught = [name for name in last_layer(start) if name] if how.only_fakes else list(self.params)
        self.adam = torch.optim.Adam([self.params[name] for name in self.taught], how.discriminator_lr, BETAS)

    def learn(self, samples: Samples, made: Tensor, draws: torch.Generator) -> float:
        x, y = samples.draw(len(made), draws)
        shown = shifted(torch.cat([x, made]), self.how.jitter, draws)
        told = cross_entropy(self.discriminate(self.params, shown), torch.cat([y, torch.full_like(y, self.fake)]))
        self.adam.zero_grad()
        told.backward()
        if self.how.only_fakes:
            for name in self.taught:
                _only(self.params[name], self.fake)
        self.adam.step()
        return float(told.detach())

    def taken(self, made: Tensor, labels: Tensor, draws: torch.Generator) -> Tensor:
        return cross_entropy(self.discriminate(self.params, shifted(made, self.how.jitter, draws)), labels)

    def now(self) -> dict[str, Tensor]:
        return {name: leaf.detach() for name, leaf in self.params.items()}


class Strokes:
    """A critic of patches. It learns from samples in quarter turns: it should not tell how pictures are turned."""

    def __init__(self, generator: PictureGenerator, seed: int) -> None:
        self.critic = generator.critic(seed)
        self.adam = torch.optim.Adam(self.critic.parameters(), STROKES_LR, BETAS)

    def learn(self, samples: Samples, made: Tensor, draws: torch.Generator) -> None:
        quarters = samples.draw(len(made), draws)[0].chunk(4)
        step = 1 if made.shape[2] == made.shape[3] else 2  # what is not square is turned upside down at most
        real = torch.cat([one.rot90(step * turn, (2, 3)) for turn, one in enumerate(quarters)])
        loss = softplus(-self.critic(real)).mean() + softplus(self.critic(made)).mean()
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()

    def load(self, kept: Kept) -> None:
        self.critic.load_state_dict(kept["net"])
        self.adam.load_state_dict(kept["adam"])

    def kept(self) -> Kept:
        return {"net": _values(self.critic), "adam": self.adam.state_dict()}


def _values(net: torch.nn.Module) -> dict[str, Tensor]:
    return {name: leaf.detach() for name, leaf in net.state_dict().items()}


def _shown(kept: Kept) -> dict[str, Tensor]:
    """The weights with which pictures are drawn."""
    weights: dict[str, Tensor] = kept["average"] if "average" in kept else kept["net"]
    return weights


def _copied(net: torch.nn.Module) -> dict[str, Tensor]:
    return {name: leaf.clone() for name, leaf in _values(net).items()}


def shifted(pictures: Tensor, most: int, draws: torch.Generator) -> Tensor:
    """All moved by the same few pixels: what only a certain place would be taken for is no picture."""
    if not most:
        return pictures
    down, across = torch.randint(-most, most + 1, (2,), generator=draws).tolist()
    return pictures.roll((down, across), (2, 3))


def _only(leaf: Tensor, row: int) -> None:
    """Leave the gradient of one row alone, and none of the others."""
    assert leaf.grad is not None
    kept = leaf.grad[row].clone()
    leaf.grad.zero_()
    leaf.grad[row] = kept


def _told(
    how: Bout,
    made: Tensor,
    labels: Tensor,
    noise: Tensor,
    samples: Samples,
    threshold: float,
    draws: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """What pictures cost by themselves and beside samples (Equation 3 and ours), and how far they are from these."""
    loss = torch.zeros(())
    like, there = samples.like(labels, draws)
    apart = distance(made[there], like[there]).detach() if bool(there.any()) else torch.zeros(())
    if how.likeness and bool(there.any()):
        loss = loss + how.likeness * hybrid(made[there], like[there], threshold, how.robust)
    if how.contrast and bool(there.any()):
        loss = loss + how.contrast * contrast(made[there], like[there])
    if how.smooth:
        loss = loss + how.smooth * total_variation(made)
    if how.diversity:
        loss = loss + how.diversity * sameness(made, noise)
    return loss, apart


def imagine(generator: PictureGenerator, kept: Kept, each: int, rng: Rng) -> Tensor:
    """(classes, each, ...): so many pictures of every class."""
    net = generator.build(0)
    net.load_state_dict(_shown(kept))
    labels = torch.arange(generator.classes).repeat_interleave(each)
    with torch.no_grad():
        made = net(generator.noise(len(labels), rng.torch()), labels)
    found: Tensor = made.unflatten(0, (generator.classes, each))
    return found


def likeness(generator: PictureGenerator, kept: Kept, samples: Samples, rng: Rng) -> float:
    """The mean cosine of what it makes of a class with samples of that class; 0 where there are none of any."""
    made = imagine(generator, kept, 4, rng)
    found = []
    for label in samples.y.unique().tolist():
        mine, theirs = (normalize(one.flatten(1), dim=1) for one in (made[label], samples.x[samples.y == label]))
        found.append(float((mine @ theirs.T).mean()))
    return sum(found) / len(found) if found else 0.0


def last_layer(params: Params) -> tuple[str, str]:
    """The weight of the last dense layer, and its bias ("" if it has none)."""
    for name in reversed(list(params)):
        if params[name].dim() == 2 and name.endswith("weight"):
            bias = name.removesuffix("weight") + "bias"
            return name, bias if bias in params else ""
    raise InvalidInput(f"model leaves={list(params)} have no dense layer at the end, which tells the classes")


def with_one_more_class(params: Params, row: Params | None = None) -> tuple[dict[str, Tensor], int]:
    """A classifier's parameters with one more output, and its number; ``row`` is what that output had before."""
    names = [name for name in last_layer(params) if name]
    rows = {name: torch.zeros_like(params[name][:1]) if row is None else row[name][None] for name in names}
    wider = {name: torch.cat([params[name], rows[name]]) for name in names}
    return {**params, **wider}, len(params[names[0]])
