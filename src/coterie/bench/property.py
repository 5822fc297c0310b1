"""What clipped gradients cost beside plain ones, and property inference beside the round that it watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.attacks.others import Behind
from coterie.attacks.property import Known, PassiveProperty, property_threat
from coterie.attacks.updates import Imitation, Observed, magnitudes
from coterie.bench.ratio import Ratio, interleaved
from coterie.bench.registry import Options
from coterie.bench.ring import Rounds, random_federation
from coterie.data.federation import Examples, Federation
from coterie.defences.dpsgd import DpSgd
from coterie.flow.turn import Roots, Step, Turn
from coterie.learn.models.bundled import Cnn, FaceCnn, Gru, fcnn
from coterie.learn.models.model import Batch, Model
from coterie.learn.params import stack
from coterie.learn.sgd import Local
from coterie.protocols.base import ModelTrainer
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.ifca import Ifca
from coterie.rng import Rng

BATCH = 32
CLUSTERS = 2
CLIENTS = 10  # of the federation whose round the attack is compared with
TIMES_PLAIN_DENSE, TIMES_PLAIN_CNN, TIMES_ROUND = 3.0, 1.5, 3.0


@dataclass(frozen=True)
class Shape:
    """A model, how many clients are computed together, and what one example looks like."""

    model: Model
    clients: int
    example: tuple[int, ...]
    tokens: int | None = None
    times_plain: float | None = None

    def batch(self, rng: Rng) -> Batch:
        draws = rng.child("batch").torch()
        shape = (self.clients, BATCH, *self.example)
        x = (
            torch.randint(self.tokens, shape, generator=draws)
            if self.tokens is not None
            else torch.randn(shape, generator=draws)
        )
        y = torch.randint(2, (self.clients, BATCH), generator=draws)
        weights = torch.full((self.clients, BATCH), 1 / BATCH)
        return Batch(
            x, y, weights, torch.full((self.clients,), float(BATCH)), torch.ones(self.clients, dtype=torch.bool)
        )


SHAPES: Mapping[str, Shape] = {
    "dense 784-200-10, 20 clients": Shape(fcnn(), 20, (784,), times_plain=TIMES_PLAIN_DENSE),
    "three convolutions, 48x48": Shape(FaceCnn(2), 1, (3, 48, 48), times_plain=TIMES_PLAIN_CNN),
    "three convolutions, 24x24": Shape(FaceCnn(2, (3, 24, 24)), 1, (3, 24, 24), times_plain=TIMES_PLAIN_CNN),
    "two convolutions, 28x28": Shape(Cnn(2), 1, (1, 28, 28)),
    "GRU, 50 words": Shape(Gru(2, 5000), 1, (50,), tokens=5000),
}


def per_example(options: Options, shapes: Mapping[str, Shape] = SHAPES) -> Iterator[Ratio]:
    for name, shape in shapes.items():
        yield from clipping(name, shape, options)


def clipping(name: str, shape: Shape, options: Options) -> Iterator[Ratio]:
    """Clipped gradients, and the whole private step with its noise, beside a plain gradient."""
    rng = Rng.seeded(options.seed).child(name)
    model, batch = shape.model, shape.batch(rng)
    params = stack([model.init(options.seed)] * shape.clients)
    guard = DpSgd(1.0, 1.0).client
    rates = torch.full((shape.clients,), 0.1)
    step = Step(torch.arange(shape.clients), 0, batch.divisors, rates, batch.active, True, Turn(0, Roots.same(rng)))
    times = interleaved(
        {
            "plain": lambda: model.gradients(params, batch),
            "clipped": lambda: model.gradients(params, batch, 1.0),
            "private": lambda: guard.gradients(model, params, batch, step),
        },
        options.repeats,
    )
    setup = f"a plain gradient of the same batch of {BATCH}"
    plain, bound = 1000 * times["plain"].best, None if shape.times_plain is None else 1 / shape.times_plain
    yield Ratio(f"clipped gradients: {name}", 1000 * times["clipped"].best, "ms", plain, bound, setup=setup)
    yield Ratio(f"clipped and noised: {name}", 1000 * times["private"].best, "ms", plain, setup=setup)


def attack_cost(options: Options, size: int = 24) -> Iterator[Ratio]:
    """One round's imagining and featurising, for all clusters, beside that round of ten clients."""
    rng = Rng.seeded(options.seed)
    model, local = FaceCnn(2, (3, size, size)), Local(steps=1, batch_size=BATCH)
    x = torch.randn(CLIENTS * 2 * BATCH, 3, size, size, generator=rng.child("x").torch())
    federation = random_federation(CLIENTS, 2 * BATCH, x, rng, classes=2)
    attack = PassiveProperty(Imitation(model, local), property_threat())
    known = Known(Examples(x, federation.examples.y, 2, "random"), len(x) // 2)
    start = model.init(0)
    observed, behind = Observed(0, 0, start, start), Behind(None, 0.0, (CLIENTS // 2, CLIENTS // 2))

    def one_cluster() -> Tensor:
        return magnitudes(attack.aggregated(attack.imagined(observed, known, rng), behind, rng))

    yield from beside_round("FL", FedAvg(rounds=1, local=local), federation, model, one_cluster, options)
    clustered = Ifca(rounds=1, local=local, clusters=CLUSTERS, candidates=0, choose_on=BATCH)
    yield from beside_round(f"CFL of {CLUSTERS} clusters", clustered, federation, model, one_cluster, options)


def beside_round(
    name: str,
    protocol: ModelTrainer,
    federation: Federation,
    model: Model,
    one_cluster: Callable[[], object],
    options: Options,
) -> Iterator[Ratio]:
    rounds = Rounds(protocol, federation, model, Rng.seeded(options.seed), processes=0)
    with closing(rounds):
        contenders: dict[str, Callable[[], object]] = {
            "round": rounds,
            "attack": lambda: [one_cluster() for _ in range(protocol.slots)],
        }
        times = interleaved(contenders, options.repeats)
    size = "x".join(map(str, federation.examples.x.shape[2:]))
    yield Ratio(
        f"property inference a round: {name}",
        1000 * times["attack"].best,
        "ms",
        1000 * times["round"].best,
        1 / TIMES_ROUND,
        setup=f"the federation's round: {federation.clients} clients, pictures of {size}, one process",
    )


def property_inference(options: Options) -> Iterator[Ratio]:
    yield from per_example(options)
    yield from attack_cost(options)
