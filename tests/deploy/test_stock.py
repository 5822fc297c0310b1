"""The second way, by Flower's public names: the same models again, in processes that Flower starts for each message."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from tests.deploy.hand import Notes
from tests.deploy.places import Place, free_port
from tests.deploy.test_policy import DEPLOY, NETWORK, PLAIN, PRIVATE, on_disk, place_with, toy
from tests.deploy.test_same_as_simulated import RUNS, assert_same, two_kinds, words

from coterie.deploy import stock
from coterie.deploy.envelope import UP, Channel
from coterie.deploy.home import held
from coterie.deploy.keys import AUTHORITY, LINK_CERTIFICATE, LINK_KEY, ServerKeys, roster, shared
from coterie.deploy.participant import Participant
from coterie.deploy.policy import ClientFile
from coterie.deploy.transport import TooFewAnswers

STRANGER = 66


class Nodes(Grid):  # type: ignore[misc]
    """Flower's grid as an app sees it. Each message meets a client that was started for it."""

    def __init__(self, place: Place) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0  # as Flower sets them in its process
        self.contexts = {
            100 + number: Context(1, 100 + number, {"client": str(place.file(number))}, RecordDict(), {})
            for number in range(place.clients)
        }
        self.replies: dict[str, Message] = {}
        self.pushed: list[tuple[int, bytes, bytes]] = []

    def get_node_ids(self) -> Iterable[int]:
        return [*self.contexts, STRANGER]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        name, node = f"m{len(self.pushed)}", message.metadata.dst_node_id
        message.metadata.__dict__["_message_id"] = name
        reply = self.stranger(message) if node == STRANGER else stock.client_app(message, self.contexts[node])
        self.pushed.append((node, stock._body(message), stock._body(reply)))
        self.replies[name] = reply
        return name

    def stranger(self, message: Message) -> Message:
        """Says that it is a client, and has no key of one."""
        body = stock._body(message)
        lie = b"client0\n" + Channel(b"k" * 32).seal(UP, body[len(stock.WHO) :], 0, "client0")
        return Message(RecordDict({stock.RECORD: ConfigRecord({stock.BODY: lie})}), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(name) for name in message_ids if name in self.replies]

    def set_run(self, run: object) -> None: ...

    def run(self) -> None: ...

    def create_message(self, *_: object) -> None: ...

    def send_and_receive(self, *_: object, **__: object) -> None: ...


def settings(place: Place, text: str, resume: str = "") -> Context:
    (place.root / "run.toml").write_text(text)
    said = {"home": place.root / "server", "file": place.root / "run.toml", "runs": place.root / "runs"}
    return Context(1, 0, {}, RecordDict(), {name: str(path) for name, path in said.items()} | {"resume": resume})


@pytest.mark.parametrize("name", list(RUNS))
def test_the_app_gives_what_the_simulator_says(name: str, tmp_path: Path) -> None:
    """Under masks, too, whose secrets wait in Flower's context between the four requests."""
    data = two_kinds(4)
    place = Place.make(tmp_path, data)
    stock.main(Nodes(place), settings(place, words(name)))
    assert_same(place, words(name), data)


def events(place: Place, run: str = "run-001") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place.root / "runs" / run / "events.jsonl").read_text().splitlines()]


def test_a_node_is_the_client_whose_key_it_has_and_whoever_else_says_so_is_sent_nothing(tmp_path: Path) -> None:
    place = place_with(tmp_path, {})
    grid = Nodes(place)
    stock.main(grid, settings(place, 'name = "run"\n' + PLAIN))
    sent = [body for node, body, _ in grid.pushed if node == STRANGER]
    assert [body[: len(stock.WHO)] for body in sent] == [stock.WHO]
    assert [one["answered"] for one in events(place) if one["event"] == "exchange"] == [3, 3]


def test_an_introduction_is_for_one_run_alone(tmp_path: Path) -> None:
    place = place_with(tmp_path, {})
    keys, cards = ServerKeys.read(place.root / "server"), roster(place.root / "server" / "clients")
    channels = [Channel(shared(keys.letters, card.letters, b"letters")) for card in cards]
    numbers = {card.name: number for number, card in enumerate(cards)}
    told = Participant(ClientFile.read(place.file(1)), Notes()).introduced(b"r" * 16)
    assert stock._who(told, b"r" * 16, numbers, channels) == 1
    assert stock._who(told, b"q" * 16, numbers, channels) is None
    for lie in (b"", b"client1", told.replace(b"client1\n", b"client0\n"), b"\xff\n", b"client1\nrubbish"):
        assert stock._who(lie, b"r" * 16, numbers, channels) is None


def test_the_policy_and_the_ledger_are_those_of_the_first_way(tmp_path: Path) -> None:
    place = place_with(tmp_path, {})
    place.write_policy(0, {"epsilon": 1.5})  # a run costs 1.365
    stock.main(Nodes(place), settings(place, 'name = "run"\n' + PRIVATE))
    assert 1.3 < on_disk(place, 0, 1.5).spent < 1.5
    stock.main(Nodes(place), settings(place, 'name = "more"\n' + PRIVATE))
    (declined,) = (one for one in events(place, "more-001") if one["event"] == "declined")
    assert (declined["client"], "would be spent in all" in declined["why"]) == (0, True)
    assert "would be spent in all" in (place.home(0) / "home" / stock.CLIENT_LOG).read_text()


