"""Columns from distances: exact where the algebra says so, chance where there is nothing, and refused where unseen."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.ring import play
from torch import Tensor

from coterie.attacks.distance_geometry import (
    CURIOUS_SERVER,
    POPULATION,
    RECORD,
    DistanceGeometry,
    Recovered,
    Seen,
    shapes,
    steps_of,
)
from coterie.attacks.registration import _peeled, few_known, spanned
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples, VerticalFederation
from coterie.data.partition.features import Vertical
from coterie.defences.blinding import Blinding
from coterie.defences.randomised_response.defence import PerturbOnce, RandomisedResponse
from coterie.defences.randomised_response.mechanisms import gap_rr, generalised, piecewise
from coterie.defences.secure_sums import SecureSums
from coterie.errors import InvalidInput, NotPermitted
from coterie.flow.guard import Defence
from coterie.flow.stack import Stack
from coterie.measure.columns import TrueColumns, correlations
from coterie.measure.judge import judge
from coterie.protocols.clusterings.vertical_kmeans import Start, VerticalKMeans
from coterie.recipes.vertical_kmeans.runs import told_apart
from coterie.rng import Rng
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel, View

COLUMNS, RECORDS = 6, 400
PARTY = ThreatModel("party 1", clients=frozenset({1}))


@cache
def federation() -> VerticalFederation:
    draws = torch.Generator().manual_seed(3)
    mixing = torch.eye(COLUMNS) + 0.2 * torch.randn(COLUMNS, COLUMNS, generator=draws)
    x = torch.rand(RECORDS, COLUMNS, generator=draws) @ mixing + 3
    return Vertical(columns=((0, 1), (2, 3, 4), (5,))).split(
        Examples(x, torch.zeros(RECORDS, dtype=torch.int64), 1, "mixed"), Rng.seeded(0)
    )


def seen(defence: Defence | None = None, start: Start = Start.PLUS_PLUS, steps: int = 12, clusters: int = 8) -> View:
    tape = Tape([CURIOUS_SERVER, PARTY])
    done = play(VerticalKMeans(clusters, steps, start_on=start), federation(), None, defence=defence, tape=tape)
    return done.ring.view(CURIOUS_SERVER)


plain = cache(seen)


def known(count: int, columns: Tensor | None = None, shuffled: bool = False, seed: int = 5) -> Auxiliary:
    draws = torch.Generator().manual_seed(seed)
    rows = torch.randperm(RECORDS, generator=draws)[:count]
    x = truth(columns)[rows]
    x = x[torch.randperm(count, generator=draws)] if shuffled else x
    return Auxiliary(Examples(x, torch.zeros(count, dtype=torch.int64), 1, "known", {RECORD: rows}))


def truth(columns: Tensor | None = None) -> Tensor:
    x = federation().examples.x
    return x if columns is None else x[:, columns]


def recovery(
    view: View, count: int, attack: DistanceGeometry, shuffled: bool = False, seed: int = 5
) -> tuple[Tensor, Recovered]:
    columns = None if attack.party is None else federation().columns[attack.party]
    guess = attack.infer(view, known(count, columns, shuffled, seed), Rng.seeded(0))
    return correlations(guess, truth(columns)), guess


@pytest.mark.parametrize("start", Start)
def test_totals_give_every_column_of_every_party_away(start: Start) -> None:
    found, guess = recovery(plain(start=start), COLUMNS + 2, DistanceGeometry())
    assert guess.ranks == (COLUMNS,)
    assert float(found.min()) > 0.999
    assert float((guess.columns - truth()).abs().max()) < 0.05


@pytest.mark.parametrize("party", [0, 1])
def test_a_party_s_distances_give_its_columns_away(party: int) -> None:
    width = len(federation().columns[party])
    found, guess = recovery(plain(), width + 2, DistanceGeometry(Seen.PARTY, party))
    assert guess.ranks == (width,)
    assert float(found.min()) > 0.999


def test_the_few_known_decide_what_they_span() -> None:
    """Three known records span two directions of six; seven span all of them, and then nothing is left to guess."""
    attack = DistanceGeometry()
    few, all_but, full = (recovery(plain(), count, attack)[0] for count in (3, 5, COLUMNS + 1))
    assert 0.1 < float(few.mean()) < float(all_but.mean()) < 0.99
    assert float(full.min()) > 0.999


def test_public_bounds_decide_what_known_records_do_not() -> None:
    """Known records that do not differ in two of four columns leave a plane to be turned; bounds turn it."""
    draws = torch.Generator().manual_seed(2)
    x = torch.rand(RECORDS, 4, generator=draws, dtype=torch.float64) ** torch.tensor([1, 1, 3, 6])
    x[:5, 2:] = 0.0
    turn = torch.linalg.qr(torch.randn(4, 4, generator=draws, dtype=torch.float64))[0]
    points, rows = (x - x.mean(0)) @ turn, torch.arange(5)
    assert spanned(x[:5]) == 2
    free, bound = (few_known(points, rows, x[:5], bounds) for bounds in (None, (0.0, 1.0)))
    torch.testing.assert_close(free[:, :2], x[:, :2])
    assert float(free[:, 2:].std()) < 1e-9
    table = torch.corrcoef(torch.cat([bound[:, 2:], x[:, 2:]], 1).T)[:2, 2:]
    assert sorted(table.argmax(1).tolist()) == [0, 1]  # which of the two is which, nobody can say
    assert float(table.amax(1).min()) > 0.95


def test_one_column_that_no_known_record_tells_of_is_found_beside_one_that_never_varies() -> None:
    draws = torch.Generator().manual_seed(6)
    x = torch.rand(RECORDS, 5, generator=draws, dtype=torch.float64)
    x[:, 3] = 0.0
    x[:, 4] *= torch.rand(RECORDS, generator=draws) < 0.1
    x[:9, 4] = 0.0
    turn = torch.linalg.qr(torch.randn(5, 5, generator=draws, dtype=torch.float64))[0]
    found = few_known(((x - x.mean(0)) @ turn)[:, :5], torch.arange(9), x[:9], (0.0, 1.0))
    for column in (0, 1, 2, 4):
        assert float(torch.corrcoef(torch.stack([found[:, column], x[:, column]]))[0, 1]) > 0.99


def test_far_fewer_known_records_than_columns_do_if_many_values_lie_on_a_bound() -> None:
    """Nine known records, sixteen columns, half of the values zero: eight directions, and bounds decide the rest."""
    draws = torch.Generator().manual_seed(4)
    x = torch.rand(RECORDS, 16, generator=draws) * (torch.rand(RECORDS, 16, generator=draws) < 0.5)
    whole = Examples(x, torch.zeros(RECORDS, dtype=torch.int64), 1, "sparse")
    tape = Tape([CURIOUS_SERVER])
    split = Vertical(3).split(whole, Rng.seeded(0))
    view = play(VerticalKMeans(10, 12), split, None, defence=SecureSums(), tape=tape).ring.view(CURIOUS_SERVER)
    rows = torch.arange(9)
    held = Auxiliary(Examples(x[rows], torch.zeros(9, dtype=torch.int64), 1, "known", {RECORD: rows}))
    free, bound = (DistanceGeometry(bounds=public).infer(view, held, Rng.seeded(0)) for public in (None, (0.0, 1.0)))
    assert bound.ranks == (16,)
    assert float(correlations(free, x).min()) < 0.9
    assert float(correlations(bound, x).min()) > 0.99


def test_others_of_the_same_population_serve_for_known_records() -> None:
    """No record of the table is known: halves of one sample, of which the attack is given the other's."""
    draws = torch.Generator().manual_seed(9)
    skewed = torch.rand(2 * RECORDS, 4, generator=draws) ** torch.tensor([1.0, 2.0, 3.0, 4.0]) * torch.arange(1, 5)
    skewed[:, 1] += skewed[:, 0]
    ours, theirs = (
        Examples(part, torch.zeros(RECORDS, dtype=torch.int64), 1, "half") for part in skewed.split(RECORDS)
    )
    tape = Tape([CURIOUS_SERVER])
    split = Vertical(2).split(ours, Rng.seeded(0))
    view = play(VerticalKMeans(8, 6), split, None, tape=tape).ring.view(CURIOUS_SERVER)
    guess = DistanceGeometry().infer(view, Auxiliary(parts={POPULATION: theirs}), Rng.seeded(0))
    assert len(guess.known) == 0
    assert float(correlations(guess, ours.x).min()) > 0.95


