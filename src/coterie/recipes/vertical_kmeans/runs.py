"""What the jobs of paper 003's tables do: one clustering under a mechanism, or one attack on a recorded run."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from coterie.attacks.distance_geometry import CURIOUS_SERVER, POPULATION, RECORD, DistanceGeometry, Recovered, Seen
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples, VerticalFederation
from coterie.data.partition.features import Vertical
from coterie.defences.blinding import Blinding
from coterie.defences.ckks_sums import CkksSums
from coterie.defences.private_grid import PrivateGrid
from coterie.defences.proven_sums import ProvenSums
from coterie.defences.randomised_response.defence import PerturbOnce, RandomisedResponse
from coterie.defences.randomised_response.mechanisms import MECHANISMS, discretised, gap_rr, piecewise
from coterie.defences.secure_sums import SecureSums
from coterie.errors import DataMissing, InvalidInput, nearest
from coterie.flow.guard import Defence
from coterie.flow.ring import Ring
from coterie.flow.stack import Stack
from coterie.flow.turn import Roots
from coterie.learn.clusters.lloyd import nearest as nearest_centre
from coterie.measure.clustering import weighted_f
from coterie.measure.columns import correlations
from coterie.protocols.clusterings.vertical_kmeans import LABELS, Start, VerticalKMeans
from coterie.protocols.clusterings.weighted_grid import WeightedGrid
from coterie.rng import Rng
from coterie.run.jobs import Result
from coterie.wire.tape import Tape
from coterie.wire.view import View

NONE, DISCRETISED, ONCE, MASKED, BLINDED = "none", "discretised", "perturb_once", "masked_sums", "blinded_sums"
CKKS, PROVEN = "ckks_sums", "proven_sums"
GRID, DELTA = "weighted_grid", 1e-6
UCI = ("iris", "wine", "breast_cancer")
GAP_LEVELS = 50
KNOWN = 60  # records that the server knows where recovery stands beside F
MOST_A_VALUE = 40.0  # what a channel takes: next to no noise
HELD = 500  # records of forge, wave and MNIST, as the paper has


@lru_cache(maxsize=8)
def drawn(name: str, seed: int, data: str | None, records: int) -> tuple[Examples, Tensor]:
    """At most so many records of the data set, and up to as many others' columns (others, columns), all on [0, 1].

    Columns are put there by the range of the whole set, as if that were public.
    """
    found = _found(name, seed, data)
    rows = torch.arange(len(found))
    if len(rows) > records:
        rows = torch.randperm(len(found), generator=Rng.seeded(seed).child("records").torch())
    x = found.x.flatten(1)
    low, high = x.min(0).values, x.max(0).values
    x = torch.where(high > low, (x - low) / (high - low).clamp_min(1e-12), 0.0)
    own = replace(found.take(rows[:records]), x=x[rows[:records]], elsewhere="")  # whatever was read off all rows
    return own, x[rows[records : 2 * records]]


def examples(name: str, seed: int, data: str | None, records: int) -> Examples:
    return drawn(name, seed, data, records)[0]


def _found(name: str, seed: int, data: str | None) -> Examples:
    from coterie.data.sources.embedded import Digits, Forge, Mnist5k, Wave

    rng = Rng.seeded(seed).child("data")
    match name:
        case "forge":
            return Forge(HELD).load(rng=rng)
        case "wave":
            return Wave(HELD).load(rng=rng)
        case "mnist":
            return Mnist5k().load()
        case "digits":
            return Digits().load()
        case "acs_income":
            from coterie.data.sources.acs_income import AcsIncome

            if data is None:
                raise DataMissing("census data were not given; name the folder that holds acs_income with --data")
            return AcsIncome().load(data)
        case _ if name in UCI:
            return _uci(name)
    raise InvalidInput(f"data={name!r} {nearest(name, ['forge', 'wave', 'mnist', 'digits', 'acs_income', *UCI])}")


def _uci(name: str) -> Examples:
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")()
    x, y = torch.from_numpy(bunch.data).float(), torch.from_numpy(bunch.target).long()
    return Examples(x, y, int(y.max()) + 1, name)


def split(found: Examples, parties: int, seed: int) -> VerticalFederation:
    return Vertical(min(parties, found.x.shape[1])).split(found, Rng.seeded(seed).child("columns"))


def numbers(protocol: VerticalKMeans, federation: VerticalFederation) -> int:
    """How many numbers all parties together tell of a record."""
    return protocol.facts(federation).numbers_a_record * federation.clients


def defence_for(
    mechanism: str, epsilon: float, levels: int, ratio: float, federation: VerticalFederation, memoised: bool = False
) -> Defence:
    """``epsilon`` is a value's. Gap-RR reads its range off the data, as published; the others have a public one."""
    widest = float(max(len(own) for own in federation.columns))  # columns are on [0, 1]
    match mechanism:
        case "none":
            return Defence()
        case "discretised":
            return RandomisedResponse(discretised(levels))
        case "gap_rr":
            return RandomisedResponse(gap_rr(epsilon, levels, ratio), memoised=memoised)
        case "perturb_once":
            return PerturbOnce(piecewise(epsilon))
        case "masked_sums":
            return SecureSums()
        case "blinded_sums":
            return Stack(Blinding(), SecureSums())
        case "ckks_sums":
            return CkksSums()
        case "proven_sums":
            return ProvenSums(bound=widest, sampled=4)
        case _ if mechanism in MECHANISMS:
            return RandomisedResponse(MECHANISMS[mechanism](epsilon, levels), widest, memoised)
    raise InvalidInput(f"mechanism={mechanism!r} {nearest(mechanism, [NONE, DISCRETISED, ONCE, *MECHANISMS])}")


