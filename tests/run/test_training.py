"""Runs: the same bytes for the same seed, also after being killed at any moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.ring import Halves, blobs

from coterie.defences.dpsgd import DpSgd
from coterie.errors import BudgetSpent, InvalidInput, RunDamaged
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard
from coterie.learn.models.dense import Dense
from coterie.learn.sgd import Local
from coterie.measure.witness import Witness
from coterie.privacy.guarantee import Neighbours
from coterie.privacy.ledger import Ledger, Spend
from coterie.protocols.fedem import FedEM
from coterie.rng import Rng
from coterie.run.folder import CHECKPOINT, METRICS, MODELS, RunFolder, free_folder, list_runs, write_atomically
from coterie.run.training import Outcome, train
from coterie.wire.codec import encode
from coterie.wire.messages import Contributions, Down
from coterie.wire.view import ThreatModel

CONFIG = """
name = "{trainer}"
seed = 3
evaluate_every = 2
[data]
kind = "digits"
[partition]
kind = "label_sets"
clients = 10
sets = 5
[model]
kind = "fcnn"
hidden = 16
[trainer]
kind = "{trainer}"
rounds = {rounds}
local = {{ steps = 2, batch_size = 8, lr = 0.1 }}
"""


MAIN = "from coterie.commands.cli import main; main()"
HELD = f"""
import time
from pathlib import Path
from coterie.run import folder

def write_or_wait(path, data, write=folder.write_atomically):
    while path.name == folder.METRICS and data.count(b"\\n") > 2:
        Path("held").touch()
        time.sleep(0.01)
    write(path, data)

