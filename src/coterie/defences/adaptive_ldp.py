"""Adaptive layer-wise noise on the client (paper 004, Section IV and Algorithm 3), and plain noise beside it.

**It carries no formal guarantee.** Nothing is clipped, so no noise covers what one client's data can change, whatever
epsilon is called; ``coterie.defences.clipped_ldp`` is the variant that has one. Besides, whether noise is added, and
how much, depends on the data through accuracy and similarity.

Where the paper is silent or contradicts itself:

- Equation 7 has three constants that are not given. Here they follow from a start and an end budget; ``pace`` is how
  many rounds the exponent takes to grow by one. As printed that is 1, and nearly all of the decay is in the last five
  rounds, which is not the smooth reduction that the text describes; the default is a quarter of the run.
- ``N(0, s_c / epsilon)`` is read as a deviation.
- Section IV-B puts stronger noise on deep layers, Section IV-C on early convolutions. ``layers`` decides; IV-B is the
  default.
- The local generator that tells the similarity is Algorithm 3's own, and it is the greater part of the cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

import torch
from torch import Tensor

from coterie.errors import InvalidInput, require, require_count
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard, Defence
from coterie.flow.protocol import AnyProtocol
from coterie.learn.generative.duel import Bout, Kept, Samples, fight, likeness, with_one_more_class
from coterie.learn.generative.generator import PictureGenerator
from coterie.learn.models.model import Model, outputs
from coterie.learn.params import Params
from coterie.privacy.guarantee import Guarantee, Level, RunFacts, Trust
from coterie.privacy.noise import DiscreteGaussian
from coterie.rng import Secrets
from coterie.wire.codec import Memory
from coterie.wire.messages import Contributions

UPLOADS = ("train", "place")  # requests that are answered with a model
LOOKED_AT = 256  # of a client's examples, at most, to see how well its model does
KEPT = "adaptive ldp"
FINE = DiscreteGaussian(3)  # of a deviation of 5e5 steps: what is added is a multiple of its grid
WHY = "noise on contributions that are not clipped covers nothing that is bounded, whatever its epsilon is called"


class Layers(Enum):
    """Which layers get the stronger noise."""

    DEEP = "deep"  # dense layers: Section IV-B
    EARLY = "early"  # convolutions: Section IV-C


@dataclass(frozen=True)
class Budget:
    """Equation 7 between two budgets: epsilon = start - (start - end) (e^(r / pace) - 1) / (e^((T - 1) / pace) - 1)."""

    start: float = 2.0
    end: float = 0.5
    rounds: int = 100
    pace: float | None = None

    def __post_init__(self) -> None:
        require(0 < self.end <= self.start, "end", self.end, f"must be positive, and at most start={self.start}")
        require(self.rounds >= 1, "rounds", self.rounds, "must be at least 1")
        require(self.pace is None or self.pace > 0, "pace", self.pace, "must be positive")

    def at(self, round: int) -> float:
        last = self.rounds - 1
        if last == 0:
            return self.start
        pace = self.pace or max(1.0, self.rounds / 4)
        gone = (min(round, last) - last) / pace  # in this form nothing overflows: e^((r - T + 1) / pace)
        part = (math.exp(gone) - math.exp(-last / pace)) / (1 - math.exp(-last / pace))
        return self.start - (self.start - self.end) * part


def strengths(leaves: Params, layers: Layers, lighter: float) -> dict[str, float]:
    """How strong each leaf's noise is: 1, or ``lighter``. Without convolutions, the first layer is the early one."""
    early, convolutional = {}, any(leaf.dim() > 2 for leaf in leaves.values())
    first = next(iter(leaves)).rpartition(".")[0]
    layer_is_early = False
    for name, leaf in leaves.items():
        if leaf.dim() > 1:
            layer_is_early = leaf.dim() > 2 if convolutional else name.rpartition(".")[0] == first
        early[name] = layer_is_early
    return {name: 1.0 if (layers is Layers.EARLY) == is_early else lighter for name, is_early in early.items()}


def unit_noise(values: Tensor, secrets: Secrets) -> Tensor:
    """As many numbers of deviation 1 as there are values, for them alone, from secrets by the one door."""
    return torch.from_numpy(FINE.draw(values.numel(), secrets.upon(values.numpy())) / FINE.sigma)


