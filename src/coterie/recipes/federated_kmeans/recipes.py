"""Paper 002, Figures 1 to 7: what privacy costs in federated k-means, and what attacks on it find.

The figures' points are not printed in the paper; published values are those that its text or the public code's own runs
give. Accuracy is the share of points in the majority of their cluster, as the public code counts it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from coterie.measure.reproduced import Claim, Line
from coterie.recipes.base import Recipe, Scale, Settings
from coterie.recipes.federated_kmeans import runs
from coterie.recipes.federated_kmeans.costs import (
    BEST,
    FIGURE_1,
    FIGURE_2,
    FIGURE_3,
    FIGURE_4,
    Figure,
    crossing_claims,
    data_folder,
    line_of,
    reference_claims,
    slug,
)
from coterie.run.jobs import Job, Result

PAPER = "federated_kmeans"
WHY_TRUSTED = "the server is sent exact sums and adds the noise afterwards: it must be trusted"


# -- Figures 5 to 7 --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Histogram:
    """Cosines under each trust model. The paper's "private" runs add noise to single messages: local noise."""

    data: str
    level: str
    clients: int
    points: int

    def jobs(self, settings: Settings) -> Sequence[Job]:
        trials = 50 if settings.scale is Scale.PAPER else 10
        return [
            Job(
                self._key(trust, seed),
                runs.reconstructions,
                {
                    "name": self.data,
                    "clients": self.clients,
                    "points": self.points,
                    "level": self.level,
                    "trust": trust,
                    "epsilon": 1.0,
                    "trials": trials,
                    "seed": seed,
                    "data": data_folder(settings) if self.data == "census" else None,
                },
            )
            for trust in runs.TRUSTS
            if settings.wants(trust)
            for seed in settings.seeds
        ]

    def _key(self, trust: str, seed: int) -> str:
        return slug(self.data, self.level, trust, f"seed{seed}")

    def lines(self, settings: Settings, results: Mapping[str, Result]) -> Sequence[Line]:
        rows = []
        for trust in runs.TRUSTS:
            found = [results[key] for seed in settings.seeds if (key := self._key(trust, seed)) in results]
            cosines = [cosine for result in found for cosine in result["cosines"]]
            if cosines:
                low, high = min(cosines), max(cosines)
                note = f"{len(cosines)} trials, from {low:.3f} to {high:.3f}"
                note += f"; {WHY_TRUSTED}" if trust == "trusted aggregator" else ""
                rows.append(line_of(trust, {"no noise": 1.0, "local noise": 0.0}.get(trust), cosines, note))
        return rows


def _reconstruction_claims(lines: Sequence[Line]) -> Sequence[Claim]:
    found = {line.row: line for line in lines}
    claims = []
    for row in ("no noise", "trusted aggregator"):
        if row in found:
            ours = found[row].ours
            claims.append(Claim(f"{row}: a curious server rebuilds its target", ours > 0.99, f"mean cosine {ours:.4f}"))
    for row in ("distributed noise", "local noise"):
        if row in found:
            line = found[row]
            inside = line.low <= 0 <= line.high
            text = f"{row} at epsilon 1: what is rebuilt has nothing of the target"
            claims.append(Claim(text, inside, f"mean cosine {line.ours:.4f} [{line.low:.4f}, {line.high:.4f}]"))
    return claims


# -- Section 5.3 -----------------------------------------------------------------------------------------------------

TESTS = {
    "cost": "the paper's cost test",
    "shadow": "shadow runs on the centres",
    "sums": "the optimal test on the sums",
}
HALF = "one release at epsilon 1 with half the noise"
ONE = "one release at epsilon 1"


def _member_jobs(settings: Settings) -> Sequence[Job]:
    many = settings.scale is Scale.PAPER
    counts = 4000 if many else 500
    trials = 40_000 if many else 10_000
    jobs = []
    for seed in settings.seeds:
        for name, epsilon in (("no noise", None), ("epsilon 1", 1.0)):
            key = slug("whole", name, f"seed{seed}")
            count = counts if epsilon else counts // 5  # without noise, a few show all there is
            arguments = {"epsilon": epsilon, "runs": count, "shadows": 200 if many else 100, "seed": seed}
            jobs.append(Job(key, runs.member_tests, arguments))
        for name, part in ((ONE, 1.0), (HALF, 0.5)):
            audited = {"epsilon": 1.0, "part_of_the_noise": part, "trials": trials, "seed": seed}
            jobs.append(Job(slug(name, f"seed{seed}"), runs.one_release, audited))
    return jobs


