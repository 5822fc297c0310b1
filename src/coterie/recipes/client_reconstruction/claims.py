"""What paper 004 says of its own tables, and whether it holds in ours: rows by key, compared seed by seed."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.measure.reproduced import Claim, Row, Rows
from coterie.recipes.client_reconstruction.tables import is_shown


def table_one_claims(rows: Rows) -> Sequence[Claim]:
    """CFL leaks more than FL, and more the more is tapped: by the paper's score, and by scores with a known chance."""
    claims = []
    for measure in ("similarity", "identified", "beyond others", "beyond strangers"):
        for data in ("MNIST", "CMNIST"):
            for text, one, other in COMPARED:
                more, less = _real(rows, data, *one), _real(rows, data, *other)
                if more and less:
                    claims.append(_more(f"{data}, {measure}: {text}", measure, more, less))
    for row in rows:
        if "control" in row.key:
            told, pools = row.values["identified"], float(row.key["clients"]) / 2 + 1  # its cluster, and strangers
            text = f"{row.key['data']}: a victim with nothing of its own is identified as often as by chance"
            claims.append(Claim(text, told.covers(1 / pools), f"{told} against {1 / pools:.3f}"))
    return claims


COMPARED = (
    ("a cluster leaks more than all clients together, nothing tapped", ("CFL", 0.0), ("FL", 0.0)),
    ("a cluster leaks more than all clients together, all tapped", ("CFL", 1.0), ("FL", 1.0)),
    ("all tapped leaks more than nothing tapped", ("CFL", 1.0), ("CFL", 0.0)),
)


def _real(rows: Rows, data: str, method: str, share: float) -> Row | None:
    """Of the fewest clients that there are."""
    found = [row for row in rows.where(data=data, method=method, share=share) if "control" not in row.key]
    return min(found, key=lambda row: float(row.key["clients"]), default=None)


LOWERED = ("similarity", "identified", "beyond others", "beyond strangers", "recognised")


def defence_claims(rows: Rows) -> Sequence[Claim]:
    """Noise lowers what is drawn and costs little accuracy; and whether adapting it earns anything."""
    claims = []
    by_name = {str(row.key["defence"]): row for row in rows if is_shown(row.key)}
    for name in ("plain", "adaptive", "clipped"):
        if "none" in by_name and name in by_name:
            bare, guarded = by_name["none"], by_name[name]
            claims += [_more(f"{measure}: {name} noise lowers it", measure, bare, guarded) for measure in LOWERED]
            lost = bare.values["accuracy"].minus(guarded.values["accuracy"])
            claims.append(Claim(f"{name} noise costs at most 3.3 points of accuracy", lost.at_most(0.033), f"{lost}"))
    if "plain" in by_name and "adaptive" in by_name:
        plain, adaptive = by_name["plain"], by_name["adaptive"]
        gained = adaptive.values["accuracy"].minus(plain.values["accuracy"])
        claims.append(Claim("adaptive noise keeps more accuracy than plain noise", gained.above(0), f"by {gained}"))
        claims += [_more(f"{measure}: under plain noise it is higher", measure, plain, adaptive) for measure in LOWERED]
    return claims


def _more(text: str, measure: str, one: Row, other: Row) -> Claim:
    here, there = (row.ours if measure == "similarity" else row.values[measure] for row in (one, other))
    more = here.minus(there)
    return Claim(text, more.above(0), f"{here.value:.3f} against {there.value:.3f}, more by {more}")
