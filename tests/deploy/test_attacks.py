"""What was tried against a client from its server's side, from its own disk and from a second process: kept."""

from __future__ import annotations

import os
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.hand import Hand, Notes, clients_of, direction
from tests.deploy.places import Place
from tests.deploy.test_malice import NAMES, Lying
from tests.deploy.test_policy import (
    DEPLOY,
    NETWORK,
    PLAIN,
    PRIVATE,
    channel,
    on_disk,
    place_with,
    releases,
)

from coterie.deploy.agent import serve
from coterie.deploy.envelope import DOWN, UP
from coterie.deploy.home import LEDGER, SEEN, SESSION, held
from coterie.deploy.keys import ServerCard, read_private
from coterie.deploy.participant import Participant
from coterie.deploy.plan import Accepted, Refused, Told
from coterie.deploy.policy import ClientFile
from coterie.deploy.running import Job
from coterie.errors import CoterieError, InvalidInput, NotPermitted
from coterie.wire.messages import RESULT, TRAIN

STACK = (
    '[defence]\nkind = "stack"\nmembers = [{ kind = "dpsgd", clip = 1.0, noise_multiplier = 2.0 }, { kind = "none" }]\n'
)


class Private(Lying):
    """A lying server whose run is priced, and its first client's budget is this."""

    def __init__(self, root: Path, epsilon: float | None) -> None:
        super().__init__(root)
        self.job = Job.of(tomllib.loads('name = "run"\n' + PRIVATE), root / "run.toml")
        self.restart(epsilon)

    def restart(self, epsilon: float | None) -> None:
        self.place.write_policy(0, {} if epsilon is None else {"epsilon": epsilon})
        self.log = Notes()
        self.victim = Participant(ClientFile.read(self.place.file(0)), self.log)

    def in_run(self, run: bytes, said: object) -> Any:
        self.number += 1
        to_victim = channel(self.place, 0)
        sealed = self.victim.answer(to_victim.seal(DOWN, run, self.number, said))
        return None if sealed is None else to_victim.open(UP, sealed).said


# -- the budget -------------------------------------------------------------------------------------------------------


def test_an_offer_that_is_refused_leaves_what_is_held_for_the_run_before_it(tmp_path: Path) -> None:
    """Else the run before it would be settled by what it had spent so far, and go on spending."""
    server = Private(tmp_path, 1.5)
    assert isinstance(server.says(server.offer), Accepted)
    server.asks(TRAIN, 0)
    assert releases(on_disk(server.place, 0, 1.5)) == 4
    dear = replace(server.offer, words=server.offer.words.replace('"rounds":2', '"rounds":6'))
    refused = server.in_run(b"q" * 16, dear)
    assert isinstance(refused, Refused)
    assert "would be spent in all" in refused.why
    assert releases(on_disk(server.place, 0, 1.5)) == 4
    server.asks(TRAIN, 1)
    assert releases(on_disk(server.place, 0, 1.5)) == 4


@pytest.mark.parametrize("missing", ["there was no budget when the run began", "somebody took the ledger away"])
def test_a_run_that_goes_on_after_a_restart_is_held_for(tmp_path: Path, missing: str) -> None:
    server = Private(tmp_path, None if "no budget" in missing else 5.0)
    assert isinstance(server.says(server.offer), Accepted)
    server.asks(TRAIN, 0)
    (server.place.home(0) / "home" / LEDGER).unlink(missing_ok=True)
    server.restart(5.0)
    assert releases(on_disk(server.place, 0, 5.0)) == 4  # both rounds, before the second is answered
    server.asks(TRAIN, 1)
    assert releases(on_disk(server.place, 0, 5.0)) == 4


def test_a_run_for_which_there_is_no_room_any_more_is_left(tmp_path: Path) -> None:
    server = Private(tmp_path, None)
    server.says(server.offer)
    server.asks(TRAIN, 0)
    server.restart(0.1)
    assert "would be spent in all" in server.log.of("left")[0]["why"]
    assert isinstance(server.asks(TRAIN, 1), Refused)


def test_of_two_runs_at_once_the_first_is_over_when_the_second_begins(tmp_path: Path) -> None:
    """Two servers' processes with one key cannot spend one budget twice by taking turns."""
    server = Private(tmp_path, 20.0)
    first, second = b"a" * 16, b"b" * 16
    assert isinstance(server.in_run(first, server.offer), Accepted)
    assert isinstance(server.in_run(second, server.offer), Accepted)
    assert server.in_run(first, server.offer) is None  # it has begun before, and does not again
    assert releases(on_disk(server.place, 0)) == 8  # held for both: nobody has said what the first came to


# -- what is asked ----------------------------------------------------------------------------------------------------


def test_a_result_is_handed_out_once(tmp_path: Path) -> None:
    """Each says how well a model of the server's choice serves here: asked without end it would tell every label."""
    server = Lying(tmp_path)
    server.says(server.offer)
    assert isinstance(server.asks(RESULT, 0), Told)
    assert [type(server.asks(kind, 1)) for kind in (RESULT, TRAIN, RESULT)] == [Refused] * 3


def test_a_cohort_is_not_filled_with_one_client_under_its_name_again(tmp_path: Path) -> None:
    """With one colluder whose card is here, masks would hide nobody among three."""
    server = Lying(tmp_path)
    said = server.says(replace(server.offer, names=("client0", "client1", "client1")))
    assert "names in the offer=['client0', 'client1', 'client1'] must differ" in said.why


