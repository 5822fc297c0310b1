"""A client obeys its owner, whatever the server asks."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deploy.hand import Hand, clients_of, direction, straight
from tests.deploy.places import Place

from coterie.audit.recorded import RECORDER
from coterie.config.schema import Config
from coterie.data.federation import Examples, Federation, Shards
from coterie.data.partition import Iid
from coterie.defences.noisy_sums.distributed import DistributedNoise
from coterie.deploy.envelope import DOWN, UP, Channel
from coterie.deploy.home import LEDGER, Kept
from coterie.deploy.keys import ServerKeys, shared
from coterie.deploy.own_data import facts_of
from coterie.deploy.plan import Plan, Refused
from coterie.deploy.running import described
from coterie.deploy.transport import TooFewAnswers
from coterie.errors import DataMissing, InvalidInput, NotPermitted
from coterie.learn.params import Params
from coterie.privacy.guarantee import Level
from coterie.privacy.ledger import Ledger
from coterie.protocols.clusterings.federated_lloyd import FederatedLloyd
from coterie.rng import Rng
from coterie.wire.codec import decode
from coterie.wire.messages import TRAIN, Down, Published
from coterie.wire.tape import Tape

DOCUMENT = Path(__file__).parents[2] / "docs" / "deployment.md"
NETWORK = """
[model]
kind = "dense"
sizes = [4, 2]
[trainer]
kind = "fedavg"
rounds = 2
[trainer.local]
steps = 2
batch_size = 5
lr = 0.1
"""
NOISE = '[defence]\nkind = "dpsgd"\nclip = 1.0\nnoise_multiplier = 2.0\n'
DEPLOY = "[deploy]\nshape = [4]\nclasses = 2\nleast = 2\ndeadline = 5\n"
PLAIN, PRIVATE = NETWORK + DEPLOY, NETWORK + "poisson = true\n" + NOISE + DEPLOY


def toy(clients: int = 3) -> Federation:
    x = torch.randn(60, 4, generator=Rng.seeded(0).torch())
    examples = Examples(x, (x[:, 0] > 0).long(), 2, "toy")
    return Iid(clients=clients, test_share=0.0).split(examples, Rng.seeded(0))


def place_with(root: Path, policy: Mapping[str, object], clients: int = 3) -> Place:
    return Place.make(root, toy(clients), policy)


@pytest.mark.parametrize(
    ("policy", "text", "why"),
    [
        ({"trainers": ["ifca"]}, PLAIN, "trainer 'fedavg' is not among those allowed: ifca"),
        ({"models": []}, PLAIN, "model 'dense' is not among those allowed: none"),
        ({"defences": ["dpsgd"]}, PLAIN, "defence 'none' is not among those allowed: dpsgd"),
        ({"least_cohort": 4}, PLAIN, "cohort of 3 is less than least_cohort=4"),
        ({"most_rounds": 1}, PLAIN, "rounds=2 are more than most_rounds=1"),
        ({"most_clip": 0.5}, PRIVATE, "clip=1.0 is not at most most_clip=0.5"),
        ({"most_clip": 0.5}, PLAIN, "clip=None is not at most most_clip=0.5"),
        ({"least_noise": 2.5}, PRIVATE, "noise multiplier 2 is below least_noise=2.5"),
        ({"least_noise": 0.1}, PLAIN, "noise multiplier 0 is below least_noise=0.1"),
        (
            {"epsilon": 1.0},
            PLAIN,
            "epsilon=1 is a limit, and nothing is proven of this run",
        ),
        ({"epsilon": 0.01}, PRIVATE, "would be spent in all at delta=1e-05, and limit=0.01"),
        ({}, NETWORK + '[defence]\nkind = "secure_sums"\n' + DEPLOY, "masks are not signed, and signed=true"),
    ],
)
def test_what_the_policy_does_not_allow_is_refused_and_says_why(
    tmp_path: Path, policy: Mapping[str, object], text: str, why: str
) -> None:
    place = place_with(tmp_path, policy)
    clients, notes = clients_of(place)
    directed, log = direction(place, text, Hand(clients))
    with pytest.raises(TooFewAnswers, match="clients that take part=0 of 3, and least=2"):
        directed.run()
    assert all(why in facts["why"] for facts in log.of("declined"))
    assert all(why in one.of("refused")[0]["why"] for one in notes.values())
    assert not any((place.home(number) / "home" / "session.bin").exists() for number in clients)


def test_the_documented_files_go_together(tmp_path: Path) -> None:
    """The owner's file of the documentation takes part in the run that stands below it, and says so of no other."""
    owner, run = re.findall(r"^```toml\n(.*?)^```", DOCUMENT.read_text(), re.S | re.M)[:2]
    x = torch.randn(900, 20, generator=Rng.seeded(0).torch())
    patients = Iid(clients=3, test_share=0.0).split(Examples(x, (x[:, 0] > 0).long(), 2, "patients"), Rng.seeded(0))
    place = Place.make(tmp_path, patients, tomllib.loads(owner)["policy"])
    directed, log = direction(place, run, Hand(clients_of(place)[0]))
    directed.run()
    assert not log.of("declined")
    chosen = run.replace('"fedavg"', '"ifca"')
    directed, _ = direction(place, chosen, Hand(clients_of(place)[0]))
    with pytest.raises(TooFewAnswers, match="client0, client1, client2: policy: trainer 'ifca' is not among"):
        directed.run()


