"""What the paper says of its tables, on rows by key. Runs of a seed share their data, so seed is compared with seed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from coterie.measure.reproduced import Claim, Decision, Estimate, Key, Rows
from coterie.recipes.mingledpie.published import TABLE_3, TABLE_5, TABLE_6
from coterie.recipes.mingledpie.runs.attacks import READINGS
from coterie.recipes.mingledpie.runs.costs import OURS, THEIRS
from coterie.recipes.mingledpie.runs.counting import ALONE, KNOWING, TOGETHER_WITH
from coterie.recipes.mingledpie.setups import SETUPS
from coterie.recipes.mingledpie.tables.accuracy import ABLATION, SPLITS
from coterie.recipes.mingledpie.tables.attacks import BY_MODEL, CHANCE, CLOSED_FORM, PRINTED, RULES, UNEVEN

LEARNT = 60.0  # per cent; a client with two classes gets 50 by guessing


# -- attacks ---------------------------------------------------------------------------------------------------------


def figure_3_claims(rows: Rows) -> Sequence[Claim]:
    inside = [row.ours.covers(row.values[CLOSED_FORM].value) for row in rows]
    claims = [
        Claim(
            "the attack does what the closed form says in every cell",
            Decision.every(inside),
            f"{inside.count(Decision.HOLDS)} of {len(inside)} cells within intervals that hold together with 95 %",
        )
    ]
    cell = Key.of(p=0.5, k=5, T=2)
    as_printed, fitting = (rows.get(cell.but(reading=reading)) for reading in READINGS)
    if as_printed is not None and fitting is not None:
        claims.append(
            Claim(
                "30.6 % at p=0.5, k=5, T=2 is what sets of at least two identities give (Eq. 9-10)",
                as_printed.ours.covers(30.6),
                f"{as_printed.ours.value:.1f} %; sets of at least two decoys give {fitting.ours.value:.1f} %",
            )
        )
        printed = [row.values[PRINTED].value for row in (as_printed, fitting)]
        claims.append(
            Claim(
                "30.6 % is 1 / mean(|set|), as the public code computes it, in one of the two readings",
                Decision.of(any(abs(value - 30.6) < 0.5 for value in printed)),
                f"{printed[0]:.1f} % for sets of at least two identities, {printed[1]:.1f} % of two decoys",
            )
        )
    return claims


def table_2_claims(rows: Rows) -> Sequence[Claim]:
    claims = []
    for name in SETUPS:
        last = rows.where(data=name, what="epoch 5")
        for row in last.where(method="IFCA"):
            read = Decision.of(row.ours.value == 100)  # counted: every client, in every run
            claims.append(Claim(f"{name}: A1 reads IFCA by epoch 5", read, f"{row.ours.value:.1f} %"))
        for method in RULES:
            for row in last.where(method=method):
                expected = row.values[CLOSED_FORM].value
                text = f"{name}: A1 against {method} gets the closed form's {expected:.1f} %"
                claims.append(Claim(text, row.ours.covers(expected), in_percent(row.ours)))
        for row in rows.where(data=name, method="MingledPie", what=BY_MODEL):
            text = f"{name}: A2 falls to chance, {row.values[CHANCE].value:.0f} %"
            claims.append(Claim(text, row.ours.covers(row.values[CHANCE].value), in_percent(row.ours)))
            if CLOSED_FORM in row.values:
                expected = row.values[CLOSED_FORM].value
                text = f"{name}: a server that knows what clusters serve gets {expected:.1f} % by A2, as by A1"
                claims.append(Claim(text, row.ours.covers(expected), in_percent(row.ours)))
    return claims


def counting_claims(rows: Rows) -> Sequence[Claim]:
    """The intervals are pooled over clients; the default's server alone must do no better than its sets allow."""
    claims = []
    for who, most in ((ALONE, "the closed form"), (KNOWING, "sets drawn anew, by whoever knows the clusters' sizes")):
        alone = list(rows.where(method="default", who=who))
        inside = [Decision.of(row.ours.low <= row.values[CLOSED_FORM].value) for row in alone]
        evidence = "; ".join(f"{row.label} {in_percent(row.ours)}" for row in alone)
        text = f"{who}, counting gets the server no more than {most}"
        claims += [Claim(text, Decision.every(inside), evidence)] if alone else []
    if counted := list(rows.where(method="default", who=TOGETHER_WITH)):
        more = [row for row in counted if row.ours.low > row.values[CLOSED_FORM].value]
        evidence = f"in {len(more)} of {len(counted)} settings"
        claims.append(Claim("with one client's key it gets more somewhere", Decision.of(bool(more)), evidence))
    if sets := list(rows.where(method=UNEVEN)):
        more = [row for row in sets if row.ours.low > row.values[CLOSED_FORM].value]
        evidence = "; ".join(f"{row.label} {in_percent(row.ours)}" for row in sets)
        text = "identity sets give no more than the closed form where clusters differ in size"
        claims.append(Claim(text, Decision.of(not more), evidence))
    return claims


def in_percent(ours: Estimate) -> str:
    return f"{ours.value:.1f} % [{ours.low:.1f}, {ours.high:.1f}]"


# -- accuracy --------------------------------------------------------------------------------------------------------


def table_3_claims(rows: Rows) -> Sequence[Claim]:
    claims = []
    for name in SETUPS:
        for split in SPLITS:
            claims += _costs_of_mingling(rows, name, split)
        even = Key.of(data=name, split="homogeneous", method="IFCA")
        clustered, proximal = rows.get(even), rows.get(even.but(method="FedProx"))
        if clustered is not None and proximal is not None:
            text = f"{name}: one model for each cluster is better than one for all"
            gain = clustered.ours.minus(proximal.ours)
            evidence = f"{clustered.ours.value:.2f} % against {proximal.ours.value:.2f} %: {by(gain)}"
            claims.append(Claim(text, gain.above(0), evidence))
    return [*claims, *table_6_claims(rows)]