# -- how well it clusters ------------------------------------------------------------------------------------------


def utility(
    name: str,
    mechanism: str,
    epsilon: float,
    seed: int,
    levels: int = GAP_LEVELS,
    ratio: float = 0.5,
    parties: int = 2,
    steps: int = 20,
    records: int = HELD,
    data: str | None = None,
    known: int = 0,
) -> Result:
    """The weighted F value (Eq. 11 to 15) from random centres, and what a record has paid in all, if that has a price.

    With ``known`` records, also what the server reads out of the totals: the mean correlation over the columns.
    """
    found = examples(name, seed, data, records)
    federation = split(found, parties, seed)
    protocol = VerticalKMeans(found.classes, steps, start_on=Start.RECORDS)
    defence = defence_for(mechanism, epsilon, levels, ratio, federation)
    tape, read = Tape([CURIOUS_SERVER]) if known else None, None
    with Ring(protocol, federation, None, defence, Roots.seeded(seed), tape, processes=0) as ring:
        state = ring.run()
        labels = ring.models(state)[LABELS][0].long()
        if known:
            attack, held = DistanceGeometry(Seen.TOTALS), known_records(found.x, known, seed)
            read = float(
                correlations(attack.infer(ring.view(CURIOUS_SERVER), held, Rng.seeded(seed)), found.x).nanmean()
            )
    said = defence.guarantee(protocol.facts(federation))
    spent = said.epsilon if said is not None and said.proven else math.inf
    total = spent if math.isfinite(spent) else None
    return {"f": weighted_f(labels, found.y), "total": total, "steps": state.round, "recovery": read}


def at_total(
    name: str, mechanism: str, total: float, seed: int, steps: int, parties: int, records: int, data: str | None = None
) -> Result:
    """``utility`` where ``total`` is all that a record pays for its columns, told once, or on a grid.

    Of answers in every step it is the sum of the epsilons of those about the record, and no price: the record moves
    others' answers, too.
    """
    if mechanism == GRID:
        return on_a_grid(name, total, seed, parties, records, data)
    found = examples(name, seed, data, records)
    federation = split(found, parties, seed)
    protocol = VerticalKMeans(found.classes, steps, start_on=Start.RECORDS)
    values = found.x.shape[1] if mechanism == ONCE else numbers(protocol, federation)
    each = min(MOST_A_VALUE, total / values)
    return utility(name, mechanism, each, seed, 64, 0.5, parties, steps, records, data, KNOWN)


def on_a_grid(name: str, total: float, seed: int, parties: int, records: int, data: str | None = None) -> Result:
    """Li, Wang and Li's: the server is told nothing of single records, so there is no recovery to speak of.

    A record's label, for F, is the centre that is nearest to all its columns, which no party could see.
    """
    found = examples(name, seed, data, records)
    federation = split(found, parties, seed)
    protocol = WeightedGrid(found.classes)
    facts = protocol.facts(federation, DELTA)
    defence = PrivateGrid.planned(total, DELTA, facts)
    with Ring(protocol, federation, None, defence, Roots.seeded(seed), processes=0) as ring:
        state = ring.run()
    joined = torch.empty_like(state.found)
    joined[:, torch.cat(federation.columns)] = state.found
    return {
        "f": weighted_f(nearest_centre(found.x, joined), found.y),
        "total": defence.guarantee(facts).epsilon,
        "steps": state.round,
        "recovery": None,
    }


