"""Paper 003's tables and figures, and our own: which runs stand in each, and how results become rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from coterie.attacks.distance_geometry import Seen
from coterie.data.sources.acs_income import AcsIncome
from coterie.measure.reproduced import Estimate, Key, Row
from coterie.recipes.base import files_of, of_seeds
from coterie.recipes.settings import Scale, Settings
from coterie.recipes.vertical_kmeans import published, runs, successive, tampering
from coterie.recipes.vertical_kmeans.runs import BLINDED, CKKS, DISCRETISED, GRID, MASKED, NONE, ONCE, PROVEN
from coterie.run.jobs import Job, Result

SETS = ("forge", "wave", "mnist", *runs.UCI)
PER_VALUE = ("gap_rr", "generalised", "ordered", "piecewise", "square_wave", "laplace")


def slug(key: Key) -> str:
    return "-".join(f"{name}={value}" for name, value in key.items()).replace(" ", "_").replace("'", "")


def _name(key: Key, seed: int) -> str:
    return f"{slug(key)}-seed{seed}"


@dataclass(frozen=True)
class Sheet:
    """A table whose every row is one job a seed; ``shown`` is the figure of its result that is the row's value."""

    keys: Callable[[Settings], Sequence[Key]]
    work: Callable[..., Result]
    arguments: Callable[[Key], Mapping[str, object]]
    shown: str
    printed: Callable[[Key], float | None] = lambda key: None
    also: tuple[str, ...] = ()

    def chosen(self, settings: Settings) -> list[Key]:
        return [key for key in self.keys(settings) if settings.wants(label(key)) and _there(key, settings)]

    def jobs(self, settings: Settings) -> Sequence[Job]:
        found = []
        for key in self.chosen(settings):
            census = key["data"] == "acs_income"
            files = files_of(AcsIncome(), settings.data, "acsincome*") if census else ()
            for seed in settings.seeds:
                arguments = {**self.arguments(key), "seed": seed, "data": settings.folder if census else None}
                found.append(Job(_name(key, seed), self.work, arguments, files))
        return found

    def rows(self, settings: Settings, results: Mapping[str, Result]) -> Sequence[Row]:
        table = []
        for key in self.chosen(settings):
            found = of_seeds(results, settings.seeds, partial(_name, key))
            if found:
                ours = Estimate.over({seed: result[self.shown] for seed, result in found.items()})
                also = {
                    name: Estimate.over(
                        {seed: result[name] for seed, result in found.items() if result[name] is not None}
                    )
                    for name in self.also
                }
                note = "; ".join(f"{name} {value.value:.4g}" for name, value in also.items())
                table.append(Row(key, label(key), self.printed(key), ours, also, note))
        return table


def _there(key: Key, settings: Settings) -> bool:
    return key["data"] != "acs_income" or settings.data is not None


FORMS = {
    "levels": ", Q {}",
    "ratio": ", ratio {}",
    "epsilon": ", epsilon {}",
    "total": ", total {:g}",
    "known": ", {} known",
    "strength": ", strength {}",
}


def label(key: Key) -> str:
    return key.words(FORMS)


# -- Table 1, Figures 5 and 6 --------------------------------------------------------------------------------------


def _table_1(settings: Settings) -> list[Key]:
    found = []
    for name in SETS:
        for setting in published.SETTINGS:
            if setting is None:
                found.append(Key.of(data=name, mechanism=NONE))
            else:
                found.append(Key.of(data=name, mechanism="gap_rr", ratio=setting[0], epsilon=setting[1]))
    return found


def _printed_1(key: Key) -> float | None:
    setting = (float(key["ratio"]), float(key["epsilon"])) if "ratio" in key else None
    return published.TABLE_1.get(str(key["data"]), {}).get(setting)


def _figure_5(settings: Settings) -> list[Key]:
    counts = (5, 15, 30, 50) if settings.scale is Scale.QUICK else tuple(range(5, 51, 5))
    found = []
    for name in SETS:
        found.append(Key.of(data=name, mechanism=NONE))
        for levels in counts:
            found.append(Key.of(data=name, mechanism=DISCRETISED, levels=levels))
            found.append(Key.of(data=name, mechanism="gap_rr", levels=levels, ratio=0.5, epsilon=0.5))
    return found