def noised(leaves: Params, deviations: Mapping[str, float], secrets: Secrets) -> dict[str, Tensor]:
    """One client's leaves with noise on those whose deviation is not 0."""
    return {
        name: leaf + (deviations[name] * unit_noise(leaf, secrets.child(name))).reshape(leaf.shape).to(leaf)
        if deviations[name]
        else leaf
        for name, leaf in leaves.items()
    }


@dataclass(frozen=True)
class AdaptiveNoise(ClientGuard):
    how: AdaptiveLdp

    @property
    def reveals(self) -> str:
        why = "whether it adds noise, and how much, which follow from accuracy and similarity on its raw data"
        return why if self.how.adds_noise else ""

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        how = self.how
        if cohort.turn.kind.name not in UPLOADS or not how.adds_noise:
            return sent
        epsilon = how.budget.at(cohort.turn.round)
        rows = []
        for position, client in enumerate(sent.ids.tolist()):
            leaves = {name: leaf[position] for name, leaf in sent.values.items()}
            memory = cohort.memory[position]
            kept = memory.get(KEPT, {"probability": how.probability, "sensitivity": how.sensitivity})
            kept = self.adapted(kept, {name: leaf[0] for name, leaf in leaves.items()}, cohort, position)
            memory[KEPT] = kept
            secrets = cohort.turn.secrets(client, KEPT)
            if bool(secrets.child("coin").coins(kept["probability"], 1)[0]):
                parts = strengths({name: leaf[0] for name, leaf in leaves.items()}, how.layers, how.lighter)
                deviation = kept["sensitivity"] / epsilon
                leaves = noised(leaves, {name: deviation * parts[name] for name in leaves}, secrets.child("noise"))
                cohort.turn.metrics.note("adaptive ldp/deviation", deviation)
            cohort.turn.metrics.note("adaptive ldp/similarity", kept["similarity"])
            rows.append(leaves)
        return replace(sent, values={name: torch.stack([row[name] for row in rows]) for name in sent.values})

    def adapted(self, kept: Memory, model: Params, cohort: Cohort, position: int) -> Memory:
        """Algorithm 3, lines 5 and 8 to 15."""
        how = self.how
        accuracy, similarity, generator = self.risk(kept.get("generator"), model, cohort, position)
        probability, sensitivity = kept["probability"], kept["sensitivity"]
        if similarity > how.similar and accuracy > how.accurate:
            probability, sensitivity = how.high, sensitivity + how.rise
        elif similarity > how.similar:
            probability, sensitivity = how.medium, max(0.0, sensitivity - how.fall)
        return {
            "probability": probability,
            "sensitivity": sensitivity,
            "similarity": similarity,
            "generator": generator,
        }

    def risk(self, kept: Kept | None, params: Params, cohort: Cohort, position: int) -> tuple[float, float, Kept]:
        """How well the model does at home, and how much like home its generator draws by it."""
        how, model = self.how, cohort.trained
        rows = cohort.round_shards[position]
        x, y = cohort.rows.x[rows], cohort.rows.classes_for("defence 'adaptive_ldp'")[rows]
        if not x.is_floating_point():
            raise InvalidInput(
                f"examples of type {x.dtype} cannot be drawn by a generator; this defence needs pictures"
            )
        rng = cohort.rng(int(cohort.ids[position]), KEPT)
        params = {name: leaf.detach() for name, leaf in params.items()}
        right = (model.logits(params, x[:LOOKED_AT]).argmax(1) == y[:LOOKED_AT]).float().mean()
        samples, generator = as_pictures(x, y), self.generator(x, cohort.rows.classes)
        start, fake = with_one_more_class(params)
        after = fight(
            how.bout,
            generator,
            kept,
            Discriminator(model, x.shape[1:]),
            start,
            samples,
            fake,
            math.inf,
            rng.child("risk"),
        )
        return float(right), likeness(generator, after.generator, samples, rng.child("likeness")), after.generator

    def generator(self, x: Tensor, classes: int) -> PictureGenerator:
        shape = x.shape[1:] if x.dim() == 4 else torch.Size((1, 1, x[0].numel()))
        low, high = float(x.min()), float(x.max())
        span = (low, max(high, low + 1e-6))
        return PictureGenerator(classes, (shape[0], shape[1], shape[2]), 16, self.how.width, span)