def test_fresh_scales_of_blinded_totals_average_out() -> None:
    """A record's range is hidden by a factor of 2^-4 to 2^4 in each step; over twelve the middle of them shows it."""
    blinded = seen(Stack(Blinding(), SecureSums()), Start.RECORDS, 12)
    wide = shapes(blinded)[:, -2]
    last = plain(start=Start.RECORDS)
    bare = steps_of(last)[-1].squared
    truly = (bare.amax(1) - bare.amin(1)).log2()
    single = steps_of(blinded)[-1].squared
    once = (single.amax(1) - single.amin(1)).log2()
    over, one = (float(torch.corrcoef(torch.stack([found, truly]))[0, 1]) for found in (wide, once))
    assert over > one + 0.2


def test_subtracting_the_minimum_changes_nothing() -> None:
    """As published it is meant to cut what does not matter; centring by rows does not even see it."""
    from coterie.defences.randomised_response.mechanisms import discretised

    fine = RandomisedResponse(discretised(4096))
    found, _ = recovery(seen(fine, Start.RECORDS), COLUMNS + 6, DistanceGeometry())
    assert float(found.min()) > 0.99


def test_masked_sums_leave_the_totals() -> None:
    """And nothing else: the same attack on the totals is as good as without masks, on a party it is refused."""
    masked = seen(SecureSums(), steps=4)
    found, _ = recovery(masked, COLUMNS + 2, DistanceGeometry())
    assert float(found.min()) > 0.999
    with pytest.raises(NotPermitted, match="sees totals alone: nothing that party 0 sent can be read"):
        recovery(masked, COLUMNS + 2, DistanceGeometry(Seen.PARTY, 0))


