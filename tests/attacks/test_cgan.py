"""The insider's generator: on its own samples, from what it was given and overheard, and to the same bytes again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.ring import Play, play
from torch import Tensor

from coterie.attacks.cgan import CganReconstruction, batches, eavesdropper, mixed
from coterie.attacks.inversion import CURIOUS_SERVER
from coterie.attacks.updates import Imitation
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples, Federation, Shards
from coterie.data.partition.features import rotate
from coterie.data.sources.embedded import Digits
from coterie.defences.secure_sums import SecureSums
from coterie.errors import AttackGaveUp, InvalidInput
from coterie.learn.generative.duel import Bout, Moved, Samples
from coterie.learn.generative.losses import distance, huber, hybrid, mismatch, sameness
from coterie.learn.generative.turning import angles, turned
from coterie.learn.models.bundled import StridedCnn
from coterie.learn.models.model import outputs
from coterie.learn.params import Params, pick
from coterie.learn.sgd import Local
from coterie.protocols.fedavg import FedAvg
from coterie.rng import Rng
from coterie.wire.codec import encode
from coterie.wire.tape import Tape
from coterie.wire.view import OVERHEARD, Entries

MODEL = StridedCnn(11, (1, 8, 8), width=4)
LOCAL = Local(steps=2, batch_size=8, lr=0.1)
PROTOCOL = FedAvg(rounds=4, local=LOCAL)
VICTIM = 1


def federation() -> Federation:
    digits = Digits().load()
    rows = torch.arange(240).reshape(3, 80)
    groups = torch.zeros(3, dtype=torch.int64)
    return Federation(digits, Shards.of(list(rows)), Shards.of([torch.arange(300, 320)] * 3), groups)


def attacker(share: float = 1.0, fed: Federation | None = None, **how: Any) -> CganReconstruction:
    own = fed or federation()
    data = Auxiliary(own.examples.take(own.train[0]))
    chosen: dict[str, Any] = {
        "bout": Bout(steps=3, batch=8, likeness=0.5),
        "fake": 10,
        "each": 3,
        "width": 4,
        "active_from": 2,
    } | how
    return CganReconstruction(eavesdropper(0, VICTIM, share), VICTIM, MODEL, LOCAL, data, **chosen)


def run(attack: CganReconstruction, fed: Federation | None = None, **how: Any) -> Play:
    return play(PROTOCOL, fed or federation(), MODEL, adversaries=[attack], **how)


def drawn(attack: CganReconstruction, done: Play) -> Tensor:
    guess = attack.pictures(done.ring.memory[-1], Rng.seeded(9))
    assert list(guess.of) == list(range(10))
    return torch.stack(list(guess.of.values()))


def test_it_draws_pictures_of_every_class_and_notes_its_losses() -> None:
    attack = attacker()
    done = run(attack)
    made = drawn(attack, done)
    assert made.shape == (10, 3, 1, 8, 8)
    assert 0 <= float(made.min()) <= float(made.max()) <= 1
    assert [round for round, _, _ in done.ring.memory[-1]["losses"]] == [0, 1, 2, 3]


@pytest.mark.parametrize("attack", [attacker(), attacker().to_be_read(4)], ids=["as it is", "to be read"])
def test_a_killed_attack_goes_on_to_the_same_bytes(attack: CganReconstruction) -> None:
    whole = run(attack)
    for state, memory in zip(whole.states, whole.memories, strict=True):
        resumed = run(attack, state=state, memory=memory)
        assert resumed.bytes == whole.bytes
        assert encode(resumed.ring.memory) == encode(whole.ring.memory)


def test_the_victim_s_pictures_never_reach_it() -> None:
    """The x of Equations 2 to 4 is the attacker's own: with no tap and no others' influence on what it is given,
    changing the victim's data changes nothing that it draws."""
    fed = federation()
    spoilt = fed.examples.x.clone()
    spoilt[fed.train[VICTIM]] = 1 - spoilt[fed.train[VICTIM]]
    other = replace(fed, examples=replace(fed.examples, x=spoilt))
    one, same = (attacker(0.0, fed, bout=Bout(steps=3, batch=8, likeness=5.0)) for _ in range(2))
    memory: list[dict[str, Any]] = [{}, {}]
    given = MODEL.init(0)
    for attack, kept in zip((one, same), memory, strict=True):
        attack.learn(given, None, 0, kept, Rng.seeded(0))
    assert encode(memory[0]) == encode(memory[1])
    assert set(one.data.whole().x.flatten(1).sum(1).tolist()) <= set(
        fed.examples.x[fed.train[0]].flatten(1).sum(1).tolist()
    )
    first, second = (run(attacker(1.0, fed), fed=which, state=None) for which in (fed, other))
    assert encode(first.ring.memory[-1]) != encode(second.ring.memory[-1])  # through models, it does reach it


