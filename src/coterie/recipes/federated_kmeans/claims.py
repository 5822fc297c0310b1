"""What is claimed of paper 002's figures, on rows by key. Seeds are shared, so rows are compared seed by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from coterie.measure.reproduced import Claim, Decision, Rows, Value
from coterie.recipes.federated_kmeans.runs.costs import BASELINE, KFED, PRIVATE, PUBLIC, TUNED
from coterie.recipes.federated_kmeans.tables import CLAIMED, HALF, MOST, ONE, OUTER, TRUSTED, title


def crossing_claims(level: str, rows: Rows, crossing: float = 0.0) -> Sequence[Claim]:
    """FedDP-KMeans beside k-FED with a noisy step at each epsilon, and beside what needs no noise.

    By the paper, k-FED with a noisy step is the better one below ``crossing``.
    """
    others: Mapping[str, Mapping[str, Value]] = {
        "k-FED with a noisy step": {"method": BASELINE},
        "k-FED without noise": {"method": KFED, "epsilon": math.inf},
        "a clustering of the server's points alone": {"method": PUBLIC, "epsilon": math.inf},
    }
    found = []
    private = rows.where(level=level, method=PRIVATE, measure="cost")
    for row in sorted(private, key=lambda row: float(row.key["epsilon"])):
        for name, differing in others.items():
            other = rows.get(row.key.but(**differing))
            if other is not None:
                sides = [(PRIVATE, row), (name, other)]
                if differing["method"] == BASELINE and float(row.key["epsilon"]) < crossing:
                    sides.reverse()
                (cheaper, less), (dearer, more) = sides
                text = f"{level} level, epsilon {row.key['epsilon']:g}: {cheaper} costs less than {dearer}"
                decision = more.ours.minus(less.ours).above(0)
                found.append(Claim(text, decision, f"{row.ours.value:.4f} against {other.ours.value:.4f}"))
    return found


def reference_claims(rows: Rows) -> Sequence[Claim]:
    found = []
    for level, tolerance in (("record", 0.001), ("client", 0.01)):
        for row in rows.where(level=level, method=TUNED, epsilon=3.0, measure="cost"):
            if row.published is not None:
                text = f"{level} level: within {100 * tolerance:g} % of the public code's cost, or below it"
                decision = row.ours.at_most(row.published * (1 + tolerance))
                found.append(Claim(text, decision, f"{row.ours} against {row.published:.4f}"))
    return found


def excess_claims(rows: Rows) -> Sequence[Claim]:
    """Beside a run of k-means as scikit-learn makes it by default, and, which is harder, beside the best of ten."""
    found = []
    for row in rows:
        most = MOST[row.key["data"]]
        found.append(Claim(f"{row.label}: at most {most:g}", row.ours.at_most(most), str(row.ours)))
    return found


def reconstruction_claims(rows: Rows) -> Sequence[Claim]:
    claims = []
    for row in rows:
        if row.key["trust"] in ("no noise", TRUSTED):
            text = f"{row.label}: a curious server rebuilds its target"
            claims.append(Claim(text, row.ours.above(0.99), f"mean cosine {row.ours.value:.4f}"))
        else:
            text = f"{row.label} at epsilon 1: what is rebuilt has nothing of the target"
            claims.append(Claim(text, row.ours.covers(0.0), f"mean cosine {row.ours}"))
    return claims


def membership_claims(rows: Rows) -> Sequence[Claim]:
    """What is measured is a lower bound at 95 % confidence each, so comparing it with the claim decides."""
    claims = []
    for row in rows.where(measure="epsilon"):
        bound, claimed = row.ours.value, row.values[CLAIMED].value
        evidence = f"epsilon at least {bound:.3f}, claimed {claimed:.4g}"
        if row.key.has(**HALF.key):
            text = "half the noise: the audit finds the promise broken"
            claims.append(Claim(text, Decision.of(bound > claimed), evidence))
            continue
        if row.key.has(**OUTER.key):
            text = "noise on outer products that is scaled to the clipping bound: the audit finds the epsilon false"
            claims.append(Claim(text, Decision.of(bound > claimed), evidence))
            continue
        text = f"{title(row.key)}: nothing measured contradicts the claim"
        claims.append(Claim(text, Decision.of(bound <= claimed), evidence))
        if row.key.has(**ONE.key):
            claims.append(Claim("the audit comes within a factor of 2", Decision.of(bound >= claimed / 2), evidence))
    return claims