def as_pictures(x: Tensor, y: Tensor) -> Samples:
    """What are no pictures is drawn as one row of pixels."""
    return Samples(x if x.dim() == 4 else x.reshape(len(x), 1, 1, -1), y)


@dataclass(frozen=True)
class Discriminator:
    """The client's own model, for pictures however they are laid out."""

    model: Model
    shape: torch.Size

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        return outputs(self.model, params, x.reshape(len(x), *self.shape))


MOST_WIDTH = 1024


@dataclass(frozen=True)
class AdaptiveLdp(Defence):
    """``probability``, ``high`` and ``medium`` at 0 are neutral.

    ``accurate`` and ``similar`` are the thresholds theta_1 and theta_2, ``rise`` and ``fall`` the steps delta_1 and
    delta_2 of the sensitivity; none of their values is published.
    """

    budget: Budget = field(default_factory=Budget)
    sensitivity: float = 0.02
    probability: float = 0.5
    high: float = 0.9
    medium: float = 0.5
    accurate: float = 0.8
    similar: float = 0.4
    rise: float = 0.002
    fall: float = 0.002
    layers: Layers = Layers.DEEP
    lighter: float = 0.1
    bout: Bout = field(default_factory=lambda: Bout(5, 32, 1e-3, alpha=1.0, matching=0.0, strokes=0.0, smooth=0.0))
    width: int = 8  # of the local generator

    def __post_init__(self) -> None:
        for name in ("probability", "high", "medium"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "must lie in [0, 1]")
        for name in ("sensitivity", "rise", "fall", "lighter"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "must not be negative")
        require_count("width", self.width, 1, MOST_WIDTH)

    @property
    def adds_noise(self) -> bool:
        return max(self.probability, self.high, self.medium) > 0

    @property
    def client(self) -> ClientGuard:
        return AdaptiveNoise(self)

    def fits(self, protocol: AnyProtocol) -> str:
        return _sends_models(protocol)

    def guarantee(self, run: RunFacts) -> Guarantee:
        return Guarantee.none(WHY, Level.CLIENT, Trust.LOCAL_NOISE, stated=self.budget.end)


@dataclass(frozen=True)
class PlainNoise(ClientGuard):
    deviation: float

    @property
    def reveals(self) -> str:
        return ""

    @property
    def noises_uploads(self) -> bool:
        return True

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        if cohort.turn.kind.name not in UPLOADS or not self.deviation:
            return sent
        rows = []
        for position, client in enumerate(sent.ids.tolist()):
            leaves = {name: leaf[position] for name, leaf in sent.values.items()}
            secrets = cohort.turn.secrets(client, "plain ldp")
            rows.append(noised(leaves, dict.fromkeys(leaves, self.deviation), secrets))
        return replace(sent, values={name: torch.stack([row[name] for row in rows]) for name in sent.values})


@dataclass(frozen=True)
class PlainLdp(Defence):
    """The paper's baseline: the same noise on every layer in every round. It has no formal guarantee either.

    ``sensitivity=0`` is neutral.
    """

    epsilon: float = 1.0
    sensitivity: float = 0.02

    def __post_init__(self) -> None:
        require(self.epsilon > 0, "epsilon", self.epsilon, "must be positive; to switch noise off, pass sensitivity=0")
        require(self.sensitivity >= 0, "sensitivity", self.sensitivity, "must not be negative")

    @property
    def client(self) -> ClientGuard:
        return PlainNoise(self.sensitivity / self.epsilon)

    def fits(self, protocol: AnyProtocol) -> str:
        return _sends_models(protocol)

    def guarantee(self, run: RunFacts) -> Guarantee:
        return Guarantee.none(WHY, Level.CLIENT, Trust.LOCAL_NOISE, stated=self.epsilon)


def _sends_models(protocol: AnyProtocol) -> str:
    if not protocol.trains:
        return "clients train no model on whose layers noise could be put"
    return "clients send gradients, and this noise is for models" if getattr(protocol, "average_gradients", 0) else ""