def test_the_attack_holds_no_data_but_its_own() -> None:
    fed = federation()
    attack = attacker(fed=fed)
    held = attack.data.whole().x
    assert len(held) == 80
    assert torch.equal(held, fed.examples.x[fed.train[0]])


@pytest.mark.parametrize("entries", list(Entries))
def test_entries_that_were_read_are_the_victim_s_and_the_rest_the_cluster_s(entries: Entries) -> None:
    given, theirs = MODEL.init(0), MODEL.init(1)
    read = replace(eavesdropper(0, VICTIM, 0.4), entries=entries).reads(theirs)
    tapped = {name: leaf.masked_fill(~read[name], torch.nan) for name, leaf in theirs.items()}
    found = mixed(given, tapped, None, 0.0)
    count = sum(int(mask.sum()) for mask in read.values())
    assert 0.05 < count / sum(leaf.numel() for leaf in theirs.values()) < 0.5
    for name, leaf in found.items():
        assert torch.equal(leaf, torch.where(read[name], theirs[name], given[name]))
    further = mixed(given, tapped, given, 1.0)
    for name, leaf in further.items():
        expected = torch.where(read[name], 2 * theirs[name] - given[name], given[name])
        torch.testing.assert_close(leaf, expected)


def test_a_tap_changes_what_it_draws_and_sealed_uploads_are_no_tap() -> None:
    """Without the active phase nothing but the tap differs."""
    quiet = {"active_from": None}
    tapped, blind = attacker(1.0, **quiet), attacker(0.0, **quiet)
    seen, unseen = run(tapped), run(blind)
    assert seen.bytes == unseen.bytes == play(PROTOCOL, federation(), MODEL).bytes  # nobody notices
    assert not torch.equal(drawn(tapped, seen), drawn(blind, unseen))
    sealed, open_ = (run(attack, defence=SecureSums()) for attack in (tapped, blind))
    assert OVERHEARD in sealed.ring.memory[-1]
    keep = [
        {name: value for name, value in done.ring.memory[-1].items() if name != OVERHEARD} for done in (sealed, open_)
    ]
    # the streams go by the threat model's name, which differs: compare what the tap gave, which is nothing
    assert all(not up.sent.values for up in sealed.ring.memory[-1][OVERHEARD].values())
    assert keep[0].keys() == keep[1].keys()


@pytest.mark.parametrize("share", [1.0, 0.4, 0.0])
def test_it_remembers_how_the_victim_moved_and_without_a_tap_how_the_cluster_did(share: float) -> None:
    attack = attacker(share, recall=2, active_from=None)
    tape = Tape([replace(CURIOUS_SERVER, clients=frozenset({0}))])
    done = run(attack, tape=tape)
    view = tape.view(replace(CURIOUS_SERVER, clients=frozenset({0})))
    seen = done.ring.memory[-1]["seen"]
    assert len(seen) == 2  # of three rounds of which it has heard
    for round, (start, update) in enumerate(seen):
        given, after = (pick(view.received(at).values, 0) for at in (round, round + 1))
        sent = view.sent(round)
        upload = {name: leaf[sent.ids.tolist().index(VICTIM), 0] for name, leaf in sent.values.items()}
        read = attack.threat.reads(upload) if share else {}
        for name, leaf in update.items():
            assert torch.equal(start[name], given[name])
            if not share:
                torch.testing.assert_close(leaf, after[name] - given[name])
                continue
            assert torch.equal(~leaf.isnan(), read[name])
            torch.testing.assert_close(leaf[read[name]], (upload[name] - given[name])[read[name]])


