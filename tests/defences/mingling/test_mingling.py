"""Mingling as a defence of IFCA: it trains what IFCA trains, and the server learns the identity sets alone."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.ring import Play, blobs, play, turn
from torch import nn

from coterie.defences.mingling.defence import Mingling, shared_key
from coterie.defences.mingling.fuzzy_tags import ClusterKeys, Counting, TagRule
from coterie.defences.secure_sums import ClientsDropped, PairwiseMasks, RoundLeftOut
from coterie.errors import InvalidInput, NotPermitted
from coterie.flow.cohort import Cohort
from coterie.flow.drive import message_of
from coterie.flow.guard import Defence
from coterie.flow.protocol import Protocol
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import Model, as_model
from coterie.learn.params import Params, flatten
from coterie.learn.sgd import Local
from coterie.privacy.guarantee import Trust
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.ifca import Ifca
from coterie.rng import Rng
from coterie.run.folder import RunFolder
from coterie.run.training import train
from coterie.seal.ckks import Ckks, CkksBatch
from coterie.seal.masked import MaskedBatch
from coterie.seal.mock import MockCipher, MockKey
from coterie.wire.messages import Contributions, Kind, Published
from coterie.wire.sealed import SEALED, SHARED_KEY
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel

MODEL = Dense((4, 6, 3))
IFCA = Ifca(rounds=4, local=Local(steps=3, batch_size=4, lr=0.3), clusters=3, candidates=6)
FEDERATION = blobs((12, 9, 10, 12, 5, 12, 7, 10, 8, 8, 11, 12), groups=3)
SERVER = ThreatModel("curious server", server=True)
COLLUDING = ThreatModel("server and a client", server=True, clients=frozenset({0}), keys=frozenset({SHARED_KEY}))
VARIANTS = {
    "mock": lambda: Mingling(cipher=MockCipher()),
    "mock, exact": lambda: Mingling(cipher=MockCipher(), exact=True),
    "ckks": lambda: Mingling(),
    "masks": lambda: Mingling(cipher=PairwiseMasks()),
    "masks, exact": lambda: Mingling(cipher=PairwiseMasks(), exact=True),
}
every_variant = pytest.mark.parametrize("make", VARIANTS.values(), ids=VARIANTS.keys())


def run(defence: Defence, protocol: Protocol[Any] = IFCA, model: Model = MODEL, **options: Any) -> Play:
    return play(protocol, FEDERATION, model, defence=defence, **options)


def models(done: Play) -> Params:
    return done.ring.models(done.state)


def close(one: Params, other: Params, atol: float) -> None:
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=atol)


# -- what is trained -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "defence",
    [
        Mingling(rate=1e-9, threshold=1, cipher=MockCipher()),
        Mingling(cipher=MockCipher(), exact=True),
        Mingling(cipher=PairwiseMasks(), exact=True),
        Mingling(threshold=3, cipher=MockCipher(), exact=True),
    ],
    ids=["no decoys", "exact", "exact, masks", "exact, everybody everywhere"],
)
def test_without_decoys_or_exactly_it_is_ifca_to_rounding(defence: Mingling) -> None:
    close(models(run(defence)), run(Defence()).state.published.values, atol=2e-5)


def test_one_round_is_rebuilt_as_a_slow_oracle_does() -> None:
    """From every client's plain answer and its identity set, with loops and numpy."""
    plain_tape, tape = Tape([SERVER]), Tape([SERVER])
    once = replace(IFCA, rounds=1, candidates=0)
    run(Defence(), once, tape=plain_tape)
    done = run(Mingling(cipher=MockCipher()), once, tape=tape)
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
    mock, ckks, masks = (models(run(VARIANTS[name]())) for name in ("mock", "ckks", "masks"))
    close(mock, ckks, atol=0)
    close(mock, masks, atol=0)


def test_sets_from_the_group_train_as_well() -> None:
    keys = ClusterKeys.generate(TagRule(3, 0.5, 2), Rng.seeded(1))
    tape = Tape([SERVER])
    run(Mingling(cipher=MockCipher(), cluster_keys=keys, exact=True), tape=tape)
    assert tape.view(SERVER).sent(3).membership.sum(1).min() >= 2


