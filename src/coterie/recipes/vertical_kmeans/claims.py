"""What is claimed of paper 003's tables, by the paper and by us, on rows by key."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.attacks.distance_geometry import Seen
from coterie.measure.reproduced import Claim, Decision, Rows
from coterie.recipes.vertical_kmeans.runs import BLINDED, MASKED, NONE, ONCE
from coterie.recipes.vertical_kmeans.tables import PER_VALUE


def ratio_claims(rows: Rows) -> Sequence[Claim]:
    """The paper: l_ratio decides more than epsilon does, and the smallest noise costs next to nothing."""
    found = []
    for row in rows.where(mechanism="gap_rr", ratio=0.2, epsilon=0.1):
        name = row.key["data"]
        wide = rows.get(row.key.but(ratio=1.0, epsilon=1.0))
        if wide is not None:
            text = f"{name}: a narrow gap at epsilon 0.1 clusters better than a wide one at epsilon 1"
            found.append(Claim(text, row.ours.minus(wide.ours).above(0), f"{row.ours} against {wide.ours}"))
    for row in rows.where(mechanism="gap_rr", ratio=0.2, epsilon=1.0):
        plain = next(iter(rows.where(data=row.key["data"], mechanism=NONE)), None)
        if plain is not None:
            text = f"{row.key['data']}: the least noise costs at most 0.05 of F"
            found.append(Claim(text, plain.ours.minus(row.ours).at_most(0.05), f"{row.ours} against {plain.ours}"))
    return found


def total_claims(rows: Rows) -> Sequence[Claim]:
    """Ours: what is told once beats what is told in every step, although only the former's total is a price.

    The latter's is the sum over the answers about one record, which leaves out what others' answers tell of it.
    """
    found = []
    for row in rows.where(mechanism=ONCE):
        rivals = [rows.get(row.key.but(mechanism=name)) for name in PER_VALUE if name != "gap_rr"]
        there = [rival for rival in rivals if rival is not None]
        if there:
            best = max(there, key=lambda rival: rival.ours.value)
            text = f"{row.key['data']}, total {row.key['total']:g}: told once, F is above {best.key['mechanism']}'s"
            found.append(Claim(text, row.ours.minus(best.ours).above(0), f"{row.ours} against {best.ours}"))
    return found


def recovery_claims(rows: Rows) -> Sequence[Claim]:
    """Ours: distances give all columns away once d + 3 records are known, and masked sums change nothing of it."""
    found = []
    views = ((Seen.PARTY.value, NONE, "of a party"), (Seen.TOTALS.value, MASKED, "of every party, under masked sums,"))
    for data, enough in (("acs_income", 13), ("digits", 40)):
        for seen, under, whose in views:
            for row in rows.where(data=data, seen=seen, mechanism=under, known=enough):
                for name, which in (("told", "in which they differ"), ("least", "that varies")):
                    text = f"{data}: {enough} known records give every column {whose} away {which} (above 0.99)"
                    found.append(Claim(text, row.values[name].above(0.99), f"least {row.values[name]}"))
    for row in rows.where(seen=Seen.SHAPES.value, mechanism=BLINDED, known=1000):
        floor = rows.get(row.key.but(seen=Seen.ASSIGNMENTS.value, mechanism=NONE))
        if floor is not None:
            text = f"{row.key['data']}: blinded totals tell no more than the assignments do"
            found.append(Claim(text, floor.ours.minus(row.ours).at_least(0), f"{row.ours} against {floor.ours}"))
    return found


def successive_claims(rows: Rows) -> Sequence[Claim]:
    """Ours: secure sums do not hide a record that moves alone, and what is taken for a record is one."""
    found = []
    for row in rows:
        what = f"{row.key['data']}, {row.key['seen']}"
        found.append(Claim(f"{what}: some records are read exactly", row.ours.above(0), f"{row.ours}"))
        right = row.values["right"]
        found.append(Claim(f"{what}: of what is taken for a record, 0.9 is one", right.at_least(0.9), f"{right}"))
    return found


def noise_claims(rows: Rows) -> Sequence[Claim]:
    """Ours: Gap-RR's F has its price in recovery; memoised answers give less away than fresh ones."""
    found = []
    for row in rows.where(mechanism="gap_rr", memoised=False):
        kept = rows.get(row.key.but(memoised=True))
        if kept is not None:
            text = f"{row.key['data']}: fresh answers give more away than memoised ones"
            found.append(Claim(text, row.ours.minus(kept.ours).above(0), f"{row.ours} against {kept.ours}"))
        holding = rows.get(row.key.but(mechanism="piecewise", epsilon=1.0))
        if holding is not None:
            text = f"{row.key['data']}: Gap-RR at epsilon 1 gives more away than the piecewise mechanism at epsilon 1"
            found.append(Claim(text, row.ours.minus(holding.ours).above(0), f"{row.ours} against {holding.ours}"))
    controls = [row.values["control"].value for row in rows if "control" in row.values]
    if controls:
        worst = max(map(abs, controls))
        text = "known records that are mixed up give nothing away (mean correlation within 0.3 of 0)"
        found.append(Claim(text, Decision.of(worst < 0.3), f"largest {worst:.3f} of {len(controls)} rows"))
    return found


def recognition_claims(rows: Rows) -> Sequence[Claim]:
    """The paper: RSM-DP recognises attacks better than DP. Ours: noise blinds whoever looks on, too."""
    found = []
    for row in rows.where(model="RSM-DP"):
        alone, noisy = rows.get(row.key.but(model="monitor alone")), rows.get(row.key.but(model="DP"))
        what = f"{row.key['attack']}, strength {row.key['strength']:g}"
        if noisy is not None:
            text = f"{what}: more is recognised under RSM-DP than under DP"
            found.append(Claim(text, row.ours.minus(noisy.ours).above(0), f"{row.ours} against {noisy.ours}"))
        if alone is not None:
            text = f"{what}: as much is recognised under RSM-DP as without noise"
            found.append(Claim(text, alone.ours.minus(row.ours).at_most(0.05), f"{row.ours} against {alone.ours}"))
    return found


def protection_claims(rows: Rows) -> Sequence[Claim]:
    """The paper: RSM-DP protects by 0.89 at least, whatever the attack is, and better than HE does."""
    found = []
    for row in rows.where(model="RSM-DP"):
        text = f"{row.key['attack']}: RSM-DP leaves at most 0.11 to the attacker"
        found.append(Claim(text, row.ours.at_least(0.89), f"{row.ours}"))
        sealed = rows.get(row.key.but(model="HE"))
        if sealed is not None:
            text = f"{row.key['attack']}: RSM-DP protects better than masked sums"
            found.append(Claim(text, row.ours.minus(sealed.ours).above(0), f"{row.ours} against {sealed.ours}"))
    return found
