"""Paper 002's figures: which runs stand in each, and how results become rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from coterie.data.sources.acs_income import AcsIncome
from coterie.measure.reproduced import Estimate, Key, Row, Value
from coterie.recipes.base import files_of, of_seeds
from coterie.recipes.federated_kmeans import published
from coterie.recipes.federated_kmeans.published import NOTHING, Printed
from coterie.recipes.federated_kmeans.runs import costs, memberships, reconstructions
from coterie.recipes.federated_kmeans.runs.costs import AS_PUBLISHED, BASELINE, KFED, PRIVATE, PUBLIC, TUNED
from coterie.recipes.settings import Scale, Settings
from coterie.run.jobs import Job, Result

WITHOUT_NOISE = (KFED, PUBLIC)


def slug(*words: object) -> str:
    return "-".join(str(word).replace(" ", "_").replace(",", "").replace("'", "") for word in words)


def folder_and_files(data: str, settings: Settings) -> tuple[str | None, tuple[str, ...]]:
    """Only census data are read."""
    if data != "census":
        return None, ()
    return settings.folder, files_of(AcsIncome(), settings.data, "acsincome*")


# -- Figures 1 to 4: what privacy costs ------------------------------------------------------------------------------

MEASURES = {"cost": "cost", "accuracy": "accuracy, %", "excess": "above the optimum, %"}


def label(key: Key) -> str:
    at = "" if key["method"] in WITHOUT_NOISE else f", epsilon {key['epsilon']:g}"
    measured = f": {MEASURES[str(key['measure'])]}" if "measure" in key else ""
    return f"{key['level']} level, {key['method']}{at}{measured}"


@dataclass(frozen=True)
class Point:
    """One run a seed: a method at an epsilon, and what is printed of it."""

    method: str
    level: str
    epsilon: float
    printed: Printed = NOTHING

    @property
    def key(self) -> Key:
        return Key.of(level=self.level, method=self.method, epsilon=self.epsilon)


@dataclass(frozen=True)
class Figure:
    """Points on one kind of data."""

    data: str
    sizes: Mapping[str, tuple[int, int]]  # clients and points each, by level
    points: tuple[Point, ...]
    excess: bool = False  # show how far above the optimum, and nothing else

    def chosen(self, settings: Settings) -> list[Point]:
        return [point for point in self.points if settings.wants(label(point.key))]

    def jobs(self, settings: Settings) -> Sequence[Job]:
        folder, files = folder_and_files(self.data, settings)
        found = []
        for point in self.chosen(settings):
            clients, each = self.sizes[point.level]
            for seed in settings.seeds:
                arguments = {
                    "name": self.data,
                    "clients": clients,
                    "points": each,
                    "method": point.method,
                    "level": point.level,
                    "epsilon": point.epsilon,
                    "seed": seed,
                    "data": folder,
                }
                found.append(Job(self._key(point, seed), costs.clustering, arguments, files))
        return found

    def _key(self, point: Point, seed: int) -> str:
        return slug(self.data, point.level, point.method, point.epsilon, f"seed{seed}")

    def rows(self, settings: Settings, results: Mapping[str, Result]) -> Sequence[Row]:
        table: list[Row] = []
        for point in self.chosen(settings):
            found = of_seeds(results, settings.seeds, partial(self._key, point))
            if found:
                table += self._excess(point, found) if self.excess else self._costs(point, found)
        return table

    def _excess(self, point: Point, found: Mapping[int, Result]) -> list[Row]:
        above = {seed: 100 * (result["cost"] / result["optimum"] - 1) for seed, result in found.items()}
        key = point.key.but(measure="excess")
        return [Row(key, label(key), None, Estimate.over(above))]

    def _costs(self, point: Point, found: Mapping[int, Result]) -> list[Row]:
        cost, best = (
            Estimate.over({seed: result[name] for seed, result in found.items()}) for name in ("cost", "optimum")
        )
        said = f"{cost.value:.4f}; Lloyd without noise: {best.value:.4f}"
        if point.method == AS_PUBLISHED:
            proven = max(result["epsilon"] for result in found.values())
            said += f"; states epsilon {point.epsilon:.4g}, and its noise guarantees {proven:.3g}"
        note = "; ".join(filter(None, [said, point.printed.source]))
        key = point.key.but(measure="cost")
        rows = [Row(key, label(key), point.printed.cost, cost, {"Lloyd without noise": best}, note)]
        rows += self._excess(point, found)
        if all("accuracy" in result for result in found.values()):
            shares = Estimate.over({seed: 100 * result["accuracy"] for seed, result in found.items()}, 0.0, 100.0)
            key = point.key.but(measure="accuracy")
            rows.append(Row(key, label(key), point.printed.accuracy, shares, note=point.printed.source))
        return rows


GAUSSIAN_SIZES = {"record": (100, 1000), "client": (2000, 50)}
CENSUS_SIZES = {"record": (51, 0), "client": (1000, 0)}


def points(
    level: str,
    methods: Sequence[tuple[str, float]],
    printed: Mapping[tuple[str, float], Printed] | None = None,
) -> tuple[Point, ...]:
    known = printed or {}
    return tuple(Point(method, level, epsilon, known.get((method, epsilon), NOTHING)) for method, epsilon in methods)


def curve(*epsilons: float) -> list[tuple[str, float]]:
    return [(method, epsilon) for epsilon in epsilons for method in (PRIVATE, BASELINE)]


NO_NOISE = [(method, math.inf) for method in WITHOUT_NOISE]

FIGURE_1 = Figure(
    "gaussians",
    GAUSSIAN_SIZES,
    points("record", [*curve(0.5, 1.0, 2.5), (PRIVATE, 3.1326), (AS_PUBLISHED, 3.1326), *NO_NOISE], published.RECORD),
)
FIGURE_2 = Figure(
    "gaussians",
    GAUSSIAN_SIZES,
    points("client", [*curve(0.5, 1.0, 1.5, 2.5558), *NO_NOISE], published.CLIENT),
)
FIGURE_3 = Figure(
    "census",
    CENSUS_SIZES,
    points("record", [*curve(0.5, 1.0, 3.0), *NO_NOISE]) + points("client", [*curve(1.0, 3.0, 10.0), *NO_NOISE]),
)
FIGURE_4 = Figure(
    "gaussians",
    GAUSSIAN_SIZES,
    tuple(Point(PRIVATE, level, epsilon) for level in ("record", "client") for epsilon in (0.25, 0.5, 1.0, 2.0, 4.0)),
    excess=True,
)
TUNED_POINTS = [(TUNED, epsilon) for epsilon in (3.0, 1.0, 0.5)]
BEST = Figure(
    "gaussians",
    GAUSSIAN_SIZES,
    points("record", TUNED_POINTS, published.BEST_RECORD) + points("client", TUNED_POINTS, published.BEST_CLIENT),
)


# -- what epsilon 1 costs beside scikit-learn's k-means ---------------------------------------------------------------

MOST: Mapping[Value, float] = {
    costs.MIXTURES: 0.1,
    costs.SKEWED: 0.15,
    costs.STANDARD: 0.15,
    costs.AS_IT_IS: 0.15,
    costs.ONE_HOT: 0.15,
}
"""By how many percent it may be above."""


def excess_jobs(settings: Settings) -> Sequence[Job]:
    found = []
    for name in MOST:
        folder, files = folder_and_files("census" if name in costs.CENSUS else "", settings)
        if settings.wants(str(name)) and (folder is not None or name not in costs.CENSUS):
            found += [
                Job(_excess_key(name, seed), costs.excess, {"name": name, "seed": seed, "data": folder}, files)
                for seed in settings.seeds
            ]
    return found


def _excess_key(name: Value, seed: int) -> str:
    return slug(name, f"seed{seed}")


def excess_rows(settings: Settings, results: Mapping[str, Result]) -> Sequence[Row]:
    rows = []
    for name in MOST:
        found = of_seeds(results, settings.seeds, partial(_excess_key, name))
        for reference in costs.REFERENCES if found else ():
            above = {seed: 100 * (result["cost"] / result[reference] - 1) for seed, result in found.items()}
            key = Key.of(data=str(name), reference=reference)
            rows.append(Row(key, f"{name}: above {reference}, %", None, Estimate.over(above)))
    return rows


# -- Figures 5 to 7: reconstruction ----------------------------------------------------------------------------------

TRUSTED = "trusted aggregator"
WHY_TRUSTED = "the server is sent exact sums and adds the noise afterwards: it must be trusted"


@dataclass(frozen=True)
class Histogram:
    """Cosines under each trust model. The paper's "private" runs add noise to single messages: local noise."""

    data: str
    level: str
    clients: int
    points: int

    def jobs(self, settings: Settings) -> Sequence[Job]:
        trials = 50 if settings.scale is Scale.PAPER else 10
        folder, files = folder_and_files(self.data, settings)
        shared = {
            "name": self.data,
            "clients": self.clients,
            "points": self.points,
            "level": self.level,
            "epsilon": 1.0,
            "trials": trials,
            "data": folder,
        }
        return [
            Job(
                self._key(trust, seed), reconstructions.reconstructions, {**shared, "trust": trust, "seed": seed}, files
            )
            for trust in reconstructions.TRUSTS
            if settings.wants(trust)
            for seed in settings.seeds
        ]

    def _key(self, trust: str, seed: int) -> str:
        return slug(self.data, self.level, trust, f"seed{seed}")

    def rows(self, settings: Settings, results: Mapping[str, Result]) -> Sequence[Row]:
        table = []
        for trust in reconstructions.TRUSTS:
            found = of_seeds(results, settings.seeds, partial(self._key, trust))
            cosines = {
                reconstructions.seed_of_trial(seed, trial): float(cosine)
                for seed, result in found.items()
                for trial, cosine in enumerate(result["cosines"])
            }
            if cosines:
                ends = {"least": min(cosines.values()), "most": max(cosines.values())}
                note = f"{len(cosines)} trials" + (f"; {WHY_TRUSTED}" if trust == TRUSTED else "")
                values = {name: Estimate.exactly(end) for name, end in ends.items()}
                printed = published.COSINES.get(trust)
                table.append(Row(Key.of(trust=trust), trust, printed, Estimate.over(cosines), values, note))
        return table