def test_a_client_alone_can_refuse_and_the_others_go_on(tmp_path: Path) -> None:
    place = place_with(tmp_path, {})
    place.write_policy(1, {"least_cohort": 10})
    clients, _ = clients_of(place)
    directed, log = direction(place, PLAIN, Hand(clients))
    directed.run()
    assert [facts["client"] for facts in log.of("declined")] == [1]
    assert [facts["answered"] for facts in log.of("exchange")] == [2, 2]


def test_masks_need_the_cards_of_all_that_take_part(tmp_path: Path) -> None:
    """A server that could name anybody a client could be all the others itself."""
    place = place_with(tmp_path, {})
    (place.root / "cards" / "client2.json").unlink()
    clients, _ = clients_of(place)
    text = NETWORK + '[defence]\nkind = "secure_sums"\nsigned = true\n' + DEPLOY
    directed, log = direction(place, text, Hand(clients))
    with pytest.raises(TooFewAnswers):
        directed.run()
    assert "no card of client2 is here" in log.of("declined")[0]["why"]


def test_the_ledger_holds_the_forecast_before_anything_leaves_and_the_actual_cost_after(tmp_path: Path) -> None:
    place = place_with(tmp_path, {})
    place.write_policy(0, {"epsilon": 20.0})
    clients, _ = clients_of(place)
    held: list[int] = []

    def watch(hand: Hand, client: int, letter: bytes) -> bytes | None:
        answer = straight(hand, client, letter)
        held.extend([releases(on_disk(place, 0))] if client == 0 else [])
        return answer

    direction(place, PRIVATE, Hand(clients, watch))[0].run()
    assert set(held) == {4}  # two rounds of two steps: the whole run, before the first answer left
    assert on_disk(place, 0).spent > 0


def releases(ledger: Ledger) -> int:
    return sum(times for _, _, times in ledger.rows)


def on_disk(place: Place, client: int, limit: float = 20.0) -> Ledger:
    """As another process would read it now."""
    return Ledger(limit, 1e-5, place.home(client) / "home" / LEDGER)


def test_a_budget_is_spent_over_runs_whatever_they_are_called(tmp_path: Path) -> None:
    place = place_with(tmp_path, {})
    place.write_policy(0, {"epsilon": 1.5})  # a run costs 1.365
    clients, _ = clients_of(place)
    direction(place, PRIVATE, Hand(clients))[0].run()
    clients, _ = clients_of(place)  # as after a restart
    directed, log = direction(place, 'name = "other"\n' + PRIVATE, Hand(clients))
    directed.run()
    assert [facts["client"] for facts in log.of("declined")] == [0]
    assert "would be spent in all" in log.of("declined")[0]["why"]
    assert releases(on_disk(place, 0, 1.5)) == 4


def channel(place: Place, client: int) -> Channel:
    """A lying server has the server's key."""
    keys = ServerKeys.read(place.root / "server")
    card = clients_of(place)[0][client].keys.card
    return Channel(shared(keys.letters, card.letters, b"letters"))


def first_model(config: Config) -> Params:
    example = Examples(torch.zeros(1, 4), torch.zeros(1).long(), 2, "an example")
    return {name: leaf.unsqueeze(0) for name, leaf in config.built_model(example).init(0).items()}


