"""Runs whose sums the server cannot read, with the keys where they belong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.deploy.hand import Hand, clients_of, direction
from tests.deploy.places import Place
from tests.deploy.test_policy import DEPLOY, NETWORK, on_disk, place_with, releases

from coterie.deploy.keys import GROUP, ClientKeys, open_sealed, roster, seal_for
from coterie.deploy.participant import Participant
from coterie.deploy.plan import KeyName
from coterie.deploy.policy import ClientFile
from coterie.errors import NotPermitted
from coterie.files import write_atomically
from coterie.seal.ckks import Ckks

NOISY = """
[trainer]
kind = "feddp_kmeans"
clusters = 2
steps = 1
[defence]
kind = "noisy_sums"
epsilon = 4.0
added_by = "shared"
masks = true
signed = true
"""
MINGLED = NETWORK.replace('kind = "fedavg"', 'kind = "ifca"\nclusters = 2\ncandidates = 0') + (
    '[defence]\nkind = "mingling"\ncipher = "ckks"\nexact = true\nunit = 100\n'
)


def test_shared_noise_under_signed_masks_is_paid_for_by_the_client_itself(tmp_path: Path) -> None:
    place = place_with(tmp_path, {}, clients=4)
    place.write_policy(0, {"epsilon": 5.0})
    clients, _ = clients_of(place)
    directed, log = direction(place, NOISY + DEPLOY, Hand(clients))
    outcome = directed.run()
    assert not any(facts["readable"] for facts in log.of("exchange"))
    promised = len(outcome.plan.protocol.releases())
    assert releases(on_disk(place, 0, 5.0)) == promised
    assert (place.home(0) / "home" / "models.npz").exists()
    text = 'name = "again"\n' + NOISY.replace("signed = true", "signed = true\ndropouts = 1") + DEPLOY
    refusing, log = direction(place, text, Hand(clients))
    refusing.run()  # one may be missing: the others' shares of noise are planned to be enough
    assert [facts["client"] for facts in log.of("declined")] == [0]
    assert "would be spent in all" in log.of("declined")[0]["why"]


def test_without_masks_shared_noise_is_a_stand_in_and_refused(tmp_path: Path) -> None:
    place = place_with(tmp_path, {}, clients=4)
    clients, notes = clients_of(place)
    text = NOISY.replace("masks = true\nsigned = true\n", "") + DEPLOY
    with pytest.raises(Exception, match="clients that take part=0 of 4"):
        direction(place, text, Hand(clients))[0].run()
    assert "must have masks = true in a deployment" in notes[0].of("refused")[0]["why"]


@pytest.fixture
def sealed(tmp_path: Path) -> tuple[Place, bytes]:
    """The first client makes a key, and the others open theirs."""
    place = place_with(tmp_path, {})
    cards = {card.name: card for card in roster(place.root / "cards")}
    secret, first = Ckks().keygen().to_bytes(), ClientKeys.read(place.home(0) / "keys")
    for number in range(3):
        keys = ClientKeys.read(place.home(number) / "keys")
        letter = place.home(number) / "letter.json"
        letter.write_bytes(seal_for(cards[keys.name], first, secret, "group key"))
        opened = open_sealed(letter, keys, cards, "group key")
        write_atomically(place.home(number) / "keys" / GROUP, opened, private=True)
    return place, secret


def test_mingled_pie_under_ckks_and_the_server_has_no_key(sealed: tuple[Place, bytes]) -> None:
    place, secret = sealed
    clients, _ = clients_of(place)
    hand = Hand(clients)
    directed, log = direction(place, MINGLED + DEPLOY, hand)
    outcome = directed.run()
    assert isinstance(next(iter(outcome.plan.defence.keys.values())), KeyName)
    assert all(
        facts["sealed"] and not facts["readable"] for facts in log.of("exchange") if "reseal" not in facts["kind"]
    )
    for folder in (place.root / "server", place.root / "runs"):
        for path in (one for one in folder.rglob("*") if one.is_file()):
            assert secret[:64] not in path.read_bytes(), path
    given = [np.load(place.home(number) / "home" / "models.npz") for number in range(3)]
    for name in given[0].files:
        assert all(np.array_equal(given[0][name], other[name]) for other in given)


def test_a_key_that_differs_is_noticed_before_the_run_begins_and_stops_nobody(sealed: tuple[Place, bytes]) -> None:
    place, _ = sealed
    write_atomically(place.home(2) / "keys" / GROUP, Ckks().keygen().to_bytes(), private=True)
    directed, log = direction(place, MINGLED + DEPLOY, Hand(clients_of(place)[0]))
    directed.run()
    (declined,) = log.of("declined")
    assert declined["client"] == 2
    assert "not the one that most clients have" in declined["why"]


def test_a_sealed_key_opens_for_whom_it_was_sealed_alone(sealed: tuple[Place, bytes]) -> None:
    place, _ = sealed
    cards = {card.name: card for card in roster(place.root / "cards")}
    third = ClientKeys.read(place.home(2) / "keys")
    with pytest.raises(NotPermitted, match="is for 'client1', and this is 'client2'"):
        open_sealed(place.home(1) / "letter.json", third, cards, "group key")
    lying = place.home(1) / "lying.json"
    lying.write_text((place.home(1) / "letter.json").read_text().replace('"for": "client1"', '"for": "client2"'))
    with pytest.raises(NotPermitted, match="does not open"):
        open_sealed(lying, third, cards, "group key")


def test_a_client_without_the_shared_key_says_what_is_missing(sealed: tuple[Place, bytes]) -> None:
    place, _ = sealed
    (place.home(1) / "keys" / GROUP).unlink()
    clients, notes = clients_of(place)
    assert isinstance(clients[1], Participant)
    assert isinstance(clients[1].file, ClientFile)
    direction(place, MINGLED + DEPLOY, Hand(clients))[0].run()
    assert "the clients' shared key" in notes[1].of("refused")[0]["why"]