@pytest.mark.parametrize(
    ("policy", "text", "why"),
    [
        ({"defences": ["stack", "dpsgd"]}, NETWORK + STACK + DEPLOY, "defence 'none' is not among those allowed"),
        ({"defences": ["none", "dpsgd"]}, NETWORK + STACK + DEPLOY, "defence 'stack' is not among those allowed"),
        (
            {"most_rounds": 5},
            '[trainer]\nkind = "feddp_kmeans"\nclusters = 2\nsteps = 1000\n' + DEPLOY,
            "are more than most_rounds=5",
        ),
    ],
)
def test_what_is_allowed_by_name_is_allowed_with_all_that_is_in_it(
    tmp_path: Path, policy: dict[str, object], text: str, why: str
) -> None:
    place = place_with(tmp_path, policy)
    clients, notes = clients_of(place)
    with pytest.raises(CoterieError):
        direction(place, text, Hand(clients))[0].run()
    assert why in notes[0].of("refused")[0]["why"]


@pytest.mark.parametrize(
    "noise", ["1.9999999", "1", "1e-300", "-2.0", "0", "NaN", "Infinity", "null", '"2"', "[2.0]", "true"]
)
def test_no_way_to_write_a_number_gets_under_the_floor(tmp_path: Path, noise: str) -> None:
    place = place_with(tmp_path, {"least_noise": 2.0})
    clients, _ = clients_of(place)
    job = Job.of(tomllib.loads('name = "run"\n' + PRIVATE), tmp_path / "run.toml")
    offer = replace(job.offer(NAMES, False, False), number=0)
    assert '"noise_multiplier":2.0' in offer.words
    words = offer.words.replace('"noise_multiplier":2.0', f'"noise_multiplier":{noise}')
    twice = offer.words.replace('"noise_multiplier":2.0', f'"noise_multiplier":2.0,"noise_multiplier":{noise}')
    without = offer.words.replace(',"noise_multiplier":2.0', "")
    to_client = channel(place, 0)
    for number, said in enumerate((words, twice, without)):
        run = bytes([number]) * 16
        sealed = clients[0].answer(to_client.seal(DOWN, run, 1, replace(offer, words=said)))
        answer = to_client.open(UP, sealed or b"").said
        exact = noise in ('"2"', "Infinity")  # what is no less noise is taken, if it is a number at all
        assert isinstance(answer, Refused) or exact, (noise, said, answer)
    assert offer.words != without


# -- the disk ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """After a run that cost something."""
    place = place_with(tmp_path_factory.mktemp("finished"), {})
    place.write_policy(0, {"epsilon": 20.0})
    direction(place, PRIVATE, Hand(clients_of(place)[0]))[0].run()
    return place


def damaged(data: bytes) -> dict[str, bytes]:
    return {"cut": data[:-5], "changed": b"\x00" + data[1:], "rubbish": b"{}x", "written twice": data + data[:7]}


@pytest.mark.parametrize("name", [LEDGER, SESSION, SEEN])
@pytest.mark.parametrize("how", list(damaged(b"")))
def test_a_damaged_file_stops_the_client_and_is_not_taken_for_none(
    tmp_path: Path, finished: Place, name: str, how: str
) -> None:
    root = shutil.copytree(finished.root, tmp_path / "copy")
    place = Place(root, finished.clients)
    path = place.home(0) / "home" / name
    path.write_bytes(damaged(path.read_bytes())[how])
    if name == SEEN and how == "changed":  # names of runs are any bytes: then it is a run that nobody has offered
        return
    with pytest.raises(CoterieError, match=name):
        Participant(ClientFile.read(place.file(0)), Notes())


def test_two_processes_do_not_work_in_one_home(tmp_path: Path) -> None:
    place = place_with(tmp_path, {})
    with held(place.home(0) / "home"), pytest.raises(NotPermitted, match="is another client's that runs now; stop it"):
        serve(place.file(0), Notes(), lambda: True)


def test_another_clients_home_is_not_ones_own(tmp_path: Path) -> None:
    """Its session names another client: it is left, and nothing of it is answered."""
    place = place_with(tmp_path, {})
    direction(place, PLAIN, Hand(clients_of(place)[0]))[0].run()
    (place.home(1) / "home").rename(tmp_path / "away")
    (place.home(0) / "home").rename(place.home(1) / "home")
    log = Notes()
    client = Participant(ClientFile.read(place.file(1)), log)
    assert "must be that of 'client1'" in log.of("left")[0]["why"]
    assert client.unfinished == b""


def test_what_was_open_to_others_is_not(tmp_path: Path) -> None:
    place = place_with(tmp_path, {})
    home = place.home(0) / "home"
    home.mkdir(mode=0o755)
    clients_of(place)
    assert home.stat().st_mode & 0o077 == 0


class TestKeyFiles:
    def secret(self, folder: Path, mode: int = 0o600) -> Path:
        path = folder / "own.key"
        path.write_bytes(b"k" * 32)
        path.chmod(mode)
        return path

    def test_a_link_is_judged_by_where_it_leads(self, tmp_path: Path) -> None:
        open_to_all, link = self.secret(tmp_path, 0o644), tmp_path / "link"
        link.symlink_to(open_to_all)
        with pytest.raises(NotPermitted, match="has mode 0644: others may read it"):
            read_private(link, "key")
        open_to_all.chmod(0o600)
        assert read_private(link, "key") == b"k" * 32

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
    def test_another_users_key_is_not_ones_own(self, tmp_path: Path) -> None:
        path = self.secret(tmp_path)
        os.chown(path, 12345, 12345)
        with pytest.raises(NotPermitted, match="is user 12345's, who may read it"):
            read_private(path, "key")

    def test_a_card_without_an_authority_trusts_nobody(self, tmp_path: Path) -> None:
        """Else all that the system trusts would do."""
        place = place_with(tmp_path, {})
        path = place.root / "server" / "card.json"
        replace(ServerCard.read(path), authority=b"").write(path)
        with pytest.raises(InvalidInput, match="authority is no certificate"):
            ServerCard.read(path)
