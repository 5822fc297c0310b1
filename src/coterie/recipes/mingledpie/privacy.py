"""Figure 3 and Table II: what a curious server learns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from coterie.attacks.profiling import CURIOUS_SERVER, IdentityProfiling
from coterie.data.auxiliary import Auxiliary
from coterie.defences.mingling.fuzzy_tags import ClusterKeys, Counting, GroupSets, IdentitySets, SampledSets, TagRule
from coterie.measure.intervals import proportion
from coterie.measure.judge import wilson
from coterie.measure.reproduced import Claim, Line
from coterie.recipes.base import Recipe, Scale, Settings
from coterie.recipes.mingledpie.published import FIGURE_3, TABLE_2
from coterie.recipes.mingledpie.tables import SHARED, Entry, jobs_of, lines_of, path_of
from coterie.recipes.mingledpie.work import SETUPS, present, profiled
from coterie.rng import Rng
from coterie.run.jobs import Job, Result
from coterie.wire.messages import TRAIN, Contributions, Down, Published, Up
from coterie.wire.tape import Tape

RATES = (0.0625, 0.125, 0.25, 0.5)
CLUSTERS = (5, 6, 7, 8, 9, 10)
THRESHOLDS = (1, 2, 3, 4, 5)
CELLS = sorted(
    {(p, k, 2) for p in RATES for k in CLUSTERS}
    | {(p, 5, T) for p in RATES for T in THRESHOLDS}
    | {(0.5, k, T) for k in CLUSTERS for T in range(2, k + 1)}
)
READINGS = {"T counts identities": Counting.IDENTITIES, "T counts decoys": Counting.DECOYS}


def guessed(rate: float, clusters: int, threshold: int, counting: str, sets: int, group: bool, seed: int) -> Result:
    """How often a blind guess from the identity set is right, over this many clients."""
    rng = Rng.seeded(seed).child("figure 3", str(rate), clusters, threshold, counting)
    rule = TagRule(clusters, rate, threshold, READINGS[counting])
    drawn: IdentitySets = SampledSets(rule)
    if group:
        drawn = GroupSets(rule, ClusterKeys.generate(rule, rng.child("keys")))
    everyone = torch.arange(sets)
    true = everyone % clusters
    tape = Tape([CURIOUS_SERVER])
    joined = drawn.membership(everyone, true, rng.child("clients")).float()
    tape.record(Down(TRAIN, 0, everyone, Published({"w": torch.zeros(clusters, 1)})))
    tape.record(Up(TRAIN, 0, Contributions(everyone, {}, torch.ones(sets), joined)))
    attack = IdentityProfiling({cluster: cluster for cluster in range(clusters)})
    guess = attack.infer(tape.view(CURIOUS_SERVER), Auxiliary(), rng.child("attack")).labels
    right = sum(guess[client] == cluster for client, cluster in enumerate(true.tolist()))
    return {"right": right, "sets": sets, "expected": rule.blind_guess()}


def _cells(settings: Settings) -> Iterator[tuple[str, float | None, dict[str, Any]]]:
    sets = 20_000 if settings.scale is Scale.PAPER else 2_000
    for reading in READINGS:
        for p, k, T in CELLS:
            most = k if READINGS[reading] is Counting.IDENTITIES else k - 1
            if most < T:
                continue  # grey in the figure
            for group in (False, True) if (p, k, T) == (0.5, 5, 2) else (False,):
                row = f"p={p:g}, k={k}, T={T}, {reading}" + (", real group" if group else "")
                arguments = {
                    "rate": p,
                    "clusters": k,
                    "threshold": T,
                    "counting": reading,
                    "sets": sets,
                    "group": group,
                }
                published = FIGURE_3.get((p, k, T))
                if settings.wants(row):
                    yield row, published, arguments


def _cell_key(row: str) -> str:
    return "guessed/" + row.replace(", ", ",").replace(" ", "_")


def figure_3_jobs(settings: Settings) -> Sequence[Job]:
    seed = settings.seeds[0]
    return [Job(_cell_key(row), guessed, {**arguments, "seed": seed}) for row, _, arguments in _cells(settings)]


def figure_3_lines(settings: Settings, results: Mapping[str, Result]) -> Sequence[Line]:
    """Intervals hold all together with 95 %: each has its share of the error."""
    cells = list(_cells(settings))
    lines = []
    for row, published, _ in cells:
        found = results[_cell_key(row)]
        ours = proportion(found["right"], found["sets"], 1 - 0.05 / len(cells))
        note = f"closed form {100 * found['expected']:.2f}"
        lines.append(Line(row, published, 100 * ours.estimate, 100 * ours.low, 100 * ours.high, note))
    return lines


def figure_3_claims(lines: Sequence[Line]) -> Sequence[Claim]:
    expected = [float(line.note.removeprefix("closed form ")) for line in lines]
    inside = [line.low <= value <= line.high for line, value in zip(lines, expected)]
    claims = [
        Claim(
            "the attack does what the closed form says in every cell",
            all(inside),
            f"{sum(inside)} of {len(inside)} cells within intervals that hold together with 95 %",
        )
    ]
    ours = {line.row: line for line in lines}
    read = {name: ours.get(f"p=0.5, k=5, T=2, {name}") for name in READINGS}
    if all(read.values()):
        as_printed, fitting = (line for line in read.values() if line is not None)
        claims.append(
            Claim(
                "30.6 % at p=0.5, k=5, T=2 is what sets of at least two identities give (Eq. 9-10)",
                as_printed.low <= 30.6 <= as_printed.high,
                f"{as_printed.ours:.1f} %; sets of at least two decoys give {fitting.ours:.1f} %",
            )
        )
    return claims


METHODS = ("IFCA", "MingledPie", "MingledPie, T counts decoys", "exact", "secure sums")
FURTHER = ("intersection", "sizes read", "with a client", "A2, top-1", "A2, top-k", "A2 with a client, top-1")


def table_2_entries(settings: Settings) -> Sequence[Entry]:
    entries = []
    for name in SETUPS:
        if not present(name, settings.data) or name == "CIFAR-100 with the CNN":
            continue
        clients = 120 if settings.scale is Scale.PAPER and settings.data else SETUPS[name].quick_clients
        for method in METHODS:
            count = min(clients, 40) if method == "secure sums" else clients  # every vector is sent |CI| times there
            arguments = {"name": name, "method": method, "clients": count, "data": path_of(settings)}
            published = TABLE_2.get((name.split(",")[0], method))
            for index, what in enumerate(("epoch 1", "epoch 3", "epoch 5", *FURTHER)):
                printed = published[index] if published and index < 3 else None
                entries.append(_entry(f"{name}, {method}: {what}", printed, arguments, what))
    return entries


def _entry(row: str, published: float | None, arguments: Mapping[str, Any], what: str) -> Entry:
    def share(result: Result) -> float:
        return float(result[what][0])

    def pooled(results: Sequence[Result]) -> tuple[float, float]:
        asked = arguments["clients"] * len(results)
        low, high = wilson(sum(share(result) / 100 * arguments["clients"] for result in results), asked)
        return 100 * low, 100 * high

    return Entry(row, published, profiled, arguments, share, pooled=pooled)


def table_2_claims(lines: Sequence[Line]) -> Sequence[Claim]:
    ours = {line.row: line for line in lines}
    claims = []
    for name in SETUPS:
        ifca = ours.get(f"{name}, IFCA: epoch 5")
        if ifca is not None:
            claims.append(Claim(f"{name}: A1 reads IFCA by epoch 5", ifca.ours == 100, f"{ifca.ours:.1f} %"))
        for method, rule in (
            ("MingledPie", TagRule(5, 0.5, 2)),
            ("MingledPie, T counts decoys", TagRule(5, 0.5, 2, Counting.DECOYS)),
        ):
            line = ours.get(f"{name}, {method}: epoch 5")
            if line is not None:
                expected = 100 * rule.blind_guess()
                text = f"{name}: A1 against {method} gets the closed form's {expected:.1f} %"
                claims.append(Claim(text, line.low <= expected <= line.high, _shown(line)))
        a2 = ours.get(f"{name}, MingledPie: A2, top-1")
        if a2 is not None:
            claims.append(Claim(f"{name}: A2 falls to chance, 20 %", a2.low <= 20 <= a2.high, _shown(a2)))
    return claims


def _shown(line: Line) -> str:
    return f"{line.ours:.1f} % [{line.low:.1f}, {line.high:.1f}]"


RECIPES = (
    Recipe(
        paper="mingledpie",
        shares=SHARED,
        table="Fig 3",
        title="How often a server guesses a client's true cluster from its identity set",
        jobs=figure_3_jobs,
        lines=figure_3_lines,
        claims=figure_3_claims,
        needs="nothing",
        differs="the axes of the heat maps are ours; intervals hold for all cells together; quick scale draws 2,000 "
        "sets a cell, paper scale 20,000",
        unit="%",
    ),
    Recipe(
        paper="mingledpie",
        shares=SHARED,
        table="II",
        title="Preference profiling in the first five rounds, p=0.5, T=2, k=5",
        jobs=jobs_of(table_2_entries),
        lines=lines_of(table_2_entries),
        claims=table_2_claims,
        needs="MNIST, Fashion-MNIST, ... (with --data; what is there is used); else 5,000 embedded digits, 40 clients",
        differs="IFCA starts from models that clients have voted on, so clusters are right from the first round; the "
        "identity sets hold T identities, and in a row of its own T decoys; ciphertexts are CKKS's mock; secure sums "
        "with 40 clients",
        unit="%",
    ),
)
