"""LiRA and RMIA by hand; that members are found where there are any, and that nobody is where there are none."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import norm

from coterie.attacks.shadows import (
    METHODS,
    Asked,
    Rehearsed,
    Seat,
    ShadowMembership,
    confidences,
    lira,
    lira_offline,
    matching,
    rmia,
)
from coterie.errors import InvalidInput
from coterie.learn.models.dense import Dense
from coterie.learn.params import stack

NAN = math.nan


def asked(count: int, known: int = 0) -> Asked:
    nothing = torch.zeros(count, dtype=torch.int64)
    return Asked(torch.arange(count), nothing, nothing, torch.arange(count) >= count - known)


def test_confidences_are_log_odds_of_the_true_label() -> None:
    from coterie.data.federation import Examples

    model, draws = Dense((4, 3)), torch.Generator().manual_seed(0)
    examples = Examples(torch.randn(5, 4, generator=draws), torch.tensor([0, 1, 2, 0, 1]), 3, "x")
    params = [model.init(seed) for seed in range(2)]
    found = confidences(model, stack(params), examples, torch.tensor([4, 0]))
    for column, one in enumerate(params):
        chances = model.logits(one, examples.x[[4, 0]]).softmax(1)
        own = chances[torch.arange(2), examples.y[[4, 0]]]
        assert torch.allclose(found[:, column], (own / (1 - own)).log(), atol=1e-4)


def test_lira_by_hand() -> None:
    """With as many rehearsals as make the common variance matter little, it is the ratio of two normal densities."""
    draws = torch.Generator().manual_seed(0)
    inside = 2 + 0.5 * torch.randn(20_000, 1, generator=draws)
    outside = 1.5 * torch.randn(20_000, 1, generator=draws)
    seen = torch.tensor([1.2])
    expected = norm.logpdf(1.2, 2, 0.5) - norm.logpdf(1.2, 0, 1.5)
    assert float(lira(seen, Rehearsed(inside, outside), asked(1))) == pytest.approx(expected, abs=0.05)
    assert float(lira_offline(seen, Rehearsed(inside, outside), asked(1))) == pytest.approx(1.2 / 1.5, abs=0.03)


def test_few_rehearsals_share_one_variance() -> None:
    """Two records whose own two rehearsals agree by chance and differ by chance: neither is taken at its word."""
    inside = torch.tensor([[1.0, 0.0], [1.0, 4.0]])
    outside = torch.tensor([[0.0, -1.0], [0.0, 1.0]])
    scores = lira(torch.tensor([1.0, 2.0]), Rehearsed(inside, outside), asked(2))
    assert bool(scores.isfinite().all())
    assert float(scores.max()) < 3


def test_a_record_that_was_never_in_moves_as_the_others_do() -> None:
    inside = torch.tensor([[2.0, NAN], [2.2, NAN]])
    outside = torch.tensor([[0.0, 1.0], [0.2, 1.2]])
    scores = lira(torch.tensor([2.1, 3.1]), Rehearsed(inside, outside), asked(2))
    assert scores[0] == pytest.approx(float(scores[1]), rel=1e-4)


def test_rmia_by_hand() -> None:
    """p(x) is 0.5; the record's ratio is 1.6, the known ones' 0.4, 0.7 and 1.2: it dominates two by a factor 2."""
    seen = torch.logit(torch.tensor([0.8, 0.2, 0.35, 0.6]))
    half = torch.zeros(2, 4)  # p = 0.5 in every rehearsal
    scores = rmia(seen, Rehearsed(half, half), asked(4, known=3))
    assert float(scores[0]) == pytest.approx((2 + 1.6 / 2.6) / 4)
    assert float(rmia(seen, Rehearsed(half, half), asked(4, known=3), gamma=1.0)[0]) == pytest.approx(
        (3 + 1.6 / 2.6) / 4
    )


def test_clusters_are_known_by_what_they_are_sure_of() -> None:
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    ours = torch.tensor([[5.0, 0, 0], [4, 0, 0], [0, 5, 0], [0, 4, 0], [0, 0, 5], [0, 0, 4]])
    theirs = ours[:, [2, 0, 1]] + 0.3
    assert matching(ours, theirs, labels).tolist() == [1, 2, 0]
    assert (
        matching(ours, theirs[:, :2], labels).tolist()[1:] == [1, 0] or len(matching(ours, theirs[:, :2], labels)) == 3
    )


def game(shift: float, records: int = 400, rehearsals: int = 12) -> tuple[torch.Tensor, Rehearsed, Asked]:
    """Records of which the first half was in; being in shifts a confidence by so much."""
    draws = torch.Generator().manual_seed(0)
    base = 2 * torch.randn(records, generator=draws)
    inside = torch.arange(records) < records // 2
    noise = torch.randn(rehearsals + 1, records, generator=draws)
    coins = torch.rand(rehearsals, records, generator=draws) < 0.5
    looks = base + noise[1:] + shift * coins
    rehearsed = Rehearsed(looks.masked_fill(~coins, NAN), looks.masked_fill(coins, NAN))
    return base + noise[0] + shift * inside, rehearsed, replace(asked(records), known=torch.arange(records) % 8 == 7)


@pytest.mark.parametrize("method", METHODS)
def test_members_are_found_where_there_are_any(method: str) -> None:
    from coterie.measure.judge import YesNo, judge

    for shift, low, high in ((2.0, 0.8, 1.0), (0.0, 0.4, 0.6)):
        seen, rehearsed, questions = game(shift)
        looked = Rehearsed(rehearsed.inside.unsqueeze(1), rehearsed.outside.unsqueeze(1))
        attack = ShadowMembership(Seat.FINAL, Dense((2, 2)), questions, looked, method=method)
        guess = attack.compare(seen.unsqueeze(0))
        assert len(guess.scores) == 350  # nothing is said of those that it knows
        truth = YesNo({number: number < 200 for number in guess.scores if isinstance(number, int)})
        assert low < judge(guess, truth).score < high


def test_looks_are_averaged_and_may_be_fewer() -> None:
    seen, rehearsed, questions = game(1.0)
    twice = Rehearsed(*(torch.stack([side, side + 1], 1) for side in (rehearsed.inside, rehearsed.outside)))
    attack = ShadowMembership(Seat.PUBLISHED, Dense((2, 2)), questions, twice, rounds=(3, 4))
    both = attack.compare(torch.stack([seen, seen + 1]))
    one = attack.compare(seen.unsqueeze(0))
    assert both.scores == pytest.approx(one.scores, abs=1e-3)


def test_what_cannot_be_is_refused() -> None:
    seen, rehearsed, questions = game(1.0)
    with pytest.raises(InvalidInput, match="method='lyra'"):
        ShadowMembership(Seat.FINAL, Dense((2, 2)), questions, rehearsed, method="lyra")
    with pytest.raises(InvalidInput, match="rounds"):
        ShadowMembership(Seat.PUBLISHED, Dense((2, 2)), questions, rehearsed)
    with pytest.raises(InvalidInput, match="one column a question"):
        ShadowMembership(Seat.FINAL, Dense((2, 2)), questions, rehearsed).compare(seen[:3].unsqueeze(0))