def test_a_run_that_ended_early_goes_on_with_resume(tmp_path: Path) -> None:
    place = place_with(tmp_path, {"draws": "run"})

    class Dying(Nodes):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            found = super().pull_messages(message_ids)
            return [] if len(self.pushed) > 10 else found  # who, offer and a round

    text = 'name = "run"\n' + PLAIN.replace("deadline = 5", "deadline = 0.1")
    with pytest.raises(TooFewAnswers, match="answers to 'train' in round 1=0 of 3"):
        stock.main(Dying(place), settings(place, text))
    stock.main(Nodes(place), settings(place, text, str(place.root / "runs" / "run-001")))
    assert_same(place, text, toy())


def test_a_message_meets_no_second_process_of_its_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at once would answer one letter twice, and count it once."""
    place = place_with(tmp_path, {})
    monkeypatch.setattr(stock, "BUSY", 0.0)
    grid = Nodes(place)
    with held(place.home(1) / "home"):
        stock.main(grid, settings(place, 'name = "run"\n' + PLAIN.replace("[deploy]", "[deploy]\nwait = 0.1")))
    assert {node for node, _, answer in grid.pushed if not answer} == {101}
    assert [one["answered"] for one in events(place) if one["event"] == "exchange"] == [2, 2]


def test_what_waits_between_two_requests_is_taken_up_after_the_last_letter_alone(tmp_path: Path) -> None:
    """Killed when its session was written, a process leaves what was before: secrets of a request that is past."""
    place = place_with(tmp_path, {"defences": ["secure_sums"]})
    states: list[bytes] = []

    class Watching(Nodes):
        def _push(self, message: Message) -> str:
            name = super()._push(message)
            states.append(stock._body_of(self.contexts[100].state))
            return name

    grid = Watching(place)
    text = NETWORK + '[defence]\nkind = "secure_sums"\nsigned = true\n' + DEPLOY
    stock.main(grid, settings(place, 'name = "run"\n' + text))
    waiting = [one for one in states if one]
    assert len(set(waiting)) >= 3
    client = Participant(ClientFile.read(place.file(0)), Notes())
    for one in waiting:
        client.go_on(one)
        assert client.unfinished == b""


# -- processes --------------------------------------------------------------------------------------------------------


class Stock:
    """A SuperLink with TLS and node authentication, and a SuperNode a client, as the guide has them."""

    def __init__(self, place: Place) -> None:
        self.place, self.port = place, free_port()
        home = place.root / "flower"
        home.mkdir()
        server = place.root / "server"
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{server / AUTHORITY}"\n'
        )
        bin, paths = Path(sys.executable).parent, [one for one in sys.path if one]
        self.environment = os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": "1",
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *command: object) -> None:
        with (self.place.root / "flower.log").open("ab") as log:
            words = [str(word) for word in command]
            self.processes.append(
                subprocess.Popen(
                    words,
                    cwd=self.place.root,
                    env=self.environment,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def say(self, *command: object) -> str:
        words = [str(word) for word in command]
        done = subprocess.run(words, cwd=self.place.root, env=self.environment, capture_output=True, text=True)
        return done.stdout + done.stderr if done.returncode == 0 else f"failed: {done.stdout}{done.stderr}"

    def start_all(self) -> None:
        server = self.place.root / "server"
        tls = ["--ssl-ca-certfile", server / AUTHORITY, "--ssl-certfile", server / LINK_CERTIFICATE]
        self.start(
            *("flower-superlink", "--host", "127.0.0.1", "--port", self.port, *tls, "--ssl-keyfile", server / LINK_KEY),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
        )
        for number in range(self.place.clients):
            node = self.place.home(number) / "node"
            self.say("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", node)
            until = time.monotonic() + 90
            while "registered" not in (said := self.say("flwr", "supernode", "register", f"{node}.pub", "here")):
                assert time.monotonic() < until, said
            self.start(
                *("flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--port", free_port()),
                *("--root-certificates", server / AUTHORITY, "--auth-supernode-private-key", node),
                *("--node-config", f'client="{self.place.file(number)}"'),
            )

    def close(self) -> None:
        for process in self.processes:
            os.killpg(process.pid, signal.SIGKILL)  # with what they started: they take their time to say goodbye
        for process in self.processes:
            process.wait()


@contextmanager
def stock_of(place: Place) -> Iterator[Stock]:
    found = Stock(place)
    try:
        found.start_all()
        yield found
    finally:
        found.close()


@pytest.mark.timeout(600)
def test_stock_supernodes_give_what_the_simulator_says(tmp_path: Path) -> None:
    """Plain `flwr` commands, and a process a message: so one round, of two clients."""
    data = two_kinds(2)
    place = Place.make(tmp_path, data)
    text = words("ifca").replace("least = 4", "least = 2").replace("rounds = 2", "rounds = 1")
    (tmp_path / "run.toml").write_text(text.replace("candidates = 4", "candidates = 0"))
    with stock_of(place) as flower:
        flower.say("coterie", "deploy", "app", "run.toml", "--home", "server")
        assert [one.name for one in (tmp_path / "app").iterdir()] == ["pyproject.toml"]  # it holds no code
        assert "Successfully started run" in flower.say("flwr", "run", "app", "here")
        until, done = time.monotonic() + 400, tmp_path / "runs" / "ifca-001" / "models.npz"
        while not done.exists():
            assert time.monotonic() < until, (tmp_path / "flower.log").read_text()[-3000:]
            time.sleep(0.2)
    assert_same(place, (tmp_path / "run.toml").read_text(), data)
    events = [json.loads(line) for line in (done.parent / "events.jsonl").read_text().splitlines()]
    assert [one["answered"] for one in events if one["event"] == "exchange"] == [2]
