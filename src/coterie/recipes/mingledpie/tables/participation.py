"""Not in the paper: sealed training beside IFCA where only some clients take part in a round."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.measure.reproduced import Claim, Decision, Key, Rows
from coterie.recipes.mingledpie.claims import by
from coterie.recipes.mingledpie.runs.participation import SEALED, taking_part
from coterie.recipes.mingledpie.tables.accuracy import sizes, tested
from coterie.recipes.mingledpie.tables.entries import Entry
from coterie.recipes.settings import Settings

SHARES = (0.1, 0.2, 0.5, 1.0)
SAME = 0.05  # points, for roundings on the way
CLIENTS, ROUNDS = 100, 30


def participation(settings: Settings) -> Sequence[Entry]:
    return [
        Entry(
            Key.of(participation=share, method=method),
            None,
            taking_part,
            {"method": method, "participation": share, "clients": CLIENTS, "rounds": ROUNDS},
            tested,
            sizes,
        )
        for share in SHARES
        for method in SEALED
    ]


def participation_claims(rows: Rows) -> Sequence[Claim]:
    """Seed by seed. The default leaves clusters of one or two out of a round, and may fall behind at a small share."""
    claims = []
    for method in SEALED:
        if method == "IFCA":
            continue
        for share in SHARES:
            key = Key.of(participation=share, method=method)
            plain, sealed = rows.get(key.but(method="IFCA")), rows.get(key)
            if plain is not None and sealed is not None:
                apart = plain.ours.minus(sealed.ours)
                same = Decision.every([apart.at_most(SAME), apart.at_least(-SAME)])
                evidence = f"{plain.ours.value:.2f} % against {sealed.ours.value:.2f} %: {by(apart)}"
                claims.append(Claim(f"{method}: IFCA's accuracy at participation {share:g}", same, evidence))
    return claims