# -- Section 5.3: membership ------------------------------------------------------------------------------------------

TESTS = {
    "cost": "the paper's cost test",
    "shadow": "shadow runs on the centres",
    "sums": "the optimal test on the sums",
}
CLAIMED = "claimed"


@dataclass(frozen=True)
class Release:
    """What is tested: whole runs, or one noisy sum, with all the noise that was promised or with part of it."""

    what: str
    epsilon: float
    noise: float
    label: str
    slug: str

    @property
    def key(self) -> Key:
        return Key.of(release=self.what, epsilon=self.epsilon, noise=self.noise)


WHOLE, SINGLE = "whole runs", "one release"
BARE = Release(WHOLE, math.inf, 0.0, "whole runs, no noise", "whole-no noise")
PRIVATE_RUNS = Release(WHOLE, 1.0, 1.0, "whole runs, epsilon 1", "whole-epsilon 1")
ONE = Release(SINGLE, 1.0, 1.0, "one release at epsilon 1", "one release at epsilon 1")
HALF = Release(
    SINGLE, 1.0, 0.5, "one release at epsilon 1 with half the noise", "one release at epsilon 1 with half the noise"
)


OUTER = Release(
    "outer products", 1.0, 1.0, "outer products as published, epsilon 1 stated", "outer products as published"
)