def test_a_server_that_asks_for_more_than_it_offered_ends_at_the_budget(tmp_path: Path) -> None:
    """The offer said two rounds; it asks for hundreds, and gets as many answers as there is budget for."""
    place = place_with(tmp_path, {})
    clients, _ = clients_of(place)
    hand = Hand(clients)
    directed, _ = direction(place, PRIVATE, hand)
    for number in range(3):
        place.write_policy(number, {"epsilon": 1.7})
    victim = hand.clients[0] = clients_of(place)[0][0]
    to_victim, run = channel(place, 0), b"r" * 16
    offer = replace(directed.job.offer(("client0", "client1", "client2"), False, False), number=0)
    opened = to_victim.open(UP, victim.answer(to_victim.seal(DOWN, run, 1, offer)) or b"")
    assert not isinstance(opened.said, Refused), opened.said
    model = first_model(directed.job.config)
    answered = 0
    for number in range(2, 40):
        down = Down(TRAIN, number, torch.tensor([0]), Published(model))
        said = to_victim.open(UP, victim.answer(to_victim.seal(DOWN, run, number, down)) or b"").said
        if isinstance(said, Refused):
            assert "more is asked than was offered" in said.why
            break
        answered += 1
    assert 2 < answered < 20
    assert on_disk(place, 0, 1.7).spent <= 1.7
    kept = decode((place.home(0) / "home" / "session.bin").read_bytes())
    assert isinstance(kept, Kept)
    assert sum(times for _, _, times in kept.spent) == 2 * answered


def test_noise_is_never_drawn_twice_even_for_the_same_request(tmp_path: Path) -> None:
    """Of two answers to the same request under the same noise, the difference would be bare."""
    place = place_with(tmp_path, {})
    clients, _ = clients_of(place)
    directed, _ = direction(place, PRIVATE, Hand(clients))
    to_victim, run, victim = channel(place, 0), b"r" * 16, clients[0]
    offer = replace(directed.job.offer(("client0", "client1", "client2"), False, False), number=0)
    assert victim.answer(to_victim.seal(DOWN, run, 1, offer))
    down = Down(TRAIN, 0, torch.tensor([0]), Published(first_model(directed.job.config)))
    said = [to_victim.open(UP, victim.answer(to_victim.seal(DOWN, run, number, down)) or b"").said for number in (2, 3)]
    first, second = (one.sent.values for one in said)  # type: ignore[attr-defined]
    assert all(not torch.equal(first[name], second[name]) for name in first)


def test_an_answer_that_is_too_long_does_not_leave(tmp_path: Path) -> None:
    place = place_with(tmp_path, {"most_bytes": 300})
    clients, notes = clients_of(place)
    directed, _ = direction(place, PLAIN, Hand(clients))
    with pytest.raises(TooFewAnswers):
        directed.run()
    assert "is more than most_bytes=300" in notes[0].of("refused")[0]["why"]


@pytest.mark.parametrize(
    ("lie", "told", "kept"),
    [
        ({"labels": ("a", "b")}, "must be among the federation's, ['a', 'b']; the owner's log says more", "['0', '1']"),
        ({"labels": ("0", "b")}, "labels of some rows here must be among the federation's, ['0', 'b']", "['1']"),
        ({"shape": (7,)}, "shape in the offer=(7,) must be that of an example here; the owner's log", "(4,)"),
    ],
)
def test_a_refusal_does_not_say_what_rows_there_are(lie: dict[str, Any], told: str, kept: str, tmp_path: Path) -> None:
    """It named the labels that the offer lacked: a server that offered others was told which records a client has."""
    place = place_with(tmp_path, {})
    clients, notes = clients_of(place)
    directed, _ = direction(place, PLAIN, Hand(clients))
    offer = replace(directed.job.offer(("client0", "client1", "client2"), False, False), number=0, **lie)
    sealed = channel(place, 0).seal(DOWN, b"r" * 16, 1, offer)
    said = channel(place, 0).open(UP, clients[0].answer(sealed) or b"").said
    assert isinstance(said, Refused)
    assert told in said.why
    assert kept not in said.why
    assert kept in notes[0].of("refused")[0]["why"]  # its owner must know what to mend


def test_an_offer_cannot_make_a_client_import_anything(tmp_path: Path) -> None:
    place = place_with(tmp_path, {"models": ["antigravity:Model"]})
    clients, notes = clients_of(place)
    directed, _ = direction(place, PLAIN, Hand(clients))
    offer = replace(directed.job.offer(("client0", "client1", "client2"), False, False), number=0)
    lying = replace(offer, words=offer.words.replace('"dense"', '"antigravity:Model"'))
    sealed = channel(place, 0).seal(DOWN, b"r" * 16, 1, lying)
    assert isinstance(channel(place, 0).open(UP, clients[0].answer(sealed) or b"").said, Refused)
    assert "would import and run 'antigravity:Model'" in notes[0].of("refused")[0]["why"]
    import sys

    assert "antigravity" not in sys.modules


