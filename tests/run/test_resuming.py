"""A run that stops at any round and goes on: everything in it goes on, and what was spent stays spent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.ring import Halves, blobs
from torch import Tensor

from coterie.defences.dpsgd import DpSgd
from coterie.errors import BudgetSpent, InvalidInput
from coterie.flow.client import Answer
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard
from coterie.flow.simulate import Simulator
from coterie.learn.models.dense import Dense
from coterie.learn.params import flatten, stack
from coterie.learn.sgd import Local
from coterie.measure.witness import Witness
from coterie.privacy.guarantee import Neighbours
from coterie.privacy.ledger import EVERYBODY, Ledger, Spend
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.fedem import FedEM
from coterie.protocols.starts import Given
from coterie.rng import Rng
from coterie.run.folder import CHECKPOINT, MODELS, RunFolder
from coterie.run.training import Outcome, train
from coterie.wire.codec import encode
from coterie.wire.messages import Contributions, Down, Up
from coterie.wire.view import ThreatModel

FEDERATION = blobs([12] * 6)
LOCAL = Local(steps=2, batch_size=4, lr=0.2)
PAIR = ThreatModel("clients 1 and 4", clients=frozenset({1, 4}))


START = Dense((4, 3)).init(0)


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
        with pytest.raises(InvalidInput, match="would release again"):
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
    with pytest.raises(InvalidInput, match="others than the run's"):
        again(1)
    assert book.spent == once
    again(0)  # the same noise: nothing is told that was not
    assert book.spent == once
    assert book.simulated
    (folder.path / CHECKPOINT).unlink()
    again(None)
    assert book.spent > once


def test_a_round_that_is_repeated_with_other_settings_is_paid_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops while round 2 is under way. At another rate, each of its steps but the first has other gradients, and
    what was told of them came on top of what the ledger knew."""
    answers = Simulator.take

    def run(lr: float, stops: bool) -> float:
        def take(own: Simulator, asked: Down, answer: Answer) -> Iterator[Up]:
            yield from answers(own, asked, answer)
            if stops and asked.round == 2:
                raise Stopped

        monkeypatch.setattr(Simulator, "take", take)
        protocol, defence = FedAvg(rounds=4, local=replace(LOCAL, poisson=True, lr=lr)), DpSgd(1.0, 3.0)
        with pytest.raises(Stopped) if stops else nullcontext():
            train(
                protocol, FEDERATION, Dense((4, 3)), defence=defence, ledger=book, folder=RunFolder(folder), secret=True
            )
        return sum(times for client, _, times in book.rows if client in (0, EVERYBODY))

    book, folder = Ledger(limit=50.0, delta=1e-5), tmp_path / "as it was begun"
    folder.mkdir()
    assert run(0.2, stops=True) == 3 * LOCAL.steps
    assert run(0.2, stops=False) == 4 * LOCAL.steps  # the same releases again
    book, folder = Ledger(limit=50.0, delta=1e-5), tmp_path / "otherwise"
    folder.mkdir()
    assert run(0.2, stops=True) == 3 * LOCAL.steps
    assert run(0.1, stops=False) >= 5 * LOCAL.steps - 1


def test_one_secret_and_other_settings_are_other_coins_and_noise(tmp_path: Path) -> None:
    """With the same ones, records were sampled once for two runs that paid as if each had sampled, and at two noise
    multipliers a sum had one noise twice."""

    def moved(lr: float) -> Tensor:
        """What a step of one round told, over its rate."""
        (tmp_path / CHECKPOINT).unlink(missing_ok=True)
        protocol = FedAvg(rounds=1, local=replace(LOCAL, poisson=True, lr=lr, steps=1), begins=Given(given=[START]))
        defence = DpSgd(1.0, 3.0)
        folder = RunFolder(tmp_path)
        models = train(protocol, FEDERATION, Dense((4, 3)), defence=defence, folder=folder, secret=True).models
        return (flatten(models)[0] - flatten(stack([START]))[0]) / lr

    torch.testing.assert_close(moved(0.2), moved(0.2), rtol=0, atol=0)
    assert float((moved(0.2) - moved(0.1)).abs().max()) > 0.1


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