def _member_lines(settings: Settings, results: Mapping[str, Result]) -> Sequence[Line]:
    rows: list[Line] = []
    for name in ("whole-no noise", "whole-epsilon 1", ONE, HALF):
        found = [results[key] for seed in settings.seeds if (key := slug(name, f"seed{seed}")) in results]
        title = {"whole-no noise": "whole runs, no noise", "whole-epsilon 1": "whole runs, epsilon 1"}.get(name, name)
        for test, words in TESTS.items():
            scores = [result[test] for result in found if test in result]
            if scores:
                rows += _test_lines(f"{title}, {words}", scores, found[0]["claim"])
    return rows


def _test_lines(row: str, scores: Sequence[Result], claim: float) -> list[Line]:
    def mean(measure: str) -> float:
        values = [score[measure] for score in scores if score[measure] is not None]
        return sum(values) / len(values) if values else math.nan

    small = mean("tpr at 0.1 %")
    rates = f"TPR {mean('tpr at 1 %'):.4f} at 1 % FPR, "
    rates += "too few runs to see 0.1 %" if math.isnan(small) else f"{small:.4f} at 0.1 %"
    area = line_of(f"{row}: AUC", None, [score["auc"][0] for score in scores], rates)
    if math.isinf(claim):
        return [area]
    note = f"claimed: {claim:.4g}; lower bound at 95 % confidence"
    return [area, line_of(f"{row}: epsilon at least", None, [score["epsilon"] for score in scores], note)]


def _member_claims(lines: Sequence[Line]) -> Sequence[Claim]:
    claims = []
    for line in lines:
        if not line.row.endswith("epsilon at least"):
            continue
        claim = float(line.note.split()[1].rstrip(";"))
        evidence = f"epsilon at least {line.ours:.3f}, claimed {claim:.4g}"
        if line.row.startswith(HALF):
            claims.append(Claim("half the noise: the audit finds the promise broken", line.ours > claim, evidence))
        else:
            row = line.row.removesuffix(": epsilon at least")
            claims.append(Claim(f"{row}: nothing measured contradicts the claim", line.ours <= claim, evidence))
        if line.row.startswith(f"{ONE},"):
            claims.append(Claim("the audit comes within a factor of 2", line.ours >= claim / 2, evidence))
    return claims


NORMALISED = (
    "outer products and histograms have norm 1 a unit, all noise is Gaussian, bounds are estimated and paid for, and "
    "what is released is shrunk towards the server's own points"
)
GENERATED = "nothing: the data are generated"
CENSUS = "ACSIncome (with --data)"


def _figure(
    table: str, title: str, figure: Figure, claims: Callable[[Sequence[Line]], Sequence[Claim]], differs: str = ""
) -> Recipe:
    needs = CENSUS if figure.data == "census" else GENERATED
    return Recipe(
        PAPER,
        table,
        title,
        figure.jobs,
        figure.lines,
        claims,
        needs,
        "; ".join(filter(None, [NORMALISED, differs])),
        shares="costs",
    )


def _histogram(table: str, title: str, histogram: Histogram) -> Recipe:
    needs = CENSUS if histogram.data == "census" else GENERATED
    differs = (
        "the attack is on the protocol as it ran, under each trust model, and cosines are about the published centre; "
        "small federations, with the bound set by hand"
    )
    return Recipe(
        PAPER, table, title, histogram.jobs, histogram.lines, _reconstruction_claims, needs, differs, unit="cosine"
    )


RECIPES = (
    _figure("Fig 1", "Gaussian mixtures, record level", FIGURE_1, lambda lines: crossing_claims("record", lines)),
    _figure("Fig 2", "Gaussian mixtures, client level", FIGURE_2, lambda lines: crossing_claims("client", lines)),
    _figure(
        "Fig 3",
        "Census data, record level, and client level, at which the paper's runs fail",
        FIGURE_3,
        lambda lines: [*crossing_claims("record", lines), *crossing_claims("client", lines)],
        "two states, dealt to clients at random; the paper has 51 states, a client each",
    ),
    _figure("Fig 4", "What each level costs", FIGURE_4, lambda lines: ()),
    _figure("best", "The best at epsilon 0.5, 1 and 3", BEST, reference_claims, "the client level's shares are tuned"),
    _histogram("Fig 5", "Rebuilding a record, Gaussian mixtures", Histogram("gaussians", "record", 20, 100)),
    _histogram("Fig 6", "Rebuilding a client's mean, Gaussian mixtures", Histogram("gaussians", "client", 100, 50)),
    _histogram("Fig 7", "Rebuilding a record, census data", Histogram("census", "record", 51, 0)),
    Recipe(
        PAPER,
        "Sec 5.3",
        "Membership of one record, and the epsilon that it proves",
        _member_jobs,
        _member_lines,
        _member_claims,
        GENERATED,
        "the paper compares two runs of one seed each and has no false positive rate; the record lies far out",
    ),
)
