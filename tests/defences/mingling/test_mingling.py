"""Mingling as a defence of IFCA: it trains what IFCA trains, and the server learns the identity sets alone."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.defences.mingling.federation import (
    COLLUDING,
    FEDERATION,
    IFCA,
    MODEL,
    SERVER,
    VARIANTS,
    Stubborn,
    close,
    every_variant,
    models,
    run,
)
from tests.ring import turn
from torch import nn

from coterie.defences.mingling.defence import Mingling, shared_key
from coterie.defences.mingling.fuzzy_tags import ClusterKeys, TagRule
from coterie.defences.secure_sums import PairwiseMasks, Smallest
from coterie.errors import NotPermitted
from coterie.flow.guard import Defence
from coterie.learn.models.model import as_model
from coterie.learn.params import flatten
from coterie.privacy.guarantee import Trust
from coterie.rng import Rng
from coterie.run.folder import RunFolder
from coterie.run.training import train
from coterie.seal.ckks import Ckks
from coterie.seal.masked import MaskedBatch
from coterie.seal.mock import MockCipher, MockKey
from coterie.seal.pairwise import Party
from coterie.seal.veil import GroupKey
from coterie.wire.sealed import SEALED, SHARED_KEY
from coterie.wire.tape import Tape


def ckks(key: Any = None) -> Mingling:
    """The paper's own."""
    return Mingling(exact=False, cipher=Ckks(), key=key)


# -- what is trained -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "defence",
    [
        Mingling(rate=1e-9, threshold=1, exact=False, cipher=MockCipher(), partition=False),
        Mingling(cipher=MockCipher()),
        Mingling(smallest=Smallest(1)),
        Mingling(smallest=Smallest(1), cipher=PairwiseMasks(width=5)),
        Mingling(threshold=3, cipher=MockCipher()),
    ],
    ids=["no decoys", "exact", "masks", "masks, short words", "exact, everybody everywhere"],
)
def test_without_decoys_or_exactly_it_is_ifca_to_rounding(defence: Mingling) -> None:
    close(models(run(defence)), run(Defence()).state.published.values, atol=2e-5)


def test_one_round_is_rebuilt_as_a_slow_oracle_does() -> None:
    """From every client's plain answer and its identity set, with loops and numpy."""
    plain_tape, tape = Tape([SERVER]), Tape([SERVER])
    once = replace(IFCA, rounds=1, candidates=0)
    run(Defence(), once, tape=plain_tape)
    done = run(Mingling(exact=False, cipher=MockCipher(), partition=False), once, tape=tape)
    plain, sets = plain_tape.view(SERVER).sent(0), tape.view(SERVER).sent(0).membership
    vectors = flatten(plain.values, leading=2)[:, 0].double().numpy()
    counts, sums = np.zeros((3, 3)), np.zeros((3, vectors.shape[1]))
    for client in range(12):
        true = int(plain.membership[client].argmax())
        for cluster in range(3):
            if sets[client, cluster]:
                counts[cluster, true] += float(plain.weights[client])
                sums[cluster] += float(plain.weights[client]) * vectors[client]
    start = flatten(done.asks[0].published.values).double().numpy()
    chosen = counts.any(0)
    expected = start + np.linalg.pinv(counts, rcond=1e-6) @ (sums - counts @ start)
    assert chosen.sum() >= 2
    np.testing.assert_allclose(flatten(models(done)), expected, atol=1e-5)
    with pytest.raises(AssertionError):  # and mingling is felt: the plain means are something else
        np.testing.assert_allclose(
            flatten(models(done)), flatten(run(Defence(), once).state.published.values), atol=1e-4
        )


def test_every_cipher_gives_the_same_bits() -> None:
    for names in (("mock", "ckks"), ("mock, exact", "masks")):
        one, other = (models(run(VARIANTS[name]())) for name in names)
        close(one, other, atol=0)


def test_sets_from_the_group_train_as_well() -> None:
    keys = ClusterKeys.generate(TagRule(3, 0.5, 2), Rng.seeded(1))
    tape = Tape([SERVER])
    run(Mingling(cipher=MockCipher(), cluster_keys=keys, exact=True), tape=tape)
    assert tape.view(SERVER).sent(3).membership.sum(1).min() >= 2


@every_variant
def test_an_empty_cluster_keeps_its_model_however_long(make: Any) -> None:
    protocol = Stubborn(rounds=3, local=IFCA.local, clusters=3, candidates=0)
    done = run(make(), protocol)
    guard = done.ring.defence.client
    opened = [guard.receive(ask.published, turn()).values["0.weight"] for ask in done.asks]
    after = [*opened, models(done)["0.weight"]]
    start, trained = after[0][1], after[1][1]
    assert not torch.allclose(start, trained, atol=1e-3)
    assert torch.allclose(after[2][1], trained, atol=1e-6)  # empty in round 1
    assert torch.allclose(after[3][1], trained, atol=1e-6)  # and in round 2
    assert torch.allclose(after[3][2], after[0][2], atol=1e-6)  # never chosen


