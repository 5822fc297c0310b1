"""Tables III and V to VIII, Figures 4 to 9: what mingling costs in accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from coterie.data.sources.mnist import Mnist
from coterie.measure.reproduced import Estimate, Key, Row, Rows
from coterie.recipes.base import files_of, of_seeds
from coterie.recipes.mingledpie.published import (
    BASELINES,
    FIGURE_5,
    TABLE_3,
    TABLE_5,
    TABLE_6,
    TABLE_7,
    TABLE_8,
)
from coterie.recipes.mingledpie.runs.training import trained, undefended
from coterie.recipes.mingledpie.setups import EMBEDDED, SETUPS, WITH_THE_CNN, present, printed
from coterie.recipes.mingledpie.tables.entries import Entries, Entry, field_of, files_read, label, rows_of
from coterie.recipes.settings import Scale, Settings
from coterie.run.jobs import Arguments, Job, Result

SPLITS = ("homogeneous", "heterogeneous")
tested, on_training = field_of("accuracy"), field_of("training")
SIDES = {"training": on_training, "test": tested}


def names(settings: Settings) -> list[str]:
    return [name for name in SETUPS if present(name, settings.data) and name != WITH_THE_CNN]


def run_of(settings: Settings, name: str, method: str, split: str = "homogeneous", **changed: Any) -> dict[str, Any]:
    """The arguments of a run with the paper's defaults but for what is changed."""
    setup, paper = SETUPS[name], settings.scale is Scale.PAPER
    return {
        "name": name,
        "method": method,
        "split": split,
        "clusters": setup.clusters if split == "heterogeneous" else 5,
        "clients": 120 if paper and settings.data else setup.quick_clients,
        "rounds": settings.rounds or (setup.rounds if paper else setup.quick_rounds),
        "data": settings.folder,
        "rate": 0.5,
        "threshold": 2,
        "iid_rate": 0.0,
        "as_run": settings.as_published,
        **changed,
    }


def entry(
    settings: Settings,
    key: Key,
    published: float | None,
    arguments: Arguments,
    value: Callable[[Result], float] = tested,
    note: Callable[[Result], str] = lambda result: "",
) -> Entry:
    files = files_read(arguments["name"], settings.data)
    return Entry(key, published, trained, arguments, value, note, files=files)


def sizes(result: Result) -> str:
    if "failed" in result:
        return f"ended early: {result['failed']}"
    return "clients a model " + "/".join(map(str, result["sizes"]))


# -- Table III -------------------------------------------------------------------------------------------------------


def table_3(settings: Settings) -> Sequence[Entry]:
    """Quick: without FedEM, which takes as long as three of the others; Figure 4 has it."""
    methods = ("IFCA", "MingledPie", "exact", "FedProx", "FedEM")
    entries = []
    for name in names(settings):
        for method in methods if settings.scale is Scale.PAPER else methods[:-1]:
            published = TABLE_3.get((printed(name), method), (None, None))
            one_model = method in ("FedProx", "FedEM")
            for column, split in enumerate(SPLITS[:1] if one_model else SPLITS):
                key = Key.of(data=name, split=split, method=method)
                arguments = run_of(settings, name, method, split)
                entries.append(entry(settings, key, published[column], arguments, note=sizes))
    return entries


def baseline_key(settings: Settings, trainer: str, seed: int) -> str:
    return f"{'mnist' if settings.data else 'mnist5k'}/{trainer}-seed{seed}"


def baseline_jobs(settings: Settings) -> Sequence[Job]:
    """Trainers without a defence, on label sets of two digits."""
    data = settings.folder
    shared = {
        "rounds": 100 if settings.scale is Scale.PAPER or data else 50,
        "clients": 120 if data else 40,
        "data": data,
    }
    files = files_of(Mnist(), settings.data, "*-ubyte*", "mnist.npz")
    return [
        Job(baseline_key(settings, trainer, seed), undefended, {"trainer": trainer, "seed": seed, **shared}, files)
        for trainer in BASELINES
        if settings.wants(trainer)
        for seed in settings.seeds
    ]


def baseline_rows(settings: Settings, results: Mapping[str, Result]) -> Sequence[Row]:
    rows = []
    for trainer, published in BASELINES.items():
        found = of_seeds(results, settings.seeds, partial(baseline_key, settings, trainer))
        if found:
            ours = Estimate.over({seed: result["accuracy"] for seed, result in found.items()})
            shares = "; ".join("/".join(map(str, result["sizes"])) for result in found.values())
            rows.append(Row(Key.of(method=trainer), trainer, published, ours, note=f"clients a model {shares}"))
    return rows


# -- Tables V to VIII ------------------------------------------------------------------------------------------------

ABLATION = ("IFCA", "no rebuilding", "ideal matrix", "MingledPie")