def _costs_of_mingling(rows: Rows, name: str, split: str) -> list[Claim]:
    claims = []
    key = Key.of(data=name, split=split, method="IFCA")
    ifca, mingled, exact = (rows.get(key.but(method=method)) for method in ("IFCA", "MingledPie", "exact"))
    if ifca is not None and mingled is not None and split == "homogeneous":
        loss = ifca.ours.minus(mingled.ours)
        text = f"{name}: mingling costs at most 0.5 points"
        evidence = f"IFCA {ifca.ours.value:.2f} %, mingled {mingled.ours.value:.2f} %: {by(loss)}"
        if ifca.ours.value < LEARNT:
            evidence += "; neither has learnt enough in so few rounds"
            claims.append(Claim(text, Decision.UNDECIDED, evidence))
        else:
            claims.append(Claim(text, loss.at_most(0.5), evidence))
    if ifca is not None and exact is not None:
        loss = ifca.ours.minus(exact.ours)
        text = f"{name}, {split}: exact mingling costs nothing (0.05 points for roundings on the way)"
        decision = Decision.every([loss.at_most(0.05), loss.at_least(-0.05)])
        evidence = f"IFCA {ifca.ours.value:.2f} %, exact {exact.ours.value:.2f} %: {by(loss)}"
        claims.append(Claim(text, decision, evidence))
    return claims


def table_5_claims(rows: Rows) -> Sequence[Claim]:
    claims = []
    for name in SETUPS:
        found = [rows.get(Key.of(data=name, method=method, side="test")) for method in ABLATION]
        ifca, bare, ideal, counted = (None if row is None else row.ours for row in found)
        if ifca is None or bare is None or ideal is None or counted is None:
            continue
        pairs = zip(ABLATION, (ifca, bare, ideal, counted), strict=True)
        works = ifca.minus(counted).at_most(1)
        fail = [counted.minus(one).above(5) for one in (bare, ideal)]
        text = f"{name}: no rebuilding and the ideal matrix fail, the counted matrix works"
        evidence = ", ".join(f"{method} {value.value:.1f} %" for method, value in pairs)
        claims.append(Claim(text, Decision.every([*fail, works]), evidence))
    apart = {
        name: (test, TABLE_3[name, method][0])
        for (name, method), (_, test) in TABLE_5.items()
        if method == "MingledPie" and abs(test - TABLE_3[name, method][0]) >= 0.5
    }
    evidence = "; ".join(f"{name} {one} % and {other} %" for name, (one, other) in apart.items())
    return [*claims, Claim("Tables III and V print the same accuracies", Decision.of(not apart), evidence)]


def table_6_claims(rows: Rows) -> Sequence[Claim]:
    """Of the paper's own values alone."""
    mean, also = TABLE_6["ResNet-18"][5], TABLE_3["CIFAR-100", "MingledPie"][0]
    text = "Table VI's mean with ResNet-18 is what Table III has for CIFAR-100"
    evidence = f"{mean} % against {also} %; IFCA has {TABLE_3['CIFAR-100', 'IFCA'][0]} %"
    return [Claim(text, Decision.of(abs(mean - also) < 0.5), evidence)] if rows else []


def table_8_claims(rows: Rows) -> Sequence[Claim]:
    """Newcomers that are less alike change training, and not the test of clients that are pure."""
    claims = []
    for row in rows.where(side="test", newcomers_iid_rate=0.6):
        text = "with newcomers of an IID rate of 60 %, pure clients are tested within one point of 97.22 %"
        near = Decision.every([row.ours.at_least(96.22), row.ours.at_most(98.22)])
        claims.append(Claim(text, near, in_percent(row.ours)))
    return claims


def table_9_claims(rows: Rows) -> Sequence[Claim]:
    claims = []
    for used, what in itertools.product((THEIRS, OURS), ("encryption", "decryption")):
        found = [rows.get(Key.of(model=one, settings=used, what=what)) for one in ("FCNN", "CNN", "ResNet-18")]
        seconds = [row.ours.value for row in found if row is not None]
        if len(seconds) == len(found):
            text = f"{what} with {used} settings takes longest for ResNet-18 and shortest for the FCNN"
            evidence = " < ".join(f"{value:.2f} s" for value in seconds)
            claims.append(Claim(text, Decision.of(seconds == sorted(seconds)), evidence))
    return claims


def baseline_claims(rows: Rows) -> Sequence[Claim]:
    ifca, *single = (rows.get(Key.of(method=method)) for method in ("IFCA", "FedProx", "FedAvg"))
    others = [row for row in single if row is not None]
    if ifca is None or len(others) < len(single):
        return ()
    gains = [ifca.ours.minus(row.ours) for row in others]
    best = max(row.ours.value for row in others)
    return [
        Claim(
            "one model for each cluster is far better than one for all",
            Decision.every(gain.above(5) for gain in gains),
            f"IFCA {ifca.ours.value:.2f} %, the better of FedAvg and FedProx {best:.2f} %",
        ),
        Claim("IFCA reaches 97 %", ifca.ours.at_least(97), f"{ifca.ours.value:.2f} %"),
    ]


def by(difference: Estimate) -> str:
    if not difference.is_known:
        return f"by {difference.value:.2f}, of one seed"
    return f"by {difference.value:.2f} [{difference.low:.2f}, {difference.high:.2f}]"
