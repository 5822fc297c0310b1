"""Runs: the same bytes for the same seed, also after being killed at any moment."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import stat
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.ring import Halves, blobs
from torch import nn

from coterie.commands.cli import app as main
from coterie.config.schema import parse
from coterie.data.federation import Examples, Federation
from coterie.defences.dpsgd import DpSgd
from coterie.errors import BudgetSpent, InvalidInput, RunDamaged
from coterie.files import write_atomically
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import as_model
from coterie.learn.params import pick
from coterie.learn.sgd import Local
from coterie.measure.groups import Clusters
from coterie.measure.stopping import Patience
from coterie.measure.utility import Scores
from coterie.measure.witness import Witness
from coterie.privacy.guarantee import Neighbours
from coterie.privacy.ledger import Ledger, Spend
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.fedem import FedEM
from coterie.protocols.ifca import Ifca
from coterie.protocols.local_only import LocalOnly
from coterie.protocols.starts import Given
from coterie.rng import Rng, Secrets
from coterie.run.folder import CHECKPOINT, METRICS, MODELS, SECRETS, RunFolder, free_folder, list_runs, versions
from coterie.run.origin import Origin
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

def write_or_wait(path, data, private=False, write=folder.write_atomically):
    while path.name == folder.METRICS and data.count(b"\\n") > 2:
        Path("held").touch()
        time.sleep(0.01)
    write(path, data, private)

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
    """All that was made; every run has secrets of its own, by whose fingerprint alone two of them differ."""
    saved = RunFolder(run).load()
    assert saved is not None
    made = {name: (run / name).read_bytes() for name in (METRICS, MODELS)}
    return made | {CHECKPOINT: encode(replace(saved, root=""))}


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


def test_what_noise_comes_from_is_secret_kept_and_in_nothing_that_is_shared(tmp_path: Path) -> None:
    """Neither the seed nor the record nor a recording gives it away; the run goes on with the same."""
    text = CONFIG.format(trainer="fedavg", rounds=2) + '[defence]\nkind = "dpsgd"\nclip = 1.0\nnoise_multiplier = 1.0\n'
    (tmp_path / "c.toml").write_text(text.replace("lr = 0.1", "lr = 0.1, poisson = true"))
    for name in ("a", "b"):
        finish(coterie("train", "c.toml", "--runs", name, "--record", f"recorded {name}", folder=tmp_path))
    one, other = (tmp_path / name / "fedavg-fedavg-001" for name in ("a", "b"))
    assert contents(one)[MODELS] != contents(other)[MODELS]  # of the same seed
    secret = (one / SECRETS).read_bytes()
    for path in (one / SECRETS, one / CHECKPOINT):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for path in tmp_path.rglob("*"):
        if path.is_file() and path != one / SECRETS:
            assert secret not in path.read_bytes()
            assert secret.hex() not in path.read_text(errors="ignore")
    assert RunFolder(one).secrets().fingerprint() == Secrets(secret, False).fingerprint()
    (one / SECRETS).write_bytes(b"short")
    with pytest.raises(RunDamaged, match=r"noise\.secret is damaged"):
        RunFolder(one).secrets()


def test_a_run_goes_on_with_what_it_was_begun_with_or_not_at_all(tmp_path: Path) -> None:
    config = parse(tomllib.loads(CONFIG.format(trainer="fedavg", rounds=2)), "c")
    federation = config.federation()
    origin = Origin.of(config, federation)
    record = {**origin.entry, "versions": versions()}
    assert origin.compare(record, "r") == []
    older = {**record, "versions": {**versions(), "torch": "1.0"}}
    (line,) = origin.compare(older, "r")
    assert line.startswith(f"torch is {versions()['torch']} and was 1.0, ")
    examples = replace(federation.examples, x=federation.examples.x + 1)
    others = {
        "its settings": Origin.of(config.model_copy(update={"seed": 4}), federation),
        "its data": Origin.of(config, replace(federation, examples=examples)),
    }
    for what, other in others.items():
        with pytest.raises(InvalidInput, match=f"begun with something else: {what} changed since"):
            other.compare(record, "r")


@pytest.mark.parametrize("text", ["[1]", "{}", "", "nonsense", '{"config": 3}', '{"config": {}, "created": 7}', "\xff"])
def test_a_damaged_record_stops_nobody_else(tmp_path: Path, text: str) -> None:
    whole = RunFolder.create(tmp_path / "whole", {"config": {}})
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "run.json").write_bytes(text.encode("latin-1"))
    found = list_runs(tmp_path)
    assert {run.path.name for run in found} == {"odd", "whole"}
    assert whole.state == "stopped"
    assert RunFolder(tmp_path / "odd").state in ("damaged", "stopped")
    main(["runs", "--runs", str(tmp_path)], standalone_mode=False)


def test_two_processes_that_want_one_folder_do_not_share_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: free_folder(tmp_path, "x"), range(8)))
    assert len(set(paths)) == 8

    def create(number: int) -> bool:
        try:
            RunFolder.create(tmp_path / "one", {"config": {"number": number}})
        except InvalidInput:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(create, range(8))) == 1
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["run.json"]


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
    protocol = FedAvg(rounds=2, local=replace(LOCAL, poisson=True))
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


def test_no_way_to_run_again_wipes_what_was_spent(tmp_path: Path) -> None:
    """Resumed with another seed, or in a folder that was emptied in between: new noise is paid for anew."""
    book = Ledger(limit=50.0, delta=1e-5, path=tmp_path / "ledger.bin")
    protocol, folder = FedAvg(rounds=1, local=replace(LOCAL, poisson=True)), RunFolder(tmp_path)

    def again(seed: int | None) -> Outcome:
        return train(
            protocol, FEDERATION, Dense((4, 3)), seed=seed, defence=DpSgd(1.0, 3.0), ledger=book, folder=folder
        )

    again(0)
    once = book.spent
    with pytest.raises(InvalidInput, match="another than the run's"):
        again(1)
    assert book.spent == once
    again(0)  # the same noise: nothing is told that was not
    assert book.spent == once
    assert book.simulated
    (folder.path / CHECKPOINT).unlink()
    again(None)
    assert book.spent > once


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


# -- what an outcome offers --------------------------------------------------------------------------------------------


class Shifted(nn.Module):
    """A module with a buffer that changes what it says."""

    shift: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("shift", torch.tensor([5.0, 0.0, 0.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.shift  # type: ignore[no-any-return]


SHORT = Local(steps=3, batch_size=4, lr=0.2)


@pytest.mark.parametrize("model", [Dense((4, 5, 3), dropout=0.5), Shifted], ids=["dense", "module with a buffer"])
@pytest.mark.parametrize(
    "protocol",
    [Ifca(rounds=3, local=SHORT, clusters=2), FedEM(rounds=3, local=SHORT, components=2)],
    ids=["hard", "soft"],
)
def test_modules_predict_as_the_federation_was_scored(protocol: Any, model: Any) -> None:
    federation = blobs([9, 12, 8, 10])
    outcome = train(protocol, federation, model)
    for client in range(4):
        rows = federation.test[client]
        module = outcome.module(client)
        right = (module(federation.examples.x[rows]).argmax(1) == federation.examples.y[rows]).float().mean()
        assert float(right) == pytest.approx(float(outcome.scores.values[client]))
    x = federation.examples.x[:5]
    for slot in range(2):
        expected = as_model(model).logits(pick(outcome.models, slot), x)
        torch.testing.assert_close(outcome.module(slot=slot)(x), expected)
    for wrong in ({}, {"client": 0, "slot": 0}, {"client": 4}, {"slot": 2}):
        with pytest.raises(InvalidInput, match=r"client|slot"):
            outcome.module(**wrong)


def test_clusters_beside_known_groups(two_groups: Federation, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", {})
    local = Local(steps=5, batch_size=6, lr=0.3)
    outcome = train(Ifca(rounds=15, local=local, clusters=3), two_groups, Dense((4, 5, 3)), folder=folder)
    clusters = outcome.clusters
    assert sum(clusters.sizes) == two_groups.clients
    assert clusters.empty == tuple(slot for slot, size in enumerate(clusters.sizes) if size == 0)
    newest = folder.history[-1]
    assert newest["ari"] == pytest.approx(clusters.ari)
    assert newest["starved"] == list(clusters.starved)
    assert outcome.accuracy > 0.9


def test_clusters_by_hand() -> None:
    """Four clients, three slots: two of the first group in slot 0, one of the second in each of 0 and 2."""
    choices = torch.tensor([[1.0, 0, 0], [1, 0, 0], [1, 0, 0], [0, 0, 1]])
    found = Clusters.of(Scores(torch.tensor([0.5, 0.7, torch.nan, 1.0]), choices), torch.tensor([0, 0, 1, 1]))
    assert found.sizes == (3, 0, 1)
    assert found.values[0] == pytest.approx(0.6)
    assert math.isnan(found.values[1])
    assert found.empty == found.starved == (1,)
    assert found.warning == "1 of 3 models are used by nobody: 1"
    assert found.words == f"clients a model: 3 (0.6), 1 (1); ARI {found.ari:.2f}; {found.warning}"
    alone = Clusters.of(Scores(torch.linspace(0.1, 1.0, 10), torch.eye(10)), torch.full((10,), -1))
    assert alone.words == "clients a model: 10 models of 1 to 1 (0.1 to 1)"
    assert found.ari == pytest.approx(0.0, abs=0.35)
    assert not found.recovered
    soft = Scores(torch.zeros(2), torch.tensor([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1]]))
    starved = Clusters.of(soft, torch.tensor([-1, -1]))
    assert starved.starved == (2,)
    assert "components 2 starve: mean weight 0.10, where 0.33 would be even" in starved.warning
    assert math.isnan(starved.ari)
    assert "ari" not in starved.row()


def test_patience() -> None:
    rule = Patience(measurements=2, least=0.01)
    assert not rule.enough([0.5, 0.6])
    assert not rule.enough([0.5, 0.505, 0.6])
    assert rule.enough([0.5, 0.6, 0.605, 0.6])


def test_a_run_may_stop_early(two_groups: Federation) -> None:
    """A rate of almost nothing improves nothing: three measurements are enough."""
    still = FedAvg(rounds=50, local=Local(steps=1, lr=1e-9))
    outcome = train(still, two_groups, Dense((4, 3)), evaluate_every=2, stop=Patience(2))
    assert outcome.state.round == 6
    assert [row["round"] for row in outcome.history] == [2, 4, 6]


def test_start_is_the_trainer_s_begins(two_groups: Federation) -> None:
    models = [Dense((4, 3)).init(7)]
    outcome = train(FedAvg(rounds=0), two_groups, Dense((4, 3)), start=Given(given=models))
    assert all(torch.equal(outcome.models[name][0], leaf) for name, leaf in models[0].items())


def test_fine_tuning_from_a_federation(two_groups: Federation) -> None:
    local = Local(steps=10, batch_size=6, lr=0.3)
    one = train(FedAvg(rounds=5, local=local), two_groups, Dense((4, 5, 3)))
    tuned = train(
        LocalOnly(rounds=5, local=local), two_groups, Dense((4, 5, 3)), start=Given(given=one.models_of_clients())
    )
    assert tuned.accuracy > one.accuracy + 0.1  # one model cannot serve two groups; fine-tuned, it can


def test_runs_are_plotted(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CONFIG.format(trainer="ifca", rounds=2))
    finish(coterie("train", "c.toml", folder=tmp_path))
    finish(coterie("runs", "--plot", "page.html", folder=tmp_path))
    page = (tmp_path / "page.html").read_text()
    assert "Mean test accuracy over clients" in page
    assert "ifca-ifca-001: the score of each model" in page
    assert "Mean squared error" not in page


@pytest.mark.parametrize(
    "protocol",
    [Ifca(rounds=2, local=SHORT, clusters=2), FedEM(rounds=2, local=SHORT, components=2)],
    ids=["hard", "soft"],
)
def test_a_measure_of_one_s_own(protocol: Any) -> None:
    """Accuracy written again is accuracy."""
    federation = blobs([9, 12, 8])
    seen: list[tuple[int, ...]] = []

    def accuracy(chances: torch.Tensor, y: torch.Tensor) -> float:
        seen.append(tuple(chances.shape))
        torch.testing.assert_close(chances.sum(1), torch.ones(len(y)))
        return float((chances.argmax(1) == y).float().mean())

    outcome = train(protocol, federation, Dense((4, 5, 3)), metrics={"mine": accuracy})
    assert outcome.history[-1]["mine"] == pytest.approx(outcome.accuracy)
    assert seen == [(6, 3)] * 3


def test_what_comes_out_can_be_read_and_used(tmp_path: Path) -> None:
    outcome = train(FedAvg(rounds=2, local=LOCAL), FEDERATION, Dense((4, 3)))
    assert re.fullmatch(
        r"Outcome\(accuracy 0\.\d{4}, 1 model for 6 clients, 2 rounds, \S+ MB up a client and round\)", repr(outcome)
    )
    assert repr(FEDERATION) == f"Federation({FEDERATION.describe()})"
    assert len(repr(FEDERATION.examples)) < 100
    x = FEDERATION.examples.x[:7]
    said = outcome.predict(x.numpy(), client=1)
    assert torch.equal(said, outcome.module(1)(x).argmax(1))
    fresh = outcome.module(2)
    fresh.load_state_dict(outcome.state_dict(1))
    assert torch.equal(fresh(x), outcome.module(1)(x))
    assert np.shape(outcome.plot().lines[0].get_xdata()) == (len(outcome.history),)


def test_arrays_and_tables_are_taken_where_tensors_are() -> None:
    frame = pd.DataFrame({"a": [0.5, 1.0, 2.0], "b": [1, 2, 3]})
    examples = Examples.of(frame, ["yes", "no", "yes"], site=np.array(["x", "y", "x"]))
    assert examples.x.dtype == torch.float32
    assert (examples.y.tolist(), examples.label_names) == ([1, 0, 1], ("no", "yes"))
    assert examples.tag_names == {"site": ("x", "y")}
    plain = Examples(np.zeros((2, 3)), np.array([0, 1]), 2, "n", {"t": np.array([True, False])})  # type: ignore[arg-type, dict-item]
    assert (plain.x.dtype, plain.y.dtype) == (torch.float32, torch.int64)
    with pytest.raises(InvalidInput, match="must be numbers or truth values"):
        Examples(np.array([["a"]]), np.array([0]), 1, "n")  # type: ignore[arg-type]


def test_a_layer_of_a_wrong_size_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"give .* the data's shape"):
        train(FedAvg(rounds=1, local=LOCAL), FEDERATION, Dense((5, 3)))
    with pytest.raises(InvalidInput, match=r"must be \(examples, classes\) = \(4, 3\)"):
        train(FedAvg(rounds=1, local=LOCAL), FEDERATION, Dense((4, 7)))
