"""Tables III and V to VIII, Figures 4 to 9: what mingling costs in accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from coterie.measure.judge import t_interval
from coterie.measure.reproduced import Claim, Line
from coterie.recipes.base import Recipe, Scale, Settings
from coterie.recipes.mingledpie.published import (
    FIGURE_5,
    FIGURE_6,
    FIGURE_7,
    FIGURE_8,
    TABLE_3,
    TABLE_5,
    TABLE_6,
    TABLE_7,
    TABLE_8,
)
from coterie.recipes.mingledpie.tables import SHARED, Entries, Entry, jobs_of, lines_of, path_of
from coterie.recipes.mingledpie.work import SETUPS, present, trained
from coterie.run.jobs import Result

SPLITS = ("homogeneous", "heterogeneous")
NEEDS = "MNIST, Fashion-MNIST, ... (with --data; what is there is used); else 5,000 embedded digits, 40 clients"
DIFFERS = (
    "batches of 50 and homogeneous sets of consecutive classes, neither of which the paper gives; losses are compared "
    "on 50 examples; IFCA starts from models that clients have voted on; ciphertexts are CKKS's mock, which opens to "
    "the same bits; quick scale runs 30 rounds; for CIFAR-10 and Texas100 5 with 40 clients, for CIFAR-100 2 "
    "with 10, which shows that they run: at the paper's learning rate they need hundreds"
)


def names(settings: Settings) -> list[str]:
    return [name for name in SETUPS if present(name, settings.data) and name != "CIFAR-100 with the CNN"]


def run_of(settings: Settings, name: str, method: str, split: str = "homogeneous", **changed: Any) -> dict[str, Any]:
    """The arguments of a run with the paper's defaults but for what is changed."""
    setup, paper = SETUPS[name], settings.scale is Scale.PAPER
    return {
        "name": name,
        "method": method,
        "split": split,
        "clusters": setup.clusters if split == "heterogeneous" else 5,
        "clients": 120 if paper and settings.data else setup.quick_clients,
        "rounds": setup.rounds if paper else setup.quick_rounds,
        "data": path_of(settings),
        "rate": 0.5,
        "threshold": 2,
        "iid_rate": 0.0,
        **changed,
    }


def tested(result: Result) -> float:
    return float(result["accuracy"])


def on_training(result: Result) -> float:
    return float(result["training"])


def sizes(result: Result) -> str:
    if "failed" in result:
        return f"ended early: {result['failed']}"
    return "clients a model " + "/".join(map(str, result["sizes"]))


def printed(name: str) -> str:
    """The paper's name of a data set; the embedded digits stand for MNIST."""
    return name.split(",")[0]


# -- Table III -------------------------------------------------------------------------------------------------------


def table_3(settings: Settings) -> Sequence[Entry]:
    """Quick: without FedEM, which takes as long as three of the others; Figure 4 has it."""
    methods = ("IFCA", "MingledPie", "exact", "FedProx", "FedEM")
    entries = []
    for name in names(settings):
        for method in methods if settings.scale is Scale.PAPER else methods[:-1]:
            published = TABLE_3.get((printed(name), method))
            one_model = method in ("FedProx", "FedEM")
            for column, split in enumerate(SPLITS[:1] if one_model else SPLITS):
                arguments = run_of(settings, name, method, split)
                row = f"{name}, {split}, {method}"
                entries.append(Entry(row, published[column] if published else None, trained, arguments, tested, sizes))
    return entries


LEARNT = 60.0  # per cent; a client with two classes gets 50 by guessing


def table_3_claims(lines: Sequence[Line]) -> Sequence[Claim]:
    ours = {line.row: line.ours for line in lines}
    claims = []
    for name in SETUPS:
        for split in SPLITS:
            ifca, mingled, exact = (
                ours.get(f"{name}, {split}, {method}") for method in ("IFCA", "MingledPie", "exact")
            )
            if ifca is not None and mingled is not None and split == "homogeneous":
                text, evidence = (
                    f"{name}: mingling costs at most 0.5 points",
                    f"IFCA {ifca:.2f} %, mingled {mingled:.2f} %",
                )
                if ifca < LEARNT:
                    claims.append(Claim(text, None, f"{evidence}: neither has learnt enough in so few rounds"))
                else:
                    claims.append(Claim(text, ifca - mingled <= 0.5, evidence))
            if ifca is not None and exact is not None:
                text = f"{name}, {split}: exact mingling costs nothing (0.05 points for roundings on the way)"
                claims.append(Claim(text, abs(ifca - exact) <= 0.05, f"IFCA {ifca:.2f} %, exact {exact:.2f} %"))
        proximal, clustered = ours.get(f"{name}, homogeneous, FedProx"), ours.get(f"{name}, homogeneous, IFCA")
        if proximal is not None and clustered is not None:
            text = f"{name}: one model for each cluster is better than one for all"
            claims.append(Claim(text, clustered > proximal, f"{clustered:.2f} % against {proximal:.2f} %"))
    return claims