@pytest.mark.parametrize(("degrees", "share"), [(90, 1.0), (270, 0.2)])
def test_it_finds_how_the_victim_holds_its_pictures(degrees: int, share: float) -> None:
    """From three updates; whoever reads nothing of them cannot: two of three clients hold theirs as it does."""
    fed = federation()
    x = fed.examples.x.clone()
    x[fed.train[VICTIM]] = rotate(x[fed.train[VICTIM]], degrees)
    turned_away = replace(fed, examples=replace(fed.examples, x=x))
    done = run(attacker(share, turned_away, active_from=None).to_be_read(4), turned_away)
    assert done.ring.memory[-1]["angle"] == degrees
    blind = run(attacker(0.0, turned_away, active_from=None).to_be_read(4), turned_away)
    assert blind.ring.memory[-1]["angle"] != degrees


def test_samples_are_turned_as_pictures_are_elsewhere() -> None:
    """Beside the partition's own rotation, where the edge is as black as what comes in."""
    x = torch.zeros(2, 1, 12, 12)
    x[:, :, 3:8, 4:9] = torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    samples = Samples(x, torch.tensor([0, 1]))
    for degrees in (0.0, 15.0, 90.0, 200.0):
        torch.testing.assert_close(turned(samples, degrees).x, rotate(x, degrees))
    assert float(turned(Samples(x - 1, samples.y), 45.0).x[..., 0, 0].max()) == -1  # not grey
    assert angles(4, samples) == [0, 90, 180, 270]
    assert angles(4, Samples(x[..., :9], samples.y)) == [0, 180]


def test_from_the_view_alone() -> None:
    attack = attacker()
    tape = Tape([attack.threat])
    run(attack, tape=tape)
    guess = attack.infer(tape.view(attack.threat), Auxiliary(), Rng.seeded(0))
    assert guess.of[0].shape == (3, 1, 8, 8)


def test_the_active_phase_poisons_its_own_upload_with_a_quarter_at_most() -> None:
    quiet, loud = run(attacker(active_from=None)), run(attacker(active_from=2))
    assert quiet.states[:3] == loud.states[:3]  # before the third round, nothing is sent that differs
    assert quiet.states[3] != loud.states[3]
    honest = attacker(active_from=0, poison=0.0)
    kept = quiet.ring.memory[-1]["generator"]
    clean = honest.poisoned(MODEL.init(0), kept, Rng.seeded(0))
    dirty = attacker().poisoned(MODEL.init(0), kept, Rng.seeded(0))
    assert any(not torch.equal(leaf, dirty[name]) for name, leaf in clean.items())


def test_an_attacker_whose_own_training_diverges_sends_its_honest_update() -> None:
    """It trains on its fakes at a rate of its own; the others, who keep to the protocol's, go on."""
    wild = attacker()
    wild = replace(wild, local=replace(wild.local, lr=1e30))
    with pytest.warns(AttackGaveUp, match="client 0 .* sends what its clients would"):
        done = run(wild)
    assert done.bytes == run(attacker(active_from=None)).bytes


def test_without_a_spare_output_it_gives_its_own_copy_one() -> None:
    model = StridedCnn(10, (1, 8, 8), width=4)
    own = federation()
    attack = replace(attacker(), model=model, fake=None)
    done = play(PROTOCOL, own, model, adversaries=[attack])
    rows = done.ring.memory[-1]["fakes"]
    assert {tuple(row.shape) for row in rows.values()} == {(32,), ()}
    assert any(bool(row.any()) for row in rows.values())


# -- losses -------------------------------------------------------------------------------------------------------