# -- what the server reads -----------------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def recorded(
    name: str,
    mechanism: str,
    epsilon: float,
    clusters: int,
    steps: int,
    parties: int,
    records: int,
    memoised: bool,
    seed: int,
    data: str | None,
) -> tuple[VerticalFederation, View]:
    """One run and what its server saw. Several attacks read the same one, in jobs that often follow each other."""
    federation = split(examples(name, seed, data, records), parties, seed)
    start = Start.RECORDS if mechanism in (BLINDED, CKKS) else Start.PLUS_PLUS
    defence = defence_for(mechanism, epsilon, GAP_LEVELS, 0.5, federation, memoised)
    tape = Tape([CURIOUS_SERVER])
    protocol = VerticalKMeans(clusters, steps, start_on=start)
    with Ring(protocol, federation, None, defence, Roots.seeded(seed), tape, processes=0) as ring:
        ring.run()
        return federation, ring.view(CURIOUS_SERVER)


def shades(name: str, seed: int, data: str | None) -> Tensor | None:
    """(columns,): what the values of each are multiples of, once they are on [0, 1], as far as that is public.

    Pictures of digits have 17 shades of grey, and the range of each pixel is public here.
    """
    if name != "digits":
        return None
    x = _found(name, seed, data).x.flatten(1)
    wide = x.max(0).values - x.min(0).values
    return torch.where(wide > 0, 1 / 16 / wide.clamp_min(1e-12), 1.0)


def recovery(
    name: str,
    seen: str,
    known: int,
    seed: int,
    mechanism: str = NONE,
    epsilon: float = 1.0,
    clusters: int = 10,
    steps: int = 20,
    parties: int = 2,
    records: int = 2000,
    memoised: bool = False,
    data: str | None = None,
) -> Result:
    """Correlation of what is read with what is true, over the columns that vary; the control has its records mixed up.

    ``told``: the least over columns that known records tell apart; the ``undecided`` others vary elsewhere alone,
    or are like another one in all of them. Where a party's distances are read, it is the first party's columns that
    are looked for. Who knows no record has others' of the same population; in its control these are turned at
    random.
    """
    federation, view = recorded(name, mechanism, epsilon, clusters, steps, parties, records, memoised, seed, data)
    which = Seen(seen)
    party = 0 if which is Seen.PARTY else None
    truth = federation.examples.x if party is None else federation.part(party)
    grid = shades(name, seed, data)
    if grid is not None and party is not None:
        grid = grid[federation.columns[party]]
    attack = DistanceGeometry(which, party, (0.0, 1.0), None if grid is None else tuple(grid.tolist()))
    others = drawn(name, seed, data, records)[1]
    others = others if party is None else others[:, federation.columns[party]]

    def guessed(mixed: int = 0) -> Recovered:
        held = known_records(truth, known, seed, mixed) if known else population(others, seed, mixed)
        return attack.infer(view, held, Rng.seeded(seed))

    guess = guessed()
    scores = correlations(guess, truth)
    varying = scores[~scores.isnan()]
    control = torch.stack([correlations(guessed(turn), truth) for turn in range(1, 9)]).nanmean()
    apart = told_apart(truth[guess.known]) if known else ~scores.isnan()
    told = scores[apart & ~scores.isnan()]
    return {
        "median": float(varying.median()),
        "mean": float(varying.mean()),
        "least": float(varying.min()),
        "told": float(told.min()),
        "undecided": len(varying) - len(told),
        "rank": guess.ranks[0],
        "columns": len(varying),
        "control": float(control),
    }


def told_apart(known: Tensor) -> Tensor:
    """(columns,): in which known records differ, and differ otherwise than in any other column.

    Two columns that are alike in all of them could change places, and nobody who knows no more would notice.
    """
    alike = (known.unsqueeze(2) == known.unsqueeze(1)).all(0).sum(0)
    return (known.amax(0) > known.amin(0)) & (alike == 1)


def population(others: Tensor, seed: int, mixed: int = 0) -> Auxiliary:
    """Others' records; ``mixed``: turned about their mean, so that no column is any more what it says."""
    values = others.double()
    if mixed:
        draws = torch.randn(len(values.T), len(values.T), generator=Rng.seeded(seed).child("turn", mixed).torch())
        values = values.mean(0) + (values - values.mean(0)) @ torch.linalg.qr(draws.double())[0]
    found = Examples(values.float(), torch.zeros(len(values), dtype=torch.int64), 1, POPULATION)
    return Auxiliary(parts={POPULATION: found})


def known_records(truth: Tensor, count: int, seed: int, mixed: int = 0) -> Auxiliary:
    """So many records that the server knows; ``mixed``: with their values dealt to each other."""
    rows = torch.randperm(len(truth), generator=Rng.seeded(seed).child("known").torch())[:count]
    values = truth[rows]
    if mixed:
        values = values[torch.randperm(count, generator=Rng.seeded(seed).child("mixed", mixed).torch())]
    return Auxiliary(Examples(values, torch.zeros(count, dtype=torch.int64), 1, "known", {RECORD: rows}))