class Stubborn(Ifca):
    """Everybody trains cluster 0, except that in round 0 client 1 trains cluster 1."""

    def answer(self, kind: Kind, models: Params, cohort: Any, guard: Any) -> Contributions:
        sent = super().answer(kind, models, cohort, guard)
        choice = torch.zeros(len(cohort), dtype=torch.int64)
        if cohort.turn.round == 0:
            choice[cohort.ids == 1] = 1
        return replace(sent, membership=torch.nn.functional.one_hot(choice, self.clusters).float())


@pytest.mark.parametrize("exact", [False, True])
def test_an_empty_cluster_keeps_its_model_for_a_round_and_then_starts_over(exact: bool) -> None:
    protocol = Stubborn(rounds=3, local=IFCA.local, clusters=3, candidates=0)
    done = run(Mingling(cipher=MockCipher(), exact=exact), protocol)
    guard = done.ring.defence.client
    opened = [guard.receive(ask.published, turn()).values["0.weight"] for ask in done.asks]
    after = [*opened, models(done)["0.weight"]]
    start, trained = after[0][1], after[1][1]
    assert not torch.allclose(start, trained, atol=1e-3)
    assert torch.allclose(after[2][1], trained, atol=1e-6)  # empty in round 1
    assert torch.allclose(after[3][1], start, atol=1e-6)  # and in round 2
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
    whole = run(Mingling(cipher=MockCipher()))
    for state, memory in zip(whole.states, whole.memories, strict=True):
        assert run(Mingling(cipher=MockCipher()), state=state, memory=memory).bytes == whole.bytes


def test_a_killed_run_under_ckks_goes_on_with_the_key_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "clients.key"
    whole = run(Mingling(key=shared_key(Ckks(), path)))
    assert path.stat().st_mode & 0o077 == 0
    resumed = run(Mingling(key=shared_key(Ckks(), path)), state=whole.states[-1])
    close(models(whole), models(resumed), atol=0)
    with pytest.raises(NotPermitted, match="cannot open the sums"):
        run(Mingling(), state=whole.states[-1])


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
    assert (folder.path / "clients.key").exists() == (name == "ckks")


@pytest.mark.parametrize("name", ["mock", "masks, exact"])
def test_worker_processes_give_the_same(name: str) -> None:
    model = as_model(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)))
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
def test_votes_on_the_start_reach_the_server_as_a_sum_only(make: Any) -> None:
    tape, plain = Tape([SERVER]), Tape([SERVER])
    done, bare = run(make(), tape=tape), run(Defence(), tape=plain)
    assert not tape.view(SERVER).sent(0, "choose").values
    sent = tape.view(SERVER).sent(0, "choose/masked")
    assert not sent.values
    assert isinstance(sent.sealed[SEALED], MaskedBatch)
    with pytest.raises(NotPermitted, match="single clients"):
        sent.sealed[SEALED].open(None)
    assert plain.view(SERVER).sent(0, "choose").values["votes"].sum() == 12 * 500
    close(done.asks[1].published.values, bare.asks[1].published.values, atol=0)  # the same start was chosen


def test_a_client_has_one_set_for_each_true_cluster_as_long_as_it_lives() -> None:
    defence, tape = Mingling(cipher=MockCipher()), Tape([COLLUDING])
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
    defence = Mingling()
    packed = pickle.dumps(defence.server)
    secret = defence.key.to_bytes()
    assert defence.key.context.key_id in packed  # it knows the key's name
    assert not any(secret[at : at + 16] in packed for at in range(0, len(secret) - 16, 16))
    assert secret[64:80] in pickle.dumps(defence.key)  # the search would find it
    assert not hasattr(defence.server, "key")
    batch = Ckks().seal(torch.ones(1, 4), defence.key, [0])
    for held in (defence.server, defence.server.context, pickle.loads(packed).context):
        with pytest.raises(NotPermitted):
            batch.open(held)
        with pytest.raises(NotPermitted):
            batch.add(torch.ones(1, 1)).open(held)


def test_what_it_claims() -> None:
    facts = IFCA.facts(FEDERATION)
    shared, masks = Mingling().guarantee(facts), Mingling(cipher=PairwiseMasks()).guarantee(facts)
    assert not shared.proven
    assert shared.trust is Trust.NO_COLLUSION
    assert "no client hands it the shared key" in shared.trust.value
    assert masks.trust is Trust.SECURE_SUMS


