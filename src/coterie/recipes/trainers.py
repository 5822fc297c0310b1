"""The undefended trainers of MingledPie's Table III on MNIST, homogeneous clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.measure.judge import t_interval
from coterie.measure.reproduced import Claim, Line
from coterie.recipes.base import Recipe, Scale, Settings
from coterie.run.jobs import Job, Result

PUBLISHED = {"IFCA": 97.49, "FedProx": 81.11, "FedEM": 87.14, "FedAvg": None}
LABEL_SETS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))


def accuracy(trainer: str, rounds: int, clients: int, seed: int, data: str | None) -> Result:
    """Mean test accuracy in percent; label sets of two digits, learning rate 0.01, 5 local steps of 50."""
    import coterie
    from coterie.data.sources.embedded import Mnist5k
    from coterie.data.sources.mnist import Mnist

    examples = Mnist().load(data) if data else Mnist5k().load()
    split = coterie.LabelSets(clients=clients, sets=LABEL_SETS)
    federation = split.split(examples, coterie.Rng.seeded(seed).child("partition"))
    local = coterie.Local(steps=5, batch_size=50, lr=0.01)
    protocols: dict[str, Any] = {
        "IFCA": coterie.Ifca(clusters=5, rounds=rounds, local=local, choose_on=50),
        "FedProx": coterie.FedProx(rounds=rounds, local=local),
        "FedEM": coterie.FedEM(components=3, rounds=rounds, local=local),
        "FedAvg": coterie.FedAvg(rounds=rounds, local=local),
    }
    outcome = coterie.train(protocols[trainer], federation, coterie.fcnn(), seed=seed, evaluate_every=rounds)
    return {"accuracy": 100 * outcome.accuracy, "sizes": outcome.cluster_sizes}


def jobs(settings: Settings) -> Sequence[Job]:
    data = str(settings.data.resolve()) if settings.data else None
    clients = 120 if data else 40
    rounds = 100 if settings.scale is Scale.PAPER or data else 50
    return [
        Job(
            f"{'mnist' if data else 'mnist5k'}/{trainer}-seed{seed}",
            accuracy,
            {"trainer": trainer, "rounds": rounds, "clients": clients, "seed": seed, "data": data},
        )
        for trainer in PUBLISHED
        if settings.wants(trainer)
        for seed in settings.seeds
    ]


def lines(settings: Settings, results: Mapping[str, Result]) -> Sequence[Line]:
    rows = []
    for trainer, published in PUBLISHED.items():
        found = [result for key, result in results.items() if Path(key).name.startswith(f"{trainer}-")]
        if found:
            values = [result["accuracy"] for result in found]
            sizes = "; ".join("/".join(map(str, result["sizes"])) for result in found)
            rows.append(
                Line(trainer, published, sum(values) / len(values), *t_interval(values), f"clients a model {sizes}")
            )
    return rows


def claims(rows: Sequence[Line]) -> Sequence[Claim]:
    ours = {line.row: line for line in rows}
    if not {"IFCA", "FedProx", "FedAvg"} <= ours.keys():
        return ()
    best = max(ours["FedProx"].ours, ours["FedAvg"].ours)
    return [
        Claim(
            "one model for each cluster is far better than one for all",
            ours["IFCA"].ours > best + 5,
            f"IFCA {ours['IFCA'].ours:.2f} %, the better of FedAvg and FedProx {best:.2f} %",
        ),
        Claim("IFCA reaches 97 %", ours["IFCA"].ours >= 97, f"{ours['IFCA'].ours:.2f} %"),
    ]


RECIPES = (
    Recipe(
        paper="mingledpie",
        table="III baselines",
        title="Mean test accuracy of the undefended trainers on MNIST, homogeneous clusters",
        jobs=jobs,
        lines=lines,
        claims=claims,
        needs="MNIST (with --data); without it 5,000 embedded digits, 40 clients and 50 rounds",
        differs="FedEM is Marfoq et al.'s, with three components; the paper's cites another method of that name",
        unit="%",
    ),
)