def _figure_6(settings: Settings) -> list[Key]:
    quick = settings.scale is Scale.QUICK
    epsilons = (0.1, 0.5, 1.0) if quick else tuple(step / 10 for step in range(1, 11))
    ratios = (0.2, 0.6, 1.0) if quick else (0.2, 0.4, 0.6, 0.8, 1.0)
    found = []
    for name in SETS:
        found.append(Key.of(data=name, mechanism=DISCRETISED, levels=runs.GAP_LEVELS))
        found += [
            Key.of(data=name, mechanism="gap_rr", levels=runs.GAP_LEVELS, ratio=ratio, epsilon=epsilon)
            for ratio in ratios
            for epsilon in epsilons
        ]
    return found


def _of_utility(key: Key) -> Mapping[str, object]:
    return {
        "name": key["data"],
        "mechanism": key["mechanism"],
        "epsilon": key.get("epsilon", 1.0),
        "levels": key.get("levels", runs.GAP_LEVELS),
        "ratio": key.get("ratio", 0.5),
    }


def _of_table_1(key: Key) -> Mapping[str, object]:
    return {**_of_utility(key), "known": runs.KNOWN}


TABLE_1 = Sheet(_table_1, runs.utility, _of_table_1, "f", _printed_1, ("recovery",))
FIGURE_5 = Sheet(_figure_5, runs.utility, _of_utility, "f")
FIGURE_6 = Sheet(_figure_6, runs.utility, _of_utility, "f")

# -- F against what is paid in all ---------------------------------------------------------------------------------

STEPS = 5


def _totals(settings: Settings) -> list[Key]:
    totals = (20.0, 60.0, 240.0) if settings.scale is Scale.QUICK else (5.0, 20.0, 60.0, 120.0, 240.0, 480.0)
    found = [Key.of(data=name, mechanism=NONE) for name in runs.UCI]
    for name in runs.UCI:
        for total in totals:
            found += [Key.of(data=name, mechanism=mechanism, total=total) for mechanism in (*PER_VALUE, ONCE, GRID)]
    return found


def _of_total(key: Key) -> Mapping[str, object]:
    sizes = {"steps": STEPS, "parties": 2, "records": 600}
    return {"name": key["data"], "mechanism": key["mechanism"], "total": key.get("total", 60.0), **sizes}


TOTALS = Sheet(_totals, runs.at_total, _of_total, "f", also=("recovery", "total"))

# -- what the server reads -----------------------------------------------------------------------------------------

VIEWS: tuple[tuple[str, str], ...] = (
    (Seen.PARTY.value, NONE),
    (Seen.TOTALS.value, MASKED),
    (Seen.SHAPES.value, BLINDED),
    (Seen.ASSIGNMENTS.value, NONE),
    (Seen.LAST.value, NONE),
)
PLACES = {"acs_income": (10, 4, 2000), "digits": (64, 4, 1297)}  # columns, parties, records; others are left over