def test_a_party_is_not_shown_what_the_server_opens() -> None:
    tape = Tape([CURIOUS_SERVER, PARTY])
    done = play(VerticalKMeans(3, 2), federation(), None, defence=SecureSums(), tape=tape)
    with pytest.raises(NotPermitted):
        DistanceGeometry().infer(done.ring.view(PARTY), known(20), Rng.seeded(0))


def test_assignments_are_a_floor_below_distances() -> None:
    full = recovery(plain(), 40, DistanceGeometry())[0]
    steps = recovery(plain(), 40, DistanceGeometry(Seen.ASSIGNMENTS))[0]
    last = recovery(plain(), 40, DistanceGeometry(Seen.LAST))[0]
    assert 0.2 < float(last.mean()) <= float(steps.mean()) + 0.05 < float(full.mean())


@pytest.mark.parametrize("which", Seen)
def test_known_records_that_are_mixed_up_give_chance(which: Seen) -> None:
    """The control: over 40 sets of known records the mean correlation has a deviation below 0.1, of a real one's 0.99.

    A single wrong fit may well point along a column or against it, so one says nothing.
    """
    attack = DistanceGeometry(which, 1 if which is Seen.PARTY else None)
    found = [float(recovery(plain(), 40, attack, True, seed)[0].mean()) for seed in range(40)]
    assert abs(sum(found) / len(found)) < 0.4


def test_fresh_noise_averages_out_over_steps_and_memoised_noise_does_not() -> None:
    """The same channel; twelve steps from records, in which most distances stay on their level."""
    channel = gap_rr(1.0, 33, 0.5)
    fresh, kept = (seen(RandomisedResponse(channel, memoised=memo), Start.RECORDS, 12) for memo in (False, True))
    once = recovery(seen(RandomisedResponse(channel), Start.RECORDS, 2), 200, DistanceGeometry())[0].mean()
    averaged, memoised = (float(recovery(view, 200, DistanceGeometry())[0].mean()) for view in (fresh, kept))
    assert averaged > float(once) + 0.03
    assert averaged > memoised + 0.02


def test_noise_that_holds_takes_the_columns_away() -> None:
    noisy = seen(RandomisedResponse(generalised(0.1, 32), bound=60.0), Start.RECORDS, 3)
    assert float(recovery(noisy, 100, DistanceGeometry())[0].mean()) < 0.4
    once = seen(PerturbOnce(piecewise(0.1), -5.0, 10.0), Start.RECORDS, 12)
    assert float(recovery(once, 100, DistanceGeometry())[0].mean()) < 0.4