class TestFiles:
    def test_a_policy_names_what_is_wrong_in_it(self, tmp_path: Path) -> None:
        place = place_with(tmp_path, {"epsilonn": 1.0})
        with pytest.raises(InvalidInput, match=r"\[policy\]: key 'epsilonn' is unknown; did you mean 'epsilon'"):
            clients_of(place)

    def test_keys_that_others_may_read_are_refused(self, tmp_path: Path) -> None:
        place = place_with(tmp_path, {})
        (place.home(0) / "keys" / "keys.json").chmod(0o644)
        with pytest.raises(NotPermitted, match="has mode 0644: others may read it; chmod 600 it"):
            clients_of(place)

    def test_a_missing_key_says_how_to_make_it(self, tmp_path: Path) -> None:
        place = place_with(tmp_path, {})
        (place.home(0) / "keys" / "keys.json").unlink()
        with pytest.raises(DataMissing, match="`coterie deploy keys` makes it"):
            clients_of(place)

    def test_what_a_client_keeps_is_for_its_owner_alone(self, tmp_path: Path) -> None:
        place = place_with(tmp_path, {})
        clients, _ = clients_of(place)
        direction(place, PLAIN, Hand(clients))[0].run()
        for name in ("keys", "home"):
            assert (place.home(0) / name).stat().st_mode & 0o077 == 0
        assert (place.home(0) / "keys" / "keys.json").stat().st_mode & 0o077 == 0
        assert (place.root / "server" / "link.key").stat().st_mode & 0o077 == 0


def test_sizes_are_told_where_they_are_public_alone(tmp_path: Path) -> None:
    place = place_with(tmp_path, {"trainers": ["feddp_kmeans", "fedavg"]})
    clients, _ = clients_of(place)
    directed, _ = direction(place, '[trainer]\nkind = "feddp_kmeans"\nclusters = 2\n' + DEPLOY, Hand(clients))
    offer = replace(directed.job.offer(("client0", "client1", "client2"), False, False), number=0)
    to_client = channel(place, 0)
    sealed = clients[0].answer(to_client.seal(DOWN, b"r" * 16, 1, offer))
    assert to_client.open(UP, sealed or b"").said.size == 1  # type: ignore[attr-defined]


def test_messages_are_recorded_where_every_policy_allows_it(tmp_path: Path) -> None:
    place = place_with(tmp_path / "place", {"recording": True})
    place.write_policy(1, {"recording": False})
    clients, notes = clients_of(place)
    directed, log = direction(place, PLAIN, Hand(clients))
    directed.tape = Tape([RECORDER], tmp_path / "tape")
    outcome = directed.run()
    assert "messages would be recorded, and recording=false" in notes[1].of("refused")[0]["why"]
    described(directed.job, None, tmp_path / "tape")
    view = Tape([RECORDER], tmp_path / "tape").view(RECORDER)
    assert view.sent(0).ids.tolist() == [0, 2]  # client 1 took no part
    mean = {name: leaf.double().mean(0) for name, leaf in view.sent(1).values.items()}
    for name, leaf in outcome.plan.protocol.result(outcome.state).values.items():
        torch.testing.assert_close(mean[name].float(), leaf, rtol=0.05, atol=0.05)
    assert 'kind = "fedavg"' in (tmp_path / "tape" / "recording.toml").read_text()
    assert log.of("exchange")[0]["readable"] == sorted(mean)


def test_rows_that_are_prepared_by_each_other_still_hide_a_client_but_no_record() -> None:
    """A client standardises what it has by what it has: all of that is its own, and none of it one record's."""
    examples, nobody = replace(toy().examples, elsewhere="their mean"), torch.empty(0, dtype=torch.int64)
    data = Federation(examples, Shards.of([torch.arange(60)]), Shards.of([nobody]), torch.tensor([-1]))
    for level, proven in ((Level.CLIENT, True), (Level.RECORD, False)):
        protocol = FederatedLloyd(2, level, centres=torch.eye(4)[:2], steps=1, bound=1.0)
        noise = DistributedNoise.within(1.0, 1e-5, protocol.releases(), level, clients=3)
        config = Config.model_validate({"trainer": {"kind": "federated_lloyd"}})
        facts = facts_of(Plan(protocol, noise, None, config), data, 3, 0, 1e-5)
        assert facts is not None
        assert noise.guarantee(facts).proven == proven