folder.write_atomically = write_or_wait
{MAIN}
"""
"""Waits to be killed where it hurts most: the checkpoint is new, and the metrics beside it are not yet."""


def coterie(*arguments: object, folder: Path, program: str = MAIN) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return output


def contents(run: Path) -> dict[str, bytes]:
    return {name: (run / name).read_bytes() for name in (CHECKPOINT, METRICS, MODELS)}


@pytest.mark.parametrize("trainer", ["ifca", "fedem"])
def test_a_killed_run_resumed_equals_one_never_killed(tmp_path: Path, trainer: str) -> None:
    (tmp_path / "c.toml").write_text(CONFIG.format(trainer=trainer, rounds=30))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(coterie("train", "c.toml", "--runs", whole, folder=tmp_path))
    process = coterie("train", "c.toml", "--runs", killed, folder=tmp_path, program=HELD)
    run = killed / f"{trainer}-{trainer}-001"
    while not (tmp_path / "held").exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert RunFolder(run).state == "stopped"
    finish(coterie("resume", run, folder=tmp_path))
    assert RunFolder(run).state == "finished"
    assert contents(run) == contents(whole / f"{trainer}-{trainer}-001")


def test_a_finished_run_is_listed_and_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CONFIG.format(trainer="fedavg", rounds=2))
    output = finish(coterie("train", "c.toml", folder=tmp_path))
    assert "fedavg" in output
    assert "accuracy" in output
    listed = finish(coterie("runs", folder=tmp_path))
    assert "finished" in listed
    assert "nothing to do" in finish(coterie("resume", "runs/fedavg-fedavg-001", folder=tmp_path))


def test_the_record_says_what_it_takes_to_run_it_again(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CONFIG.format(trainer="fedavg", rounds=1))
    finish(coterie("train", "c.toml", "--seed", 9, folder=tmp_path))
    record = json.loads((tmp_path / "runs/fedavg-fedavg-001/run.json").read_text())
    assert record["config"]["seed"] == 9
    assert record["config"]["trainer"]["local"]["lr"] == 0.1
    assert {"python", "coterie", "torch", "numpy"} <= record["versions"].keys()


def test_errors_are_messages_without_a_traceback(tmp_path: Path) -> None:
    process = coterie("resume", "nowhere", folder=tmp_path)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "nowhere" in output
    assert "Traceback" not in output


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "r", {"config": {}})
    write_atomically(run.path / CHECKPOINT, b"COTERIE1 and then nothing sensible")
    with pytest.raises(RunDamaged, match=r"checkpoint\.bin is damaged"):
        run.load()


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "r", {"config": {}})
    with pytest.raises(InvalidInput, match="already holds a run"):
        RunFolder.create(tmp_path / "r", {"config": {}})


def test_two_processes_cannot_work_on_one_run(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "r", {"config": {}})
    with run.held():
        assert run.state == "running"
        with pytest.raises(InvalidInput, match="another process"), run.held():
            pass
    assert run.state == "stopped"


def test_folders_are_numbered_and_listed(tmp_path: Path) -> None:
    for _ in range(2):
        RunFolder.create(free_folder(tmp_path, "x"), {"config": {}})
    assert [run.path.name for run in list_runs(tmp_path)] == ["x-001", "x-002"]


# -- in this process ------------------------------------------------------------------------------------------------

FEDERATION = blobs([12] * 6)
LOCAL = Local(steps=2, batch_size=4, lr=0.2)
PAIR = ThreatModel("clients 1 and 4", clients=frozenset({1, 4}))


class Stopped(Exception):
    """As if it had been killed."""


@dataclass(frozen=True)
class Drifting:
    """All that it sends follows from what it sent before."""

    threat: ThreatModel = PAIR

    def answer(self, asked: Down, honest: Contributions, memory: dict[str, Any], rng: Rng) -> Contributions:
        before = memory.get("sent", honest.values)
        noise = float(rng.numpy().normal())
        memory["sent"] = {name: 0.5 * leaf + 0.1 * noise for name, leaf in before.items()}
        return replace(honest, values=memory["sent"])


@dataclass(frozen=True)
class Telling(ClientGuard):
    """Writes down what it spends and what it sees."""

    metrics: bool

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        cohort.turn.ledger.spend(Spend("telling", 1.0), sent.ids.tolist())
        for client in sent.ids.tolist() if self.metrics else ():
            cohort.turn.metrics.note("shade", float(client + cohort.turn.round))
        return sent


def stopped_and_resumed(
    tmp_path: Path, stops: tuple[int, ...], metrics: bool = False
) -> tuple[Outcome, Outcome, Witness, Witness]:
    """A run that was never stopped, and one that was before these rounds."""
    protocol = FedEM(rounds=6, local=LOCAL, components=2)

    def run(name: str, stop: int | None, witness: Witness) -> Outcome:
        folder = RunFolder(tmp_path / name)
        if not folder.path.exists():
            RunFolder.create(folder.path, {"config": {}})

        def tell(done: int, newest: object) -> None:
            if done == stop:
                raise Stopped

        return train(
            protocol,
            FEDERATION,
            Dense((4, 5, 3)),
            seed=5,
            defence=Halves(Telling(metrics)),
            evaluate_every=2,
            folder=folder,
            adversaries=[Drifting()],
            witness=witness,
            progress=tell,
        )

    for stop in stops:
        with pytest.raises(Stopped):
            run("stopped", stop, Witness())
    seen, saw = Witness(), Witness()
    return run("whole", None, seen), run("stopped", None, saw), seen, saw


def test_noise_that_may_be_out_is_not_drawn_again(tmp_path: Path) -> None:
    """Resumed with another seed, a round under way would be paid for once and released twice."""
    protocol = FedEM(rounds=6, local=replace(LOCAL, poisson=True), components=2)
    folder = RunFolder.create(tmp_path / "run", {"config": {}})

    def tell(done: int, newest: object) -> None:
        if done == 3:
            raise Stopped

    with pytest.raises(Stopped):
        train(protocol, FEDERATION, Dense((4, 3)), seed=5, defence=DpSgd(1.0, 2.0), folder=folder, progress=tell)
    for seed in (6, None):
        with pytest.raises(InvalidInput, match="would draw noise again"):
            train(protocol, FEDERATION, Dense((4, 3)), seed=seed, defence=DpSgd(1.0, 2.0), folder=folder)
    done = train(protocol, FEDERATION, Dense((4, 3)), seed=5, defence=DpSgd(1.0, 2.0), folder=folder)
    assert done.simulated


def test_a_ledger_composes_over_runs_and_refuses() -> None:
    protocol = FedEM(rounds=2, local=replace(LOCAL, poisson=True), components=2)
    book = Ledger(limit=20.0, delta=1e-5)
    done = train(protocol, FEDERATION, Dense((4, 3)), seed=None, defence=DpSgd(1.0, 3.0), ledger=book)
    assert not done.simulated
    once = done.ledger.epsilon(1e-5, Neighbours.ZERO_OUT)
    assert book.spent == pytest.approx(once)
    train(protocol, FEDERATION, Dense((4, 3)), seed=1, defence=DpSgd(1.0, 3.0), ledger=book)
    assert once < book.spent < 2 * once
    with pytest.raises(BudgetSpent, match="epsilon="):
        train(protocol, FEDERATION, Dense((4, 3)), seed=2, defence=DpSgd(1.0, 0.2), ledger=book)
    with pytest.raises(BudgetSpent, match="nothing is claimed"):
        train(protocol, FEDERATION, Dense((4, 3)), seed=2, ledger=book)


@pytest.mark.parametrize("stops", [(0,), (3,), (2, 5)])
def test_everything_goes_on_with_a_resumed_run(tmp_path: Path, stops: tuple[int, ...]) -> None:
    """Models, what clients and insiders remember, the ledger, the measurements, and the truth's witness."""
    whole, resumed, seen, saw = stopped_and_resumed(tmp_path, stops)
    assert encode(resumed.state) == encode(whole.state)
    assert encode(saw) == encode(seen)
    assert sorted(resumed.ledger.rows) == sorted(whole.ledger.rows)
    assert resumed.ledger.rows[0][2] == 6
    for name in (CHECKPOINT, MODELS):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    kept = RunFolder(tmp_path / "stopped").load()
    assert kept is not None
    assert "sent" in kept.memory[-1]


def test_the_count_of_bytes_is_of_the_whole_run(tmp_path: Path) -> None:
    whole, resumed, _, _ = stopped_and_resumed(tmp_path, (3,))
    assert resumed.traffic == whole.traffic


def test_metrics_are_of_the_whole_run(tmp_path: Path) -> None:
    whole, resumed, _, _ = stopped_and_resumed(tmp_path, (3,), metrics=True)
    assert resumed.history == whole.history