# -- laws ------------------------------------------------------------------------------------------------------------


@every_variant
def test_chunk_size_does_not_matter(make: Any) -> None:
    close(models(run(make())), models(run(make(), chunk_bytes=1)), atol=2e-5)


@every_variant
def test_replay(make: Any) -> None:
    first, second, other = (models(run(make(), seed=seed)) for seed in (5, 5, 6))
    close(first, second, atol=0)
    with pytest.raises(AssertionError):
        close(first, other, atol=1e-3)


def test_a_killed_run_goes_on_bit_for_bit() -> None:
    whole = run(Mingling(exact=False, cipher=MockCipher()))
    for state, memory in zip(whole.states, whole.memories, strict=True):
        assert run(Mingling(exact=False, cipher=MockCipher()), state=state, memory=memory).bytes == whole.bytes


def test_a_killed_run_under_ckks_goes_on_with_the_key_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "clients.key"
    whole = run(ckks(shared_key(Ckks(), path)))
    assert path.stat().st_mode & 0o077 == 0
    resumed = run(ckks(shared_key(Ckks(), path)), state=whole.states[-1])
    close(models(whole), models(resumed), atol=0)
    with pytest.raises(NotPermitted, match="cannot open the sums"):
        run(ckks(), state=whole.states[-1])


@pytest.mark.parametrize("name", ["mock", "ckks", "masks"])
def test_a_run_folder_keeps_what_a_killed_run_needs(name: str, tmp_path: Path) -> None:
    def stop(done: int, newest: Any) -> None:
        if done == 2:
            raise KeyboardInterrupt

    whole = train(IFCA, FEDERATION, MODEL, defence=VARIANTS[name]())
    folder = RunFolder.create(tmp_path / "run", {})
    with pytest.raises(KeyboardInterrupt):
        train(IFCA, FEDERATION, MODEL, defence=VARIANTS[name](), folder=folder, progress=stop)
    again = train(IFCA, FEDERATION, MODEL, defence=VARIANTS[name](), folder=folder)  # another process, another object
    close(whole.models, again.models, atol=0)
    assert (folder.path / "clients.key").exists() == (name != "mock")


@pytest.mark.parametrize("name", ["mock", "masks"])
def test_worker_processes_give_the_same(name: str) -> None:
    model = as_model(lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)))
    short = replace(IFCA, rounds=2)
    close(models(run(VARIANTS[name](), short, model)), models(run(VARIANTS[name](), short, model, processes=2)), atol=0)


# -- what the server sees --------------------------------------------------------------------------------------------


@every_variant
def test_the_server_sees_sets_and_ciphertexts_alone(make: Any) -> None:
    tape, plain = Tape([SERVER]), Tape([SERVER])
    run(make(), tape=tape)
    run(Defence(), tape=plain)
    view = tape.view(SERVER)
    for round in view.rounds():
        sent, true = view.sent(round), plain.view(SERVER).sent(round).membership
        assert not sent.values
        assert sent.weights.tolist() == [1.0] * 12
        assert sent.membership.sum(1).min() >= 2
        if round == 0:
            assert bool((sent.membership >= true).all())  # the true cluster is among them
        sealed = sent.sealed or view.sent(round, "train/masked").sealed  # under masks, in an exchange of its own
        for key in (None, MockKey(), getattr(sealed[SEALED], "context", None)):
            with pytest.raises(NotPermitted, match="cannot open"):
                sealed[SEALED].open(key)
    assert sealed[SEALED].nbytes > 0


@every_variant
def test_votes_on_the_start_reach_the_server_as_the_winner_only(make: Any) -> None:
    """Their sum would say how large the clusters are, and whoever knows that reads more out of identity sets."""
    tape, plain = Tape([SERVER]), Tape([SERVER])
    done, bare = run(make(), tape=tape), run(Defence(), tape=plain)
    assert not tape.view(SERVER).sent(0, "choose").values
    sent = tape.view(SERVER).sent(0, "choose/masked")
    assert not sent.values
    assert isinstance(sent.sealed[SEALED], MaskedBatch)
    with pytest.raises(NotPermitted, match="single clients"):
        sent.sealed[SEALED].open(None)
    assert plain.view(SERVER).sent(0, "choose").values["votes"].sum() == 12 * 500
    counted = done.asks[1].published.sealed["votes"]
    for key in (None, GroupKey()):
        with pytest.raises(NotPermitted, match="cannot open") if key is None else nullcontext():
            assert float(counted.open(key).abs().max()) > 1000  # noise, and no vote of twelve
    close(done.asks[2].published.values, bare.asks[1].published.values, atol=0)  # the same start was chosen


def test_a_vote_that_was_counted_is_not_held_again_by_a_killed_run() -> None:
    done = run(Mingling(cipher=MockCipher()))
    assert [str(ask.kind) for ask in done.asks[:3]] == ["choose", "name", "train"]
    resumed = run(Mingling(cipher=MockCipher()), state=done.states[1], memory=done.memories[1])
    assert [str(ask.kind) for ask in resumed.asks[:2]] == ["name", "train"]
    assert resumed.bytes == done.bytes