def test_the_hybrid_loss_by_hand() -> None:
    """Equation 3 for two pictures of four pixels: one within the threshold (squared), one beyond it (absolute)."""
    made = torch.zeros(2, 1, 2, 2)
    samples = torch.tensor([[0.1, 0.1, 0.1, 0.1], [1.0, 1.0, 1.0, 1.0]]).reshape(2, 1, 2, 2)
    assert float(hybrid(made, samples, 1.0, 0.5)) == pytest.approx((0.04 + 0.5 * 4) / 2 / 4)
    assert float(distance(made, samples)) == pytest.approx((0.2 + 2) / 2)
    made.requires_grad_()
    (slope,) = torch.autograd.grad(hybrid(made, samples, 1.0, 0.5), made)  # Equation 4
    torch.testing.assert_close(slope[0], torch.full((1, 2, 2), -2 * 0.1 / 8))
    torch.testing.assert_close(slope[1], torch.full((1, 2, 2), -0.5 / 8))
    assert huber(torch.tensor([0.5, 3.0]), 1.0).tolist() == pytest.approx([0.125, 2.5])


def test_the_mismatch_by_hand() -> None:
    """A right angle costs 1 and the other way 2, layer by layer; biases and what was not read cost nothing."""
    nan = torch.nan
    update = {"a": torch.tensor([[1.0, 0.0]]), "b": torch.tensor([[2.0, nan]]), "bias": torch.ones(2)}
    moved = {"a": torch.tensor([[0.0, 3.0]]), "b": torch.tensor([[-1.0, 5.0]]), "bias": -torch.ones(2)}
    assert float(mismatch(moved, update)) == pytest.approx(1 + 2)
    assert float(mismatch(moved, {name: leaf * nan for name, leaf in update.items()})) == 0


def test_the_pictures_that_moved_a_model_explain_it_better_than_others() -> None:
    digits, start = Digits().load(), MODEL.init(0)
    mine, other = (Examples(digits.x[rows], digits.y[rows], 10, "") for rows in (slice(0, 80), slice(80, 160)))
    rows = batches(80, Local(epochs=2, batch_size=40), Rng.seeded(0))
    moved = Imitation(MODEL, LOCAL).train(start, mine, rows, Rng.seeded(1))
    seen = Moved(start, {name: leaf[0] for name, leaf in moved.items()})
    mine_, others = (float(seen.explained(_logits, one.x, one.y).detach()) for one in (mine, other))
    turned = float(seen.explained(_logits, mine.x.rot90(1, (2, 3)), mine.y).detach())
    assert mine_ < others < turned


def _logits(params: Params, x: Tensor) -> Tensor:
    return outputs(MODEL, params, x)


def test_the_same_picture_twice_costs_most() -> None:
    noise = torch.tensor([[1.0], [-1.0]])
    alike, different = torch.ones(2, 1, 2, 2), torch.stack([torch.ones(1, 2, 2), torch.zeros(1, 2, 2)])
    assert float(sameness(alike, noise)) == pytest.approx(100)
    assert float(sameness(different, noise)) < 2


def test_samples_are_of_the_class_that_is_asked_for() -> None:
    samples = Samples(torch.arange(6.0).reshape(6, 1, 1, 1), torch.tensor([0, 2, 0, 2, 2, 0]))
    x, there = samples.like(torch.tensor([2, 0, 1, 2]), torch.Generator().manual_seed(0))
    assert there.tolist() == [True, True, False, True]
    assert {int(x[0]), int(x[3])} <= {1, 3, 4}
    assert int(x[1]) in {0, 2, 5}


def test_batches_run_through_the_data() -> None:
    rows = batches(10, Local(epochs=2, batch_size=5), Rng.seeded(0))
    assert rows.shape == (1, 4, 5)
    assert sorted(rows[0, :2].flatten().tolist()) == list(range(10))


def test_bad_input() -> None:
    with pytest.raises(InvalidInput, match="poison=1"):
        attacker(poison=1.0)
    with pytest.raises(InvalidInput, match="turns=0"):
        attacker(turns=0)
    with pytest.raises(InvalidInput, match="every=0"):
        Bout(every=0)
    digits, attack = Digits().load(), attacker()
    flat = Auxiliary(replace(digits, x=digits.x.flatten(1)))
    with pytest.raises(InvalidInput, match="must be pictures"):
        replace(attack, data=flat)
    with pytest.raises(InvalidInput, match="memory has no generator"):
        attacker().pictures({}, Rng.seeded(0))