RELEASES = (BARE, PRIVATE_RUNS, ONE, HALF, OUTER)


def title(key: Key) -> str:
    """What is tested and how."""
    label = next(release.label for release in RELEASES if key.has(**release.key))
    return f"{label}, {TESTS[str(key['test'])]}"


def membership_jobs(settings: Settings) -> Sequence[Job]:
    many = settings.scale is Scale.PAPER
    counts = 4000 if many else 500
    trials = 40_000 if many else 10_000
    jobs = []
    for seed in settings.seeds:
        for whole, epsilon in ((BARE, None), (PRIVATE_RUNS, 1.0)):
            count = counts if epsilon else counts // 5  # without noise, a few show all there is
            arguments = {"epsilon": epsilon, "runs": count, "shadows": 200 if many else 100, "seed": seed}
            jobs.append(Job(_job_key(whole, seed), memberships.member_tests, arguments))
        for single in (ONE, HALF):
            audited = {"epsilon": 1.0, "part_of_the_noise": single.noise, "trials": trials, "seed": seed}
            jobs.append(Job(_job_key(single, seed), memberships.one_release, audited))
        jobs.append(
            Job(_job_key(OUTER, seed), memberships.published_outer_products, {"trials": trials // 4, "seed": seed})
        )
    return jobs


def _job_key(release: Release, seed: int) -> str:
    return slug(release.slug, f"seed{seed}")


def membership_rows(settings: Settings, results: Mapping[str, Result]) -> Sequence[Row]:
    rows: list[Row] = []
    for release in RELEASES:
        found = of_seeds(results, settings.seeds, partial(_job_key, release))
        for test in TESTS:
            scores = {seed: result[test] for seed, result in found.items() if test in result}
            if scores:
                rows += _tested(release, test, scores, next(iter(found.values()))["claim"])
    return rows


def _tested(release: Release, test: str, scores: Mapping[int, Result], claim: float) -> list[Row]:
    def over(measure: str) -> Estimate:
        known = {seed: score[measure] for seed, score in scores.items() if score[measure] is not None}
        return Estimate.over(known, 0.0, 1.0)

    rates = {"TPR at 1 % FPR": over("tpr at 1 %"), "at 0.1 %": over("tpr at 0.1 %")}
    seen = {name: rate for name, rate in rates.items() if not math.isnan(rate.value)}
    note = "" if len(seen) == len(rates) else "too few runs to see 0.1 %"
    key = release.key.but(test=test)
    words = title(key)
    area = Estimate.over({seed: score["auc"][0] for seed, score in scores.items()}, 0.0, 1.0)
    rows = [Row(key.but(measure="AUC"), f"{words}: AUC", None, area, seen, note)]
    if not math.isinf(claim):
        bound = Estimate.over({seed: score["epsilon"] for seed, score in scores.items()})
        values, note = {CLAIMED: Estimate.exactly(claim)}, "lower bound at 95 % confidence"
        rows.append(Row(key.but(measure="epsilon"), f"{words}: epsilon at least", None, bound, values, note))
    return rows