# -- bad input -------------------------------------------------------------------------------------------------------


def answers(defence: Mingling) -> list[Contributions]:
    """The first training round's answers, client by client."""
    done = run(defence, replace(IFCA, rounds=1, candidates=0), chunk_bytes=1)
    return [up.sent for up in done.ring.clients.exchange(message_of(done.asks[0], done.ring.server))]


def opened(defence: Mingling, parts: list[Contributions]) -> tuple[torch.Tensor, torch.Tensor]:
    sums = defence.server.aggregate(iter(parts), turn())
    return sums.sealed[SEALED].open(defence.key), sums.counts


def damage(parts: list[Contributions], how: str) -> list[Contributions]:
    """Spoil what client 4 sent."""
    batch = parts[4].sealed[SEALED]
    assert isinstance(batch, CkksBatch)
    message = batch.messages[0][0]
    assert message is not None
    other = Mingling(key=None)
    if how == "another key":
        batch = Ckks().seal(torch.ones(1, batch.length), other.key, [4])
    elif how == "another key under the same name":
        batch = replace(batch, messages=Ckks().seal(torch.ones(1, batch.length), other.key, [4]).messages)
    elif how == "truncated":
        batch = replace(batch, messages=((message[:-100],),))
    elif how == "wrong length":
        batch = replace(batch, messages=batch.messages, length=batch.length + 1)
    elif how == "a longer model":
        batch = Ckks().seal(torch.ones(1, batch.length + 5), KEYS["ckks"].key, [4])
    spoilt = replace(parts[4], sealed={SEALED: batch})
    if how == "no members":
        spoilt = replace(spoilt, membership=torch.zeros(1, 3))
    elif how == "not binary":
        spoilt = replace(spoilt, membership=torch.full((1, 3), 0.5))
    elif how == "four clusters":
        spoilt = replace(spoilt, membership=torch.ones(1, 4))
    elif how == "not sealed":
        spoilt = replace(spoilt, sealed={}, values={"0.weight": torch.ones(1, 1, 2)})
    return [*parts[:4], spoilt, *parts[5:]]


KEYS = {"ckks": Mingling()}


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("another key", "another key"),
        ("another key under the same name", "key"),
        ("truncated", "truncated"),
        ("wrong length", "length"),
        ("a longer model", "length"),
        ("no members", "has no member"),
        ("not binary", "zeros and ones"),
        ("four clusters", "clusters"),
        ("not sealed", "not sealed"),
    ],
)
def test_a_spoilt_answer_costs_nobody_else_s(how: str, reason: str) -> None:
    defence = KEYS["ckks"]
    parts = answers(defence)
    expected, members = opened(defence, parts[:4] + parts[5:])
    with pytest.warns(ClientsDropped, match=rf"round 0, train: dropped client 4: .*{reason}"):
        found, counts = opened(defence, damage(parts, how))
    assert torch.equal(found, expected)
    assert torch.equal(counts, members)


def test_nothing_usable_leaves_everything_as_it_was_and_says_why() -> None:
    defence, parts = KEYS["ckks"], damage(answers(KEYS["ckks"]), "no members")[4:5]
    with pytest.warns(ClientsDropped, match=r"round 0: no usable answer: client 4: .*no member"):
        assert defence.server.aggregate(iter(parts), turn()).empty


@pytest.mark.parametrize("part", ["shares", "masked", "open"])
def test_drop_outs_under_masks_are_recovered(part: str) -> None:
    """Before the boxes a client is left out; with them, its masks are taken away; after its answer it is in."""
    once, everybody = replace(IFCA, rounds=1, candidates=0), Mingling(cipher=PairwiseMasks())
    done = run(everybody, once, lost=lambda asked: {2, 7} if asked.kind.part == part else ())
    mock = Mingling(cipher=MockCipher())
    kept = [answer for answer in answers(mock) if part == "open" or int(answer.ids) not in (2, 7)]
    expected, _ = opened(mock, kept)
    assert torch.equal(done.state.published.sealed[SEALED].open(None), expected)