def test_several_starts_would_show_sets_under_several_numberings() -> None:
    several = replace(IFCA, starts=2, trial=1)
    assert "numberings" in Mingling(threshold=2).fits(several)
    assert not Mingling(threshold=3).fits(several)  # everybody is in every cluster, whatever its number
    assert not Mingling().fits(several)  # everybody joins everything
    assert not Mingling().fits(IFCA)


def test_a_client_has_one_set_for_each_true_cluster_as_long_as_it_lives() -> None:
    defence, tape = Mingling(exact=False, cipher=MockCipher(), partition=False), Tape([COLLUDING])
    run(defence, replace(IFCA, rounds=6), tape=tape)
    view = tape.view(COLLUDING, defence.keys)
    sets: dict[tuple[int, int], set[tuple[float, ...]]] = {}
    for round in view.rounds():
        sent = view.sent(round)
        true = sent.sealed[SEALED].open(view.key(SHARED_KEY))[:, -3:].argmax(1).tolist()
        for client, cluster, row in zip(sent.ids.tolist(), true, sent.membership.tolist(), strict=True):
            sets.setdefault((client, cluster), set()).add(tuple(row))
    assert all(len(different) == 1 for different in sets.values())
    assert len(sets) > 12  # somebody did change its cluster


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("cipher", [Ckks(), MockCipher()], ids=["ckks", "mock"])
def test_one_colluding_client_opens_everything_under_the_shared_key(cipher: Any, exact: bool) -> None:
    defence, tape, plain = Mingling(cipher=cipher, exact=exact), Tape([COLLUDING, SERVER]), Tape([SERVER])
    run(defence, replace(IFCA, rounds=1), tape=tape)
    run(Defence(), replace(IFCA, rounds=1), tape=plain)
    view = tape.view(COLLUDING, defence.keys)
    opened = view.sent(0).sealed[SEALED].open(view.key(SHARED_KEY))
    vectors = opened.sum(1) if exact else opened
    true = plain.view(SERVER).sent(0)
    weighted = flatten(true.values, leading=2)[:, 0] * true.weights.unsqueeze(1)
    torch.testing.assert_close(vectors[:, :-3].float(), weighted, rtol=0, atol=1e-5)
    assert torch.equal(vectors[:, -3:].argmax(1), true.membership.argmax(1))
    with pytest.raises(NotPermitted, match="does not hold the key"):
        tape.view(SERVER, defence.keys).key(SHARED_KEY)


def test_the_server_s_half_has_no_path_to_the_key() -> None:
    defence = ckks()
    packed = pickle.dumps(defence.server)
    secret = defence.key.to_bytes()
    assert defence.key.context.key_id in packed  # it knows the key's name
    assert not any(secret[at : at + 16] in packed for at in range(0, len(secret) - 16, 16))
    assert secret[64:80] in pickle.dumps(secret)  # the search would find it
    for key in (defence.key, GroupKey(), MockCipher().keygen(), Party(0)):
        with pytest.raises(NotPermitted, match="cannot be pickled or copied"):
            pickle.dumps(key)
    assert not hasattr(defence.server, "key")
    batch = Ckks().seal(torch.ones(1, 4), defence.key, [0])
    for held in (defence.server, defence.server.context, pickle.loads(packed).context):
        with pytest.raises(NotPermitted):
            batch.open(held)
        with pytest.raises(NotPermitted):
            batch.add(torch.ones(1, 1)).open(held)


def test_what_it_claims() -> None:
    facts = IFCA.facts(FEDERATION)
    shared, masks = ckks().guarantee(facts), Mingling().guarantee(facts)
    assert not shared.proven
    assert shared.trust is Trust.NO_COLLUSION
    assert "no client hands it the shared key" in shared.trust.value
    assert masks.trust is Trust.HIDDEN_SUMS


@pytest.mark.parametrize(
    ("defence", "participation", "words"),
    [
        (Mingling(), 1.0, "nor by one that follows the protocol with 1 of the 12 clients of a round"),
        (Mingling(), 0.5, "with 1 of the 6 clients of a round"),
        (Mingling(smallest=Smallest(6)), 1.0, "with 4 of the 12"),
        (Mingling(smallest=Smallest(12)), 1.0, "with 8 of the 12"),  # nine put a secret together
        (Mingling(smallest=Smallest(2)), 1.0, "with 0 of the 12"),
        (Mingling(smallest=Smallest(6), cipher=PairwiseMasks(2)), 1.0, "with 1 of the 12"),  # two cut a ring
        (Mingling(smallest=Smallest(6, spare=1), cipher=PairwiseMasks(2)), 1.0, "with 0 of the 12"),
    ],
)
def test_how_many_may_collude_follows_from_the_settings(defence: Mingling, participation: float, words: str) -> None:
    said = defence.guarantee(replace(IFCA, participation=participation).facts(FEDERATION)).why_not
    assert words in said
    assert f"those of at least {defence.smallest.members}" in said
