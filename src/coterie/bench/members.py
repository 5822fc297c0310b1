"""LiRA and RMIA beside their own authors' code, on the same signals: FedAvg on Location-30.

Models come in pairs: one is trained on a random half of the records, the other on the other half. Each of the first few
is attacked with all others as rehearsals. What is compared is the area that an attack misses, 1 - AUC, and the members
that it misses at 1 % false alarms.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.attacks.shadows import METHODS, Asked, Rehearsed, confidences
from coterie.bench.ratio import Ratio
from coterie.bench.registry import Options
from coterie.data.federation import Examples, Federation, Shards
from coterie.data.sources.binary_features import Location30
from coterie.errors import InvalidInput
from coterie.flow.ring import AnyRing, Ring
from coterie.flow.together import run_together
from coterie.flow.turn import Roots
from coterie.learn.models.dense import Dense
from coterie.learn.sgd import Local
from coterie.measure.epsilon import Scores, auc, tpr_at
from coterie.protocols.fedavg import FedAvg
from coterie.rng import Rng

SCRIPT = Path(__file__).parent / "peers" / "membership_scores.py"
LEAST = 0.97  # of what the authors' code finds
HOW = "--location30 a folder with Location-30, --science-python a Python with matplotlib and scikit-learn, "


@dataclass(frozen=True)
class Work:
    models: int = 34
    targets: int = 4
    clients: int = 5
    rounds: int = 40
    population: int = 1000
    hidden: int = 64
    offline_a: float = 0.3  # Privacy Meter's, of their documentation


@dataclass(frozen=True)
class Trained:
    """(models, records) confidences and who was in; the population's confidences."""

    confidences: Tensor
    keep: Tensor
    population: Tensor

    def ours(self, target: int, method: str) -> NDArray[np.float64]:
        others = torch.arange(len(self.keep)) != target
        here = torch.cat([self.confidences, self.population], 1)
        inside = torch.cat([self.keep, torch.zeros_like(self.population, dtype=torch.bool)], 1)[others]
        looks = here[others]
        rehearsed = Rehearsed(looks.masked_fill(~inside, torch.nan), looks.masked_fill(inside, torch.nan))
        count, records = here.shape[1], self.confidences.shape[1]
        nothing = torch.zeros(count, dtype=torch.int64)
        asked = Asked(torch.arange(count), nothing, nothing, torch.arange(count) >= records)
        return METHODS[method](here[target], rehearsed, asked)[:records].double().numpy()


def trained(examples: Examples, work: Work, rng: Rng) -> Trained:
    order = torch.randperm(len(examples), generator=rng.child("order").torch())
    population, pool = order[: work.population], order[work.population :]
    model = Dense((examples.x[0].numel(), work.hidden, examples.classes))
    rings: list[AnyRing] = []
    keep = torch.zeros(work.models, len(pool), dtype=torch.bool)
    for pair in range(work.models // 2):
        coins = torch.randperm(len(pool), generator=rng.child("half", pair).torch()) < len(pool) // 2
        for number, inside in ((2 * pair, coins), (2 * pair + 1, ~coins)):
            keep[number] = inside
            rings.append(_ring(examples, pool[inside], model, work, rng.child("model", number)))
    states = run_together(rings)
    models = [ring.models(state) for ring, state in zip(rings, states, strict=True)]
    found = [[confidences(model, one, examples, rows)[:, 0] for one in models] for rows in (pool, population)]
    return Trained(torch.stack(found[0]), keep, torch.stack(found[1]))


def _ring(examples: Examples, rows: Tensor, model: Dense, work: Work, rng: Rng) -> AnyRing:
    mixed = rows[torch.randperm(len(rows), generator=rng.child("deal").torch())]
    parts = list(mixed.chunk(work.clients))
    train, nothing = Shards.of(parts), Shards.of([rows[:0]] * len(parts))
    federation = Federation(examples, train, nothing, groups=torch.zeros(len(parts), dtype=torch.int64))
    protocol = FedAvg(rounds=work.rounds, local=Local(epochs=1, batch_size=32, lr=0.1))
    return Ring(protocol, federation, model, roots=Roots.same(rng), processes=0)


def members(options: Options, work: Work | None = None) -> Iterator[Ratio]:
    work = work or Work()
    if options.location30 is None:
        yield Ratio("membership on Location-30", 1.0, "", None, LEAST, setup=f"not run: name {HOW}and both")
        return
    found = trained(Location30().load(options.location30), work, Rng.seeded(options.seed))
    theirs = _theirs(found, options, work)
    for method in METHODS:
        ours = [found.ours(target, method) for target in range(work.targets)]
        other = theirs.get(method)
        for name, missed in (("area missed", _area_missed), ("members missed at 1 % false alarms", _members_missed)):
            mine = missed(ours, found.keep)
            its = None if other is None else missed(other, found.keep)
            what = f"Location-30, {work.models} models, {method}: {name}"
            yield Ratio(what, mine, "", its, LEAST, setup=_setup(other))


def _setup(other: object) -> str:
    if other is None:
        return f"not run: name {HOW}--lira and --privacy-meter folders with their code"
    return "the authors' own code (LiRA with its global variance; RMIA offline as Privacy Meter has it), same signals"


def _pairs(scores: list[NDArray[np.float64]], keep: Tensor) -> list[Scores]:
    return [Scores(one[inside], one[~inside]) for one, inside in zip(scores, keep[: len(scores)].numpy(), strict=True)]


def _area_missed(scores: list[NDArray[np.float64]], keep: Tensor) -> float:
    return float(np.mean([1 - auc(one).estimate for one in _pairs(scores, keep)]))


def _members_missed(scores: list[NDArray[np.float64]], keep: Tensor) -> float:
    return float(np.mean([1 - tpr_at(one, 0.01).tpr.estimate for one in _pairs(scores, keep)]))


def _theirs(found: Trained, options: Options, work: Work) -> Mapping[str, list[NDArray[np.float64]]]:
    if options.science_python is None or not (options.lira or options.privacy_meter):
        return {}
    folders = [str(folder.resolve()) if folder else "-" for folder in (options.lira, options.privacy_meter)]
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "signals.npz"
        np.savez(
            path,
            confidences=found.confidences.double().numpy(),
            keep=found.keep.numpy(),
            population=found.population.double().numpy(),
            targets=np.arange(work.targets),
            offline_a=work.offline_a,
        )
        try:
            command = [str(options.science_python.absolute()), str(SCRIPT), str(path), *folders]
            subprocess.run(command, check=True, capture_output=True, text=True)
        except subprocess.CalledProcessError as error:
            last = (error.stderr.strip().splitlines() or ["no message"])[-1]
            raise InvalidInput(f"--science-python={options.science_python} failed ({last}); name {HOW}") from error
        with np.load(path.with_suffix(".scores.npz")) as scores:
            return {name: list(scores[name]) for name in scores.files}
