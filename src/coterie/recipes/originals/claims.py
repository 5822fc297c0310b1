"""What is said of the tables, on rows by key."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.measure.reproduced import Claim, Decision, Key, Row, Rows


def start_claims(rows: Rows) -> Sequence[Claim]:
    claims = []
    random = rows.get(Key.of(start="random"))
    for row in rows:
        right, runs = _right([row])
        text = f"{row.key['start']}: all groups are recovered in at least 19 of 20 runs"
        claims.append(Claim(text, Decision.of(right >= 0.95 * runs), _counted([row]) + " runs"))
        if random is not None and row is not random:
            text = f"{row.key['start']}: the groups are recovered more often than from a random start"
            claims.append(Claim(text, row.ours.minus(random.ours).above(0), _counted([row]) + " runs"))
    return claims


def ifca_claims(rows: Rows) -> Sequence[Claim]:
    claims = []
    best = rows.get(Key.of(trainer="IFCA"))
    for baseline in ("global", "local", "fine-tuned"):
        other = rows.get(Key.of(trainer=baseline))
        if best is not None and other is not None:
            decision = best.ours.minus(other.ours).above(0)
            evidence = f"{best.ours.value:.2f} % against {other.ours.value:.2f} %"
            claims.append(Claim(f"IFCA beats the {baseline} model", decision, evidence))
    return claims


def sattler_claims(rows: Rows) -> Sequence[Claim]:
    """At most one run in twenty divides clients that are alike; at least 17 in twenty find the groups."""
    claims = []
    for groups, share, text in (
        ("none", 0.95, "clients that are alike stay together in at least 19 of 20 runs"),
        ("labels", 0.85, "label permutations: the groups are found in at least 17 of 20 runs"),
        ("rotations", 0.85, "rotations: the groups are found in at least 17 of 20 runs"),
    ):
        found = list(rows.where(rule="separation", groups=groups))
        if found:
            right, runs = _right(found)
            claims.append(Claim(text, Decision.of(right >= share * runs), f"{_counted(found)} runs"))
    return claims


def _right(rows: Sequence[Row]) -> tuple[int, int]:
    values = [value for row in rows for value in row.ours.by_seed.values()]
    return sum(value == 100 for value in values), len(values)


def _counted(rows: Sequence[Row]) -> str:
    return "{} of {}".format(*_right(rows))