def test_a_round_that_too_few_finish_is_left_out() -> None:
    once = replace(IFCA, rounds=1, candidates=0)
    with pytest.warns(RoundLeftOut, match="round 0, train: too few masked answers"):
        done = run(
            Mingling(cipher=PairwiseMasks()), once, lost=lambda asked: range(5) if asked.kind.part == "masked" else ()
        )
    close(models(done), done.asks[0].published.values, atol=0)


def test_a_cluster_of_two_is_left_out_of_the_round_and_keeps_its_model() -> None:
    """Its sum would be opened to whoever of the two helps the server."""
    protocol = Stubborn(rounds=1, local=IFCA.local, clusters=3, candidates=0)
    defence = Mingling(rate=1e-9, threshold=1, cipher=PairwiseMasks(), exact=True)  # no decoys: client 1 is alone
    done = run(defence, protocol)
    start, after = done.asks[0].published.values["0.weight"], models(done)["0.weight"]
    assert torch.allclose(after[1], start[1], atol=1e-6)
    assert not torch.allclose(after[0], start[0], atol=1e-3)


def test_settings_that_cannot_be() -> None:
    for rate in (0.0, 1.0, -0.5, 1.5):
        with pytest.raises(InvalidInput, match=r"rate=.*between 0 and 1"):
            Mingling(rate=rate)
    with pytest.raises(InvalidInput, match="threshold=0"):
        Mingling(threshold=0)
    with pytest.raises(InvalidInput, match=r"threshold=4 must lie in 1\.\.3"):
        run(Mingling(threshold=4, cipher=MockCipher()))
    with pytest.raises(InvalidInput, match=r"threshold=3 must lie in 1\.\.2"):
        run(Mingling(threshold=3, counting=Counting.DECOYS, cipher=MockCipher()))
    with pytest.raises(InvalidInput, match="does not fit this protocol: clients must choose one of at least two"):
        run(Mingling(cipher=MockCipher()), FedAvg(rounds=1))
    with pytest.raises(InvalidInput, match="needs the sums of all clusters in the clear"):
        run(Mingling(cipher=MockCipher()), replace(IFCA, shared=("0.",)))
    keys = ClusterKeys.generate(TagRule(5, 0.5, 2), Rng.seeded(1))
    with pytest.raises(InvalidInput, match="cluster keys"):
        run(Mingling(cluster_keys=keys, cipher=MockCipher()))


def test_weights_too_large_to_be_sealed_are_refused_with_the_unit_to_take() -> None:
    guard = Mingling(cipher=MockCipher()).client
    one = torch.nn.functional.one_hot(torch.tensor([0, 1]), 2).float()
    heavy = Contributions(torch.arange(2), {"w": torch.ones(2, 1, 3)}, torch.tensor([800.0, 3000.0]), one)
    with pytest.raises(InvalidInput, match=r"largest weighted value=3000.*unit=3000.*weighting='equal'"):
        guard.contribute(heavy, Cohort(heavy.ids, turn()))
    Mingling(cipher=MockCipher(), unit=3000).client.contribute(heavy, Cohort(heavy.ids, turn()))
    close(models(run(Mingling(cipher=MockCipher(), exact=True, unit=16))), models(run(Mingling(exact=True))), atol=1e-4)
    with pytest.raises(InvalidInput, match="unit=0"):
        Mingling(unit=0)


def test_memberships_that_do_not_name_one_cluster_are_refused() -> None:
    guard = Mingling(cipher=MockCipher()).client
    soft = Contributions(torch.arange(2), {"w": torch.ones(2, 1, 3)}, torch.ones(2), torch.full((2, 2), 0.5))
    with pytest.raises(InvalidInput, match="use it with Ifca"):
        guard.contribute(soft, Cohort(soft.ids, turn()))


def test_sums_without_the_models_before_them_or_of_another_size_are_refused() -> None:
    done = run(Mingling(cipher=MockCipher()))
    guard, published = done.ring.defence.client, done.state.published
    with pytest.raises(InvalidInput, match="without the models before"):
        guard.receive(replace(published, previous=None), turn())
    with pytest.raises(InvalidInput, match="opened sums of shape"):
        guard.receive(replace(published, previous=Published({"w": torch.ones(3, 2)})), turn())
