"""A generator and a discriminator against each other: the steps of one bout, and what must be kept between bouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from coterie.errors import InvalidInput, require
from coterie.learn.generative.generator import PictureGenerator
from coterie.learn.generative.losses import contrast, distance, hybrid, sameness, total_variation
from coterie.learn.params import Params
from coterie.rng import Rng

Discriminator = Callable[[Params, Tensor], Tensor]
"""(parameters, pictures) -> (pictures, classes and one more for what is made up)."""

Kept = dict[str, Any]
"""A generator between bouts: its parameters and its optimiser's moments, as values that a codec knows."""

BETAS = (0.5, 0.999)


@dataclass(frozen=True)
class Bout:
    """How long, how fast, and what the generator is told beside being taken for its class.

    ``likeness`` is the weight of paper 004's hybrid loss on the given samples, ``robust`` its lambda. Smoothness,
    contrast, diversity and jitter are not in the paper: without them what comes out is noise, or ten times the same
    picture. ``contrast`` compares how bright pixels are with those of samples of the class, wherever they lie.
    """

    steps: int = 30
    batch: int = 32
    generator_lr: float = 1e-3
    discriminator_lr: float = 1e-3
    likeness: float = 0.0
    robust: float = 0.1
    smooth: float = 0.3
    diversity: float = 0.02
    contrast: float = 1.0
    jitter: int = 1  # pixels by which pictures are shifted at random before they are judged
    only_fakes: bool = True  # the discriminator learns nothing but its class for what is made up; else all of it

    def __post_init__(self) -> None:
        require(self.steps >= 1, "steps", self.steps, "must be at least 1")
        require(self.batch >= 4 and self.batch % 2 == 0, "batch", self.batch, "must be even, and at least 4")
        for name in ("likeness", "robust", "smooth", "diversity", "contrast", "jitter", "discriminator_lr"):
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
) -> After:
    """One bout: in each step the discriminator learns to tell the samples' classes and ``fake``, and the generator to
    be taken for its class. The discriminator begins at ``start``."""
    net, draws = generator.build(rng.child("generator").seed()), rng.child("bout").torch()
    if kept is not None:
        net.load_state_dict(kept["net"])
    learner = torch.optim.Adam(net.parameters(), how.generator_lr, BETAS)
    if kept is not None:
        learner.load_state_dict(kept["adam"])
    judge = {name: leaf.detach().clone().requires_grad_() for name, leaf in start.items()}
    taught = [name for name in last_layer(start) if name] if how.only_fakes else list(judge)
    critic = torch.optim.Adam([judge[name] for name in taught], max(how.discriminator_lr, 1e-30), BETAS)
    totals = torch.zeros(3, dtype=torch.float64)
    for _ in range(how.steps):
        half = torch.randint(generator.classes, (how.batch // 2,), generator=draws)
        labels, noise = torch.cat([half, half]), generator.noise(how.batch, draws)
        made = net(noise, labels)
        if how.discriminator_lr:
            x, y = samples.draw(how.batch, draws)
            shown = shifted(torch.cat([x, made.detach()]), how.jitter, draws)
            told = cross_entropy(discriminate(judge, shown), torch.cat([y, labels * 0 + fake]))
            critic.zero_grad()
            told.backward()
            if how.only_fakes:
                for name in taught:
                    _only(judge[name], fake)
            critic.step()
            totals[1] += float(told.detach())
        loss, apart = _told(
            how, discriminate(judge, shifted(made, how.jitter, draws)), made, labels, noise, samples, threshold, draws
        )
        learner.zero_grad()
        loss.backward()
        learner.step()
        totals[0] += float(loss.detach())
        totals[2] += float(apart)
    after = {name: leaf.detach() for name, leaf in judge.items()}
    state = {"net": {name: leaf.detach() for name, leaf in net.state_dict().items()}, "adam": learner.state_dict()}
    means = (totals / how.steps).tolist()
    return After(state, after, means[0], means[1], means[2])


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
    logits: Tensor,
    made: Tensor,
    labels: Tensor,
    noise: Tensor,
    samples: Samples,
    threshold: float,
    draws: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """The generator's loss (Equation 2 and what we add), and how far it is from samples of the same classes."""
    loss = cross_entropy(logits, labels)
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
    net.load_state_dict(kept["net"])
    labels = torch.arange(generator.classes).repeat_interleave(each)
    with torch.no_grad():
        made = net(generator.noise(len(labels), rng.torch()), labels)
    found: Tensor = made.unflatten(0, (generator.classes, each))
    return found


def likeness(generator: PictureGenerator, kept: Kept, samples: Samples, rng: Rng, each: int = 4) -> float:
    """The mean cosine of what it makes of a class with samples of that class; 0 where there are none of any."""
    made = imagine(generator, kept, each, rng)
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
