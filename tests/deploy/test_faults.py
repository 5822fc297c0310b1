"""Real processes on loopback that are killed or stopped: the run ends with the right result, or by a stated rule."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from tests.deploy.places import Place
from tests.deploy.test_policy import NETWORK, on_disk, releases, toy

DEPLOY = "[deploy]\nshape = [4]\nclasses = 2\nleast = 2\ndeadline = 12\npatience = 1\nwait = 150\n"
SHORT = NETWORK + DEPLOY
LONG = NETWORK.replace("rounds = 2", "rounds = 6") + DEPLOY


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    found = Place.make(tmp_path_factory.mktemp("faults"), toy(), {})
    try:
        found.start_all()
        yield found
    finally:
        found.close()


def events(place: Place, name: str) -> list[dict[str, object]]:
    """Of the newest run of this name."""
    newest = max((place.root / "runs").glob(f"{name}-*"))
    return [json.loads(line) for line in (newest / "events.jsonl").read_text().splitlines()]


def begin(place: Place, name: str, text: str) -> None:
    (place.root / f"{name}.toml").write_text(f'name = "{name}"\n' + text)
    place.start_run(f"{name}.toml")


def finish(place: Place, seconds: float = 250) -> str:
    place.processes["run"].join(seconds)
    assert place.processes["run"].exitcode is not None, place.log("run")
    return place.log("run")


def answered(place: Place, name: str) -> list[object]:
    return [one["answered"] for one in events(place, name) if one["event"] == "exchange"]


def times(place: Place, who: str, words: str) -> int:
    return place.log(who).count(words)


def test_a_client_that_is_killed_in_mid_round_is_left_out_and_comes_back(place: Place) -> None:
    before = times(place, "client1", '"answered"') if (place.root / "client1.log").exists() else 0
    begin(place, "killed", LONG.replace("patience = 1", "patience = 100"))
    place.await_log("client1", '"answered"', 150, before + 2)
    place.kill("client1")
    place.start_client(1)
    finish(place)
    assert place.processes["run"].exitcode == 0
    found = answered(place, "killed")
    assert len(found) == 6
    assert found[0] == found[-1] == 3  # it remembered the run, and went on in it
    assert set(found) <= {2, 3}


def test_a_hung_client_costs_a_deadline_and_is_then_not_waited_for(place: Place) -> None:
    before = times(place, "client2", '"answered"')
    place.await_log("client1", '"connected"', 150, 2)
    begin(place, "hung", LONG)
    place.await_log("client2", '"answered"', 150, before + 2)
    stopped = place.processes["client2"].pid
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    try:
        finish(place)
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert place.processes["run"].exitcode == 0
    found = answered(place, "hung")
    assert found[0] == 3
    assert found[-1] == 2
    seconds = [float(str(one["seconds"])) for one in events(place, "hung") if one["event"] == "exchange"]
    assert sum(one >= 12 for one in seconds) == 1  # and no more


def test_what_a_client_finds_when_it_wakes_is_old_and_gets_no_answer(place: Place) -> None:
    """After the test above: requests that are void are not delivered, and the next run has all of them."""
    begin(place, "awake", SHORT)
    finish(place)
    assert answered(place, "awake") == [3, 3]


def test_a_killed_run_goes_on_from_its_checkpoint(place: Place) -> None:
    begin(place, "server_app", LONG)
    folder = place.root / "runs" / "server_app-001"
    before = times(place, "client0", '"answered"')
    place.await_log("client0", '"answered"', 150, before + 3)
    place.kill("run")
    place.start_run("--resume", str(folder))
    finish(place)
    assert place.processes["run"].exitcode == 0, place.log("run")
    rounds = [one["round"] for one in events(place, "server_app") if one["event"] == "exchange"]
    assert rounds[-1] == 5
    assert set(range(6)) <= {int(str(one)) for one in rounds}
    begin(place, "never_killed", LONG)
    finish(place)
    with np.load(folder / "models.npz") as found, np.load(place.root / "runs/never_killed-001/models.npz") as expected:
        for name in expected.files:
            torch.testing.assert_close(torch.from_numpy(found[name]), torch.from_numpy(expected[name]))


def test_a_killed_link_ends_the_run_which_goes_on_when_there_is_one_again(place: Place) -> None:
    begin(place, "link", LONG)
    before = times(place, "client0", '"answered"')
    place.await_log("client0", '"answered"', 150, before + 2)
    place.kill("server")
    said = finish(place)
    assert place.processes["run"].exitcode == 2
    assert "the link does not answer" in said
    place.start_server()
    place.start_run("--resume", str(place.root / "runs" / "link-001"))
    finish(place)
    assert place.processes["run"].exitcode == 0, place.log("run")
    rounds = {int(str(one["round"])) for one in events(place, "link") if one["event"] == "exchange"}
    assert rounds == set(range(6))


def test_a_ledger_is_right_after_a_client_was_killed(place: Place) -> None:
    """What was held for the run stays held; nothing that left is missing."""
    place.kill("client0")
    place.write_policy(0, {"epsilon": 5.0})
    connected = times(place, "client0", '"connected"')
    place.start_client(0)
    place.await_log("client0", '"connected"', 150, connected + 1)
    noise = '[defence]\nkind = "dpsgd"\nclip = 1.0\nnoise_multiplier = 2.0\n'
    before = times(place, "client0", '"answered"')
    begin(place, "ledger", NETWORK.replace("rounds = 2", "rounds = 6") + "poisson = true\n" + noise + DEPLOY)
    place.await_log("client0", '"answered"', 150, before + 1)
    place.kill("client0")
    assert releases(on_disk(place, 0, 5.0)) == 12  # six rounds of two steps, held before the first answer left
    place.start_client(0)
    finish(place)
    assert releases(on_disk(place, 0, 5.0)) == 12