def test_the_finding() -> None:
    _, guess = recovery(plain(), COLUMNS + 2, DistanceGeometry())
    found = judge(guess, TrueColumns(truth()), attack="totals")
    assert found.measure == "correlation"
    assert found.score > 0.999
    assert found.units == COLUMNS


def test_a_column_that_does_not_vary_is_not_scored() -> None:
    _, guess = recovery(plain(), COLUMNS + 2, DistanceGeometry())
    flat = truth().clone()
    flat[:, 2] = 1.0
    found = correlations(guess, flat)
    assert found.isnan().tolist() == [False, False, True, False, False, False]
    still = replace(guess, columns=torch.zeros_like(guess.columns))
    assert correlations(still, truth()).abs().max() == 0


def test_what_is_asked_wrongly() -> None:
    with pytest.raises(InvalidInput, match='party=None must be given for "a party\'s distances"'):
        DistanceGeometry(Seen.PARTY)
    with pytest.raises(InvalidInput, match="must have 'record': which ones they are"):
        DistanceGeometry().infer(plain(), Auxiliary(federation().examples), Rng.seeded(0))
    with pytest.raises(InvalidInput, match="known records=1 must be at least 2"):
        recovery(plain(), 1, DistanceGeometry())


def test_a_public_grid_tells_columns_apart_that_one_known_record_mixes() -> None:
    """Of two columns in which one known record alone differs, that record decides one direction; the grid the other."""
    draws = torch.Generator().manual_seed(3)
    x = torch.randint(17, (400, 9), generator=draws).double() / 16
    x[:, 6:] *= (torch.rand(400, 3, generator=draws) < 0.2).double()
    rows = torch.arange(12)
    x[rows, 6:] = 0.0
    x[3, 6], x[3, 7] = 8 / 16, 5 / 16  # and the last column is the same in all known records
    turn = torch.linalg.qr(torch.randn(9, 9, generator=draws, dtype=torch.float64))[0]
    found = few_known((x - x.mean(0)) @ turn, rows, x[rows], (0.0, 1.0), torch.full((9,), 1 / 16))
    assert float((found - x).abs().max()) < 1e-6


def test_columns_that_are_found_help_to_find_the_others() -> None:
    """A search has ended with two columns mixed, of which a known record tells once the others are out of the way."""
    draws = torch.Generator().manual_seed(5)
    x = torch.randint(17, (300, 6), generator=draws).double() / 16
    x[:, 4:] *= (torch.rand(300, 2, generator=draws) < 0.1).double()
    rows = torch.arange(4)  # fewer than columns: by themselves they leave three directions open
    x[rows, 4:] = 0.0
    x[0, 4] = 5 / 16
    found = x.clone()
    found[:, 4:] = x[:, 4:] @ torch.tensor([[0.8, 0.6], [-0.6, 0.8]], dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(6, 6, generator=draws, dtype=torch.float64))[0]
    points = (x - x[rows].mean(0)) @ turn
    peeled = _peeled(found, points, rows, x[rows], (0.0, 1.0), torch.full((6,), 1 / 16))
    assert float((found - x).abs().max()) > 0.1
    assert float((peeled - x).abs().max()) < 1e-6


def test_twins_among_known_records_could_change_places_and_the_server_would_see_the_same() -> None:
    """So nobody decides which is which, and ``told_apart`` leaves both out."""
    draws = torch.Generator().manual_seed(6)
    x = torch.rand(80, 5, generator=draws)
    rows = torch.arange(10)
    x[rows, 3] = x[rows, 4]
    swapped = x[:, [0, 1, 2, 4, 3]]
    assert torch.equal(x[rows], swapped[rows])
    assert not torch.equal(x, swapped)
    assert told_apart(x[rows]).tolist() == [True, True, True, False, False]
    given = []
    for table in (x, swapped):
        examples = Examples(table, torch.zeros(80, dtype=torch.int64), 1, "twins")
        parties = Vertical(columns=((0, 1, 3), (2, 4))).split(examples, Rng.seeded(0))
        tape = Tape([CURIOUS_SERVER])
        view = play(VerticalKMeans(3, 6), parties, None, tape=tape).ring.view(CURIOUS_SERVER)
        given.append(torch.cat([step.squared for step in steps_of(view)], 1))
    assert torch.allclose(given[0], given[1], atol=1e-5)
