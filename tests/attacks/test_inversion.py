"""Gradient inversion: pictures come back from one step, by every seat that sees an upload, and labels before them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.ring import play
from torch import Tensor

from coterie.attacks.inversion import CURIOUS_SERVER, GradientInversion, _Search, nearest, seen_through
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples, Federation, Shards
from coterie.data.sources.embedded import Digits
from coterie.defences.secure_sums import SecureSums
from coterie.errors import InvalidInput, NotPermitted
from coterie.learn.models.bundled import StridedCnn
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import Model
from coterie.learn.sgd import Local
from coterie.measure.picture_quality import matched, ssim
from coterie.protocols.fedavg import FedAvg
from coterie.rng import Rng
from coterie.wire.tape import Tape
from coterie.wire.view import Entries, ThreatModel

SHAPE = (1, 8, 8)
CNN = StridedCnn(10, SHAPE, width=8)
ONE = Local(steps=1, batch_size=1, lr=0.1)
TAP = ThreatModel("tap", taps=frozenset({1}))


def federation(each: int, clients: int = 3, seed: int = 3) -> Federation:
    """Clients with ``each`` digits, all of different classes where there are enough."""
    digits = Digits().load()
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(seed))
    parts = [order[client * each : (client + 1) * each] for client in range(clients)]
    groups = torch.zeros(clients, dtype=torch.int64)
    return Federation(digits, Shards.of(parts), Shards.of([order[-20:]] * clients), groups)


def pictures(fed: Federation, client: int) -> Tensor:
    return fed.examples.x[fed.train[client]]


def taped(fed: Federation, model: Model, local: Local, threat: ThreatModel, folder: Path | None = None) -> Tape:
    tape = Tape([threat], folder)
    play(FedAvg(rounds=1, local=local), fed, model, tape=tape)
    return tape


@pytest.mark.parametrize("threat", [CURIOUS_SERVER, TAP], ids=lambda threat: threat.name)
def test_one_picture_comes_back_from_one_step(threat: ThreatModel) -> None:
    fed = federation(1)
    view = taped(fed, CNN, ONE, threat).view(threat)
    found = GradientInversion(CNN, ONE, SHAPE, threat, clients=(1,), iterations=400).infer(
        view, Auxiliary(), Rng.seeded(0)
    )
    assert list(found.of) == [1]
    assert float(ssim(found.of[1], pictures(fed, 1))) > 0.9


def test_from_a_recording(tmp_path: Path) -> None:
    fed = federation(1)
    taped(fed, CNN, ONE, CURIOUS_SERVER, tmp_path)
    view = Tape([CURIOUS_SERVER], tmp_path).view(CURIOUS_SERVER)
    found = GradientInversion(CNN, ONE, SHAPE, clients=(2,), iterations=400).infer(view, Auxiliary(), Rng.seeded(0))
    assert float(ssim(found.of[2], pictures(fed, 2))) > 0.9


def test_a_dense_first_layer_hands_its_input_over() -> None:
    fed, model = federation(1), Dense((64, 16, 10))
    tape = taped(fed, model, ONE, CURIOUS_SERVER)
    view = tape.view(CURIOUS_SERVER)
    moved = {name: leaf[0, 0] - view.received(0).values[name][0] for name, leaf in view.sent(0).values.items()}
    known = seen_through(moved, SHAPE)
    assert known is not None
    torch.testing.assert_close(known, pictures(fed, 0), atol=1e-3, rtol=0)


def test_a_small_batch_and_its_labels() -> None:
    """Four pictures in one step: every label is right, and most pictures can be told."""
    local = Local(steps=1, batch_size=4, lr=0.1)
    fed = federation(4)
    view = taped(fed, CNN, local, CURIOUS_SERVER).view(CURIOUS_SERVER)
    attack = GradientInversion(CNN, local, SHAPE, clients=(0,), iterations=500)
    upload = {name: leaf[0, 0] for name, leaf in view.sent(0).values.items()}
    given = nearest(view.received(0).values, upload)
    moved = {name: leaf - given[name] for name, leaf in upload.items()}
    labels = attack.labels(given, moved, Rng.seeded(0))
    assert sorted(labels.flatten().tolist()) == sorted(fed.examples.y[fed.train[0]].tolist())
    found, truth = attack.infer(view, Auxiliary(), Rng.seeded(0)).of[0], pictures(fed, 0)
    pairs = matched(found, truth)
    told = ssim(found[[one for one, _ in pairs]], truth[[other for _, other in pairs]])
    blank = ssim(torch.full_like(truth, float(truth.mean())), truth)
    assert float(told.mean()) > float(blank.mean()) + 0.3


def test_several_steps_are_imitated() -> None:
    """Two steps over a batch of one each: the update is the sum of two gradients at different models."""
    local = Local(steps=2, batch_size=1, lr=0.1)
    fed = federation(2)
    view = taped(fed, CNN, local, CURIOUS_SERVER).view(CURIOUS_SERVER)
    found = (
        GradientInversion(CNN, local, SHAPE, clients=(1,), iterations=500).infer(view, Auxiliary(), Rng.seeded(0)).of[1]
    )
    truth = pictures(fed, 1)
    pairs = matched(found, truth)
    assert float(ssim(found[[one for one, _ in pairs]], truth[[other for _, other in pairs]]).mean()) > 0.6


def test_a_tapped_share_gives_less_and_none_is_refused() -> None:
    fed = federation(1)
    scores = []
    for share, entries in ((1.0, Entries.RANDOM), (0.3, Entries.LAST), (0.0, Entries.RANDOM)):
        threat = replace(TAP, share=share, entries=entries)
        attack = GradientInversion(CNN, ONE, SHAPE, threat, clients=(1,), iterations=300)
        view = taped(fed, CNN, ONE, threat).view(threat)
        if share == 0:
            with pytest.raises(NotPermitted, match="no entry of the upload was read"):
                attack.infer(view, Auxiliary(), Rng.seeded(0))
        else:
            found = attack.infer(view, Auxiliary(), Rng.seeded(0))
            scores.append(float(ssim(found.of[1], pictures(fed, 1))))
    assert scores[0] > scores[1] + 0.2


def test_what_is_sealed_cannot_be_inverted() -> None:
    tape = Tape([CURIOUS_SERVER])
    play(FedAvg(rounds=1, local=ONE), federation(1), CNN, tape=tape, defence=SecureSums())
    with pytest.raises(NotPermitted, match="sees nothing"):
        GradientInversion(CNN, ONE, SHAPE).infer(tape.view(CURIOUS_SERVER), Auxiliary(), Rng.seeded(0))


def test_of_several_starts_the_one_that_explains_most_is_kept() -> None:
    start, moved, rng = CNN.init(0), CNN.init(1), Rng.seeded(0)
    update = {name: moved[name] - leaf for name, leaf in start.items()}
    attack = GradientInversion(CNN, ONE, SHAPE, iterations=3)
    search = _Search(attack, start, update, attack.labels(start, update, rng.child("labels")))
    streams = [rng.child("start"), *(rng.child("start", number) for number in (1, 2, 3))]
    tried = [attack.descended(search, stream) for stream in streams]
    assert len({loss for _, loss in tried}) == 4
    kept = replace(attack, tries=4).inverted(start, update, rng)
    assert torch.equal(kept, min(tried, key=lambda one: one[1])[0])


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(InvalidInput, match="an update of more shows none of them"):
        GradientInversion(CNN, Local(steps=10, batch_size=50), SHAPE)
    with pytest.raises(InvalidInput, match="span"):
        GradientInversion(CNN, ONE, SHAPE, span=(1.0, 0.0))


def test_data_of_another_range() -> None:
    digits = federation(1)
    shifted = Examples(digits.examples.x * 2 - 1, digits.examples.y, 10, "shifted")
    fed = replace(digits, examples=shifted)
    view = taped(fed, CNN, ONE, CURIOUS_SERVER).view(CURIOUS_SERVER)
    attack = GradientInversion(CNN, ONE, SHAPE, clients=(0,), span=(-1.0, 1.0), iterations=400, tv=1e-6)
    found = attack.infer(view, Auxiliary(), Rng.seeded(0))
    assert float(ssim(found.of[0], pictures(fed, 0), 2.0)) > 0.9
