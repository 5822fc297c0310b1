"""What is said of the tables, on rows by key."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.attacks.poisoning import HOW
from coterie.measure.reproduced import Claim, Decision, Key, Row, Rows
from coterie.recipes.originals.malice import HONEST, UNDEFENDED

POINT = 1.0  # of accuracy, in per cent, that a malicious client may cost
FROZEN = 50.0  # a start that was never trained has 10


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


def malice_claims(rows: Rows) -> Sequence[Claim]:
    made = []
    honest = rows.get(Key.of(sends=HONEST, defence=UNDEFENDED))
    for sends in HOW:
        shields = [row for row in rows.where(sends=sends) if row.key["defence"] != UNDEFENDED]
        if not shields:
            continue
        worst = min(value for row in shields for value in row.ours.by_seed.values())
        text = f"{sends}: nothing freezes under any robust defence"
        made.append(Claim(text, Decision.of(worst > FROZEN), f"{worst:.2f} % at the least"))
        if honest is not None:
            lost = {str(row.key["defence"]): row.ours.minus(honest.ours).among(len(shields)) for row in shields}
            decision = Decision.some(one.above(-POINT) for one in lost.values())
            best = max(lost, key=lambda name: lost[name].low)
            text = f"{sends}: within a point of the honest accuracy under at least one defence"
            made.append(Claim(text, decision, f"{best}: {lost[best]} points"))
    return made


def _right(rows: Sequence[Row]) -> tuple[int, int]:
    values = [value for row in rows for value in row.ours.by_seed.values()]
    return sum(value == 100 for value in values), len(values)


def _counted(rows: Sequence[Row]) -> str:
    return "{} of {}".format(*_right(rows))
