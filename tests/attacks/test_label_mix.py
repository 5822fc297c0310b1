"""Which labels the others hold shows in what they moved, and whoever is imagined in their place holds the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.attacks.federations import LOCAL, MODEL, marked_examples, passive

from coterie.attacks.label_mix import label_mixes, mix_read, of_strangers
from coterie.attacks.others import Behind
from coterie.attacks.property import Known, PassiveProperty
from coterie.attacks.updates import Imitation, Observed
from coterie.data.auxiliary import Auxiliary
from coterie.learn.params import Params, flatten, map_leaves
from coterie.rng import Rng


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("seed", range(4))
def test_where_labels_alone_move_a_model_any_mix_is_read(classes: int, seed: int) -> None:
    """A law of what moves linearly: also of a mix that lies beyond all those that were learnt from."""
    draws = np.random.default_rng(seed)
    moves = draws.normal(size=(classes, 40))
    mixes = draws.dirichlet(np.full(classes, 0.5), 24)
    updates = {"leaf": torch.from_numpy(mixes @ moves)}
    for mix in [*draws.dirichlet(np.full(classes, 0.5), 5), np.eye(classes)[0]]:
        read = mix_read(updates, mixes, {"leaf": torch.from_numpy(mix @ moves)})
        assert read.sum() == pytest.approx(1)
        assert np.allclose(read, mix, atol=0.12)
    assert np.allclose(mix_read({"leaf": torch.zeros(24, 3)}, mixes, {"leaf": torch.ones(3)}), mixes.mean(0))


def test_mixes_by_hand() -> None:
    labels = torch.tensor([0, 0, 1, 2])
    rows = torch.tensor([[[0, 1], [2, -1]], [[3, 3], [-1, -1]]])  # two steps; negative rows are none
    assert np.allclose(label_mixes(labels, rows, 3), np.array([[2 / 3, 1 / 3, 0], [0, 0, 1]]))
    assert np.allclose(of_strangers(np.array([0.5, 0.5]), np.array([0.8, 0.2]), 4), [0.4, 0.6])
    assert np.allclose(of_strangers(np.array([0.1, 0.9]), np.array([0.8, 0.2]), 2), [0, 1])  # fewer than none are none


def setting(**settings: Any) -> tuple[PassiveProperty, Known, Observed, dict[str, torch.Tensor]]:
    """What three clients moved of which nine rows in ten are of class 1, and what is imagined in their place."""
    examples = marked_examples(800)
    known = Known.of(Auxiliary.by_property(examples, examples.tags["mark"] == 1))
    start, draws = MODEL.init(0), np.random.default_rng(0)
    places = [(examples.y == label).nonzero().flatten().numpy() for label in (0, 1)]
    rows = np.stack([np.concatenate([draws.choice(places[0], 5), draws.choice(places[1], 43)]) for _ in range(3)])
    real = Imitation(MODEL, LOCAL).train(start, examples, torch.from_numpy(rows).unsqueeze(1), Rng.seeded(1))
    attack = passive(others=8, each=8, **settings)
    seen = map_leaves(lambda leaf: leaf.mean(0), real)
    observed = Observed(0, 0, start, seen)
    return attack, known, observed, attack.imagined(observed, known, Rng.seeded(2))


def test_others_are_imagined_with_the_labels_that_were_read() -> None:
    attack, known, observed, blind = setting()
    behind, rng = Behind(None, 0.0, (3, 3)), Rng.seeded(2)
    matched = attack.matched(observed, known, blind, observed.update, behind, rng)
    real = flatten(observed.update, 0)

    def away(updates: Params) -> float:
        return float((flatten(attack.aggregated(updates, behind, rng)).mean(0) - real).norm())

    assert away(matched) < 0.5 * away(blind)
    for name, leaf in blind.items():  # the likes of the victim stay
        assert torch.equal(matched[name][attack.others :], leaf[attack.others :])


@pytest.mark.parametrize(
    ("settings", "count"), [({"skew": None}, 3), ({"keep_own": True}, 3), ({}, 1)], ids=["published", "own", "single"]
)
def test_others_stay_as_they_are_where_nothing_is_read(settings: dict[str, Any], count: int) -> None:
    attack, known, observed, blind = setting(**settings)
    same = attack.matched(observed, known, blind, observed.update, Behind(None, 0.0, (count, count)), Rng.seeded(2))
    assert all(torch.equal(same[name], leaf) for name, leaf in blind.items())