def table_5(settings: Settings) -> Sequence[Entry]:
    entries = []
    for name in names(settings):
        for method in ABLATION:
            published = TABLE_5.get((printed(name), method), (None, None))
            arguments = run_of(settings, name, method)
            for (side, value), accuracy in zip(SIDES.items(), published, strict=True):
                key = Key.of(data=name, method=method, side=side)
                entries.append(entry(settings, key, accuracy, arguments, value, sizes))
    return entries


def table_6(settings: Settings) -> Sequence[Entry]:
    """Also Figure 9, where each cluster's curve ends. A cluster is known by the label set that it serves."""
    entries = []
    for model, name in (("ResNet-18", "CIFAR-100"), ("CNN", WITH_THE_CNN)):
        if present(name, settings.data):
            arguments = run_of(settings, name, "MingledPie")
            for cluster, published in enumerate(TABLE_6[model][:5]):
                key = Key.of(model=model, cluster=cluster)
                entries.append(entry(settings, key, published, arguments, in_cluster(cluster)))
            key = Key.of(model=model, over="mean")
            entries.append(entry(settings, key, TABLE_6[model][5], arguments, note=sizes))
    return entries


def in_cluster(cluster: int) -> Callable[[Result], float]:
    return lambda result: float(result["clusters"][cluster])


def table_7(settings: Settings) -> Sequence[Entry]:
    name = "Fashion-MNIST" if present("Fashion-MNIST", settings.data) else EMBEDDED
    if not present(name, settings.data):
        return []
    return [
        entry(
            settings,
            Key.of(data=name, iid_rate=rate, method=method),
            accuracy,
            run_of(settings, name, method, iid_rate=rate),
            note=sizes,
        )
        for rate, published in TABLE_7.items()
        for method, accuracy in zip(("MingledPie", "IFCA"), published, strict=True)
    ]


def table_8(settings: Settings) -> Sequence[Entry]:
    name = "MNIST" if present("MNIST", settings.data) else EMBEDDED
    if not present(name, settings.data):
        return []
    return [
        entry(
            settings,
            Key.of(data=name, newcomers_iid_rate=rate, side=side),
            accuracy,
            run_of(settings, name, "MingledPie", iid_rate=rate, newcomers=10),
            value,
            sizes,
        )
        for rate, published in TABLE_8.items()
        for (side, value), accuracy in zip(SIDES.items(), published, strict=True)
    ]


# -- Figures ---------------------------------------------------------------------------------------------------------


def at_round(position: int) -> Callable[[Result], float]:
    return lambda result: float(result["curve"][position][1])


def figure_4(settings: Settings) -> Sequence[Entry]:
    entries = []
    for name in names(settings):
        for method in ("MingledPie", "IFCA", "FedProx", "FedEM"):
            arguments = run_of(settings, name, method)
            every = max(1, arguments["rounds"] // 10)
            points = list(range(every, arguments["rounds"] + 1, every))
            for position, round in enumerate(points):
                published = TABLE_3.get((printed(name), method), (None,))[0] if round == points[-1] else None
                key = Key.of(data=name, method=method, round=round)
                entries.append(entry(settings, key, published, arguments, at_round(position)))
    return entries


def figure_5(settings: Settings) -> Sequence[Entry]:
    entries = []
    for name in names(settings):
        for split, k in (("homogeneous", 5), ("homogeneous", 10), ("heterogeneous", 5), ("heterogeneous", 8)):
            published = FIGURE_5.get((printed(name), split, k))
            arguments = run_of(settings, name, "MingledPie", split, clusters=k)
            entries.append(entry(settings, Key.of(data=name, split=split, k=k), published, arguments, note=sizes))
    return entries


Change = Callable[[Arguments], Arguments]
"""What is changed in a run, given the arguments of the usual one."""

DEFAULTS, CHANGED, DIFFERENCE = "defaults", "changed", "changed minus defaults"


def contrast(change: Change) -> Entries:
    """Figures 6 to 8: the runs with the paper's defaults, and those with one setting changed."""

    def entries(settings: Settings) -> Sequence[Entry]:
        found = []
        for name in names(settings):
            for split in SPLITS:
                usual = run_of(settings, name, "MingledPie", split)
                for run, arguments in ((DEFAULTS, usual), (CHANGED, {**usual, **change(usual)})):
                    found.append(entry(settings, Key.of(data=name, split=split, run=run), None, arguments, note=sizes))
        return found

    return entries


def with_differences(entries: Entries, published: Mapping[tuple[str, str], float]) -> Callable[..., Sequence[Row]]:
    """What the paper gives, without a sign: by how much the two runs of a seed differ."""

    def rows(settings: Settings, results: Mapping[str, Result]) -> Sequence[Row]:
        found = Rows.of(rows_of(entries)(settings, results))
        differences = []
        for changed, usual in found.pairs({"run": CHANGED}, {"run": DEFAULTS}):
            key = changed.key.but(run=DIFFERENCE)
            value = published.get((printed(str(key["data"])), str(key["split"])))
            differences.append(Row(key, label(key), value, changed.ours.minus(usual.ours)))
        return [*found, *differences]

    return rows