# -- Table V ---------------------------------------------------------------------------------------------------------

ABLATION = ("IFCA", "no rebuilding", "ideal matrix", "MingledPie")


def table_5(settings: Settings) -> Sequence[Entry]:
    entries = []
    for name in names(settings):
        for method in ABLATION:
            published = TABLE_5.get((printed(name), method))
            arguments = run_of(settings, name, method)
            for column, (what, value) in enumerate((("training", on_training), ("test", tested))):
                row = f"{name}, {method}, {what}"
                entries.append(Entry(row, published[column] if published else None, trained, arguments, value, sizes))
    return entries


def table_5_claims(lines: Sequence[Line]) -> Sequence[Claim]:
    ours = {line.row: line.ours for line in lines}
    claims = []
    for name in SETUPS:
        found = [ours.get(f"{name}, {method}, test") for method in ABLATION]
        ifca, bare, ideal, counted = found
        if ifca is None or bare is None or ideal is None or counted is None:
            continue
        values = ", ".join(f"{method} {value:.1f} %" for method, value in zip(ABLATION, found))
        fails = max(bare, ideal) < counted - 5
        text = f"{name}: no rebuilding and the ideal matrix fail, the counted matrix works"
        claims.append(Claim(text, fails and ifca - counted <= 1, values))
    return claims


# -- Tables VI, VII, VIII --------------------------------------------------------------------------------------------


def table_6(settings: Settings) -> Sequence[Entry]:
    entries = []
    for model, name in (("ResNet-18", "CIFAR-100"), ("CNN", "CIFAR-100 with the CNN")):
        if present(name, settings.data):
            arguments = run_of(settings, name, "MingledPie")
            for cluster, published in enumerate(TABLE_6[model][:5]):
                entries.append(Entry(f"{model}, cluster {cluster}", published, trained, arguments, in_cluster(cluster)))
            entries.append(Entry(f"{model}, mean", TABLE_6[model][5], trained, arguments, tested, sizes))
    return entries


def in_cluster(cluster: int) -> Callable[[Result], float]:
    return lambda result: float(result["clusters"][cluster])


def table_7(settings: Settings) -> Sequence[Entry]:
    name = "Fashion-MNIST" if present("Fashion-MNIST", settings.data) else "MNIST, 5,000 embedded"
    if not present(name, settings.data):
        return []
    return [
        Entry(
            f"{name}, IID rate {rate:.0%}, {method}",
            TABLE_7[rate][column],
            trained,
            run_of(settings, name, method, iid_rate=rate),
            tested,
            sizes,
        )
        for rate in TABLE_7
        for column, method in enumerate(("MingledPie", "IFCA"))
    ]


def table_8(settings: Settings) -> Sequence[Entry]:
    name = "MNIST" if present("MNIST", settings.data) else "MNIST, 5,000 embedded"
    if not present(name, settings.data):
        return []
    return [
        Entry(
            f"{name}, newcomers' IID rate {rate:.0%}, {what}",
            TABLE_8[rate][column],
            trained,
            run_of(settings, name, "MingledPie", iid_rate=rate, newcomers=10),
            value,
            sizes,
        )
        for rate in TABLE_8
        for column, (what, value) in enumerate((("training", on_training), ("test", tested)))
    ]


# -- Figures ---------------------------------------------------------------------------------------------------------


def at_round(position: int) -> Callable[[Result], float]:
    return lambda result: float(result["curve"][position][1])