def _recovery(settings: Settings) -> list[Key]:
    found = []
    for name, (columns, _, _) in PLACES.items():
        for seen, under in VIEWS:
            none = (0,) if seen in (Seen.PARTY.value, Seen.TOTALS.value) else ()  # the others say nothing of rotations
            counts = sorted({*none, columns // 2, columns + 1, columns + 3, 20, 40, 1000})
            found += [Key.of(data=name, seen=seen, mechanism=under, known=count) for count in counts]
        found += [
            Key.of(data=name, seen=Seen.TOTALS.value, mechanism=under, known=count)
            for under in (CKKS, PROVEN)
            for count in (columns + 3, 40)
        ]
    return found


def _of_recovery(key: Key) -> Mapping[str, object]:
    _, parties, records = PLACES[str(key["data"])]
    sizes = {"clusters": 10, "steps": 20, "parties": parties, "records": records}
    return {"name": key["data"], "seen": key["seen"], "known": key["known"], "mechanism": key["mechanism"], **sizes}


RECOVERY = Sheet(
    _recovery,
    runs.recovery,
    _of_recovery,
    "mean",
    also=("least", "told", "undecided", "rank", "columns", "median", "control"),
)

NOISY: tuple[tuple[str, float, bool], ...] = (
    (NONE, 1.0, False),
    ("gap_rr", 1.0, False),
    ("gap_rr", 1.0, True),
    *((mechanism, epsilon, False) for mechanism in PER_VALUE[1:] for epsilon in (1.0, 4.0)),
    (ONCE, 1.0, False),
    (ONCE, 4.0, False),
)


def _under_noise(settings: Settings) -> list[Key]:
    return [
        Key.of(data=name, mechanism=mechanism, epsilon=epsilon, memoised=memoised)
        for name in runs.UCI
        for mechanism, epsilon, memoised in NOISY
    ]


def _of_noise(key: Key) -> Mapping[str, object]:
    fixed = {"seen": Seen.TOTALS.value, "known": 60, "clusters": 3, "steps": 10, "parties": 2, "records": 600}
    chosen = {"mechanism": key["mechanism"], "epsilon": key["epsilon"], "memoised": key["memoised"]}
    return {"name": key["data"], **chosen, **fixed}


UNDER_NOISE = Sheet(_under_noise, runs.recovery, _of_noise, "mean", also=("least", "rank", "control"))

# -- records that moved ----------------------------------------------------------------------------------------------


def _successive(settings: Settings) -> list[Key]:
    views = (successive.OPEN, successive.SUMS, successive.SHOWN_CENTRES)
    return [Key.of(data=name, seen=seen) for name in ("acs_income", "breast_cancer", "digits") for seen in views]


SUCCESSIVE = Sheet(
    _successive,
    successive.successive,
    lambda key: {"name": key["data"], "seen": key["seen"]},
    "read",
    also=("records", "claimed", "right"),
)

# -- Table 2 -------------------------------------------------------------------------------------------------------

WATCHED, USUAL = "breast_cancer", 0.5  # a set of the UCI's, and the strength of attacks beside the paper's values


MILDEST = {"impersonation": (0.004, 0.02)}  # parts of all rows: 0.004 is two of 569


def _recognition(settings: Settings) -> list[Key]:
    def strengths(attack: str) -> tuple[float, ...]:
        mild = (0.05,) if settings.scale is Scale.QUICK else (*MILDEST.get(attack, (1e-6, 1e-4)), 0.05, 0.2)
        return (*mild, USUAL, 1.0)

    return [
        Key.of(data=WATCHED, attack=attack, model=model, strength=strength)
        for attack in tampering.ACTIVE
        for model in tampering.MODELS
        for strength in strengths(attack)
        if model != "HE" or attack == "collusion"  # masked words on a link are nothing to steer by
    ]


def _printed_f(key: Key) -> float | None:
    row = published.TABLE_2.get((str(key["attack"]), str(key["model"])))
    return row[3] if row is not None and key["strength"] == USUAL else None


def _of_attack(key: Key) -> Mapping[str, object]:
    return {"name": key["data"], "attack": key["attack"], "model": key["model"], "strength": key["strength"]}


def _protection(settings: Settings) -> list[Key]:
    attacks = (*tampering.PASSIVE, *tampering.ACTIVE)
    return [Key.of(data=WATCHED, attack=attack, model=model) for attack in attacks for model in tampering.MODELS]


def _printed_effect(key: Key) -> float | None:
    row = published.TABLE_2.get((str(key["attack"]), str(key["model"])))
    return None if row is None else row[1] / 100


def _of_protection(key: Key) -> Mapping[str, object]:
    return {"name": key["data"], "attack": key["attack"], "model": key["model"]}


RECOGNITION = Sheet(
    _recognition, tampering.active, _of_attack, "f", _printed_f, ("recall", "precision", "recognised", "kind", "false")
)
PROTECTION = Sheet(_protection, tampering.protected, _of_protection, "effect", _printed_effect, ("gain", "false"))
