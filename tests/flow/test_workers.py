"""Worker processes: the same answers, errors that surface, nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.ring import Halves, blobs, play
from torch import Tensor, nn

from coterie.errors import Diverged, InvalidInput
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard
from coterie.flow.workers import WorkerFailed, Workers
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import as_model
from coterie.learn.sgd import Local
from coterie.protocols.fedem import FedEM
from coterie.protocols.ifca import Ifca
from coterie.wire.messages import TRAIN, Contributions, Down

LOCAL = Local(steps=2, batch_size=4, lr=0.2)
MANY = blobs([8] * 11)  # more than one chunk, however they are cut


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 3))


MODEL = as_model(network)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    "protocol", [FedEM(rounds=3, local=LOCAL, components=2), Ifca(rounds=2, local=LOCAL, clusters=2, candidates=4)]
)
def test_the_same_as_in_one_process(protocol: Any) -> None:
    """Also after this process has used autograd itself, and with what clients remember (FedEM's mixtures)."""
    alone = play(protocol, MANY, MODEL)
    shared = play(protocol, MANY, MODEL, processes=2)
    for name, leaf in alone.state.published.values.items():
        torch.testing.assert_close(shared.state.published.values[name], leaf)
    assert shared.ring.memory.keys() == alone.ring.memory.keys()
    for client, kept in alone.ring.memory.items():
        assert shared.ring.memory[client].keys() == kept.keys()
        for name, value in kept.items():
            torch.testing.assert_close(shared.ring.memory[client][name], value)


@dataclass(frozen=True)
class Trap(ClientGuard):
    """Goes wrong for one client."""

    how: str

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        if 5 in sent.ids.tolist():
            if self.how == "ours":
                raise Diverged("client 5 diverged; lower lr")
            if self.how == "theirs":
                raise ZeroDivisionError("client 5")
            os.kill(os.getpid(), signal.SIGKILL)
        return sent


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("ours", Diverged, "client 5 diverged; lower lr"),
        ("theirs", WorkerFailed, "ZeroDivisionError: client 5"),
        ("killed", WorkerFailed, "a worker process died; is there memory enough"),
    ],
)
def test_errors_surface(how: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        play(FedEM(rounds=2, local=LOCAL), MANY, MODEL, defence=Halves(Trap(how)), processes=2)


def test_an_abandoned_request_does_not_answer_the_next_one() -> None:
    """Its answers were still under way when the server stopped listening."""
    protocol = FedEM(rounds=2, local=LOCAL, components=2)
    done = play(protocol, MANY, MODEL)
    simulator = done.ring.clients
    simulator.processes = 2
    simulator.memory = {}
    first, second = (Down(ask.kind, ask.round, ask.clients, ask.published) for ask in done.asks)
    with simulator:
        answers = simulator.exchange(first)
        next(answers)
        answers.close()  # type: ignore[attr-defined]
        simulator.memory = {}
        late = list(simulator.exchange(second))
    assert len(late) > 1
    assert {answer.round for answer in late} == {1}
    assert torch.cat([answer.clients for answer in late]).tolist() == list(range(11))


def square(x: Tensor, fail: bool) -> tuple[Tensor]:
    if fail:
        raise InvalidInput("x=... is bad; give another")
    return (x * x,)


def test_results_come_in_order_and_workers_work_again() -> None:
    workers = Workers(square, 3)
    try:
        for _ in range(2):
            found = [int(result[0]) for result in workers.map((torch.tensor(n), False) for n in range(20))]
            assert found == [n * n for n in range(20)]
        assert list(workers.map(iter([]))) == []
        with pytest.raises(InvalidInput, match="is bad; give another"):
            list(workers.map([(torch.tensor(1), True)]))
    finally:
        workers.close()


def unspeakable() -> tuple[Any]:
    return ({1, 2},)


def test_an_answer_that_cannot_travel_is_told() -> None:
    workers = Workers(unspeakable, 1)
    try:
        with pytest.raises(InvalidInput, match="set cannot travel"):
            list(workers.map([()]))
    finally:
        workers.close()


def test_workers_end_though_the_parent_handles_sigterm() -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        Workers(square, 2).close()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_client_that_trains_more_models_is_reckoned_larger() -> None:
    """Chunks shrink as a client's models grow in number, so that memory stays under the bound."""
    sizes = {}
    for components in (1, 8):
        done = play(FedEM(rounds=1, local=LOCAL, components=components), MANY, Dense((4, 30, 3)))
        done.ring.clients.chunk_bytes = 100_000
        ask = done.asks[0]
        answers = done.ring.clients.exchange(Down(TRAIN, 0, ask.clients, ask.published))
        sizes[components] = len(next(answers).clients)
    assert sizes[1] == 11
    assert sizes[8] < 6