def figure_4(settings: Settings) -> Sequence[Entry]:
    """Ten points of each curve; a round's number depends on the scale."""
    entries = []
    for name in names(settings):
        for method in ("MingledPie", "IFCA", "FedProx", "FedEM"):
            arguments = run_of(settings, name, method)
            every = max(1, arguments["rounds"] // 10)
            points = list(range(every, arguments["rounds"] + 1, every))
            for position, round in enumerate(points):
                published = TABLE_3.get((printed(name), method), (None,))[0] if round == points[-1] else None
                row = f"{name}, {method}, round {round}"
                entries.append(Entry(row, published, trained, arguments, at_round(position)))
    return entries


def figure_5(settings: Settings) -> Sequence[Entry]:
    entries = []
    for name in names(settings):
        for split, clusters in (("homogeneous", 5), ("homogeneous", 10), ("heterogeneous", 5), ("heterogeneous", 8)):
            published = FIGURE_5.get((printed(name), split, clusters))
            arguments = run_of(settings, name, "MingledPie", split, clusters=clusters)
            entries.append(Entry(f"{name}, {split}, k={clusters}", published, trained, arguments, tested, sizes))
    return entries


def figure_9(settings: Settings) -> Sequence[Entry]:
    """Each cluster at the end of its curve, on CIFAR-100 with both models: Table VI's values."""
    return table_6(settings)


def contrast(published: Mapping[tuple[str, str], float], **changed: Any) -> Entries:
    """The runs with the paper's defaults, and those with one setting changed."""

    def entries(settings: Settings) -> Iterator[Entry]:
        for name in names(settings):
            for split in SPLITS:
                usual = run_of(settings, name, "MingledPie", split)
                other = {key: value(usual) if callable(value) else value for key, value in changed.items()}
                for label, arguments in (("defaults", usual), ("changed", {**usual, **other})):
                    yield Entry(f"{name}, {split}, {label}", None, trained, arguments, tested, sizes)

    return lambda settings: list(entries(settings))


def with_differences(entries: Entries, published: Mapping[tuple[str, str], float]) -> Callable[..., Sequence[Line]]:
    """What the paper gives, without a sign: by how much the two runs of a seed differ."""

    def lines(settings: Settings, results: Mapping[str, Result]) -> Sequence[Line]:
        found = list(lines_of(entries)(settings, results))
        runs = {entry.row: entry for entry in entries(settings) if settings.wants(entry.row)}
        for name in names(settings):
            for split in SPLITS:
                usual, other = (runs.get(f"{name}, {split}, {label}") for label in ("defaults", "changed"))
                if usual is not None and other is not None:
                    apart = [tested(results[other.key(s)]) - tested(results[usual.key(s)]) for s in settings.seeds]
                    row, printed_ = f"{name}, {split}, changed minus defaults", published.get((printed(name), split))
                    found.append(Line(row, printed_, sum(apart) / len(apart), *t_interval(apart)))
        return found

    return lines


def _recipe(table: str, title: str, entries: Entries, **more: Any) -> Recipe:
    defaults = {"needs": NEEDS, "differs": DIFFERS, "unit": "%", "lines": lines_of(entries)}
    return Recipe("mingledpie", table, title, jobs_of(entries), shares=SHARED, **{**defaults, **more})


def _contrast(table: str, title: str, published: Mapping[tuple[str, str], float], **changed: Any) -> Recipe:
    entries = contrast(published, **changed)
    return _recipe(table, title, entries, lines=with_differences(entries, published))


CIFAR_100 = "CIFAR-100 (with --data)"

RECIPES = (
    _recipe("III", "Mean test accuracy, p=0.5, T=2, k=5, N=120", table_3, claims=table_3_claims),
    _recipe("V", "What rebuilding does", table_5, claims=table_5_claims),
    _recipe("VI", "Each cluster's accuracy on CIFAR-100", table_6, needs=CIFAR_100),
    _recipe("VII", "Clients that are less alike", table_7, needs="Fashion-MNIST (with --data), or embedded digits"),
    _recipe("VIII", "Ten clients join every ten rounds", table_8, needs="MNIST (with --data), or embedded digits"),
    _recipe("Fig 4", "How accuracy grows", figure_4),
    _recipe("Fig 5", "More clusters", figure_5),
    _contrast("Fig 6", "Twice the clients", FIGURE_6, clients=lambda usual: 2 * usual["clients"]),
    _contrast("Fig 7", "p = 0.25", FIGURE_7, rate=0.25),
    _contrast("Fig 8", "T = 3", FIGURE_8, threshold=3),
    _recipe("Fig 9", "Each cluster's accuracy on CIFAR-100, by model", figure_9, needs=CIFAR_100),
)
