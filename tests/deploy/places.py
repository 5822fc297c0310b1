"""A federation in a folder: keys, cards, data and files of a server and some clients, and processes on loopback."""

from __future__ import annotations

import multiprocessing.context
import os
import shutil
import signal
import socket
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from coterie.commands.cli import main
from coterie.data.federation import Federation, VerticalFederation
from coterie.data.sources.base import SPLIT
from coterie.deploy.keys import CARD, GROUP, ClientKeys, ServerKeys
from coterie.files import write_atomically

Process = multiprocessing.context.ForkProcess

POLICY = {
    "trainers": ["fedavg", "ifca", "sattler", "fedem", "feddp_kmeans", "vertical_kmeans"],
    "models": ["dense"],
    "defences": ["none", "mingling", "noisy_sums", "dpsgd", "secure_sums"],
    "least_cohort": 2,
    "draws": "run",
    "tells_measures": True,
}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass
class Place:
    """Everything in one folder, as if it were several machines'."""

    root: Path
    clients: int
    processes: dict[str, Process] = field(default_factory=dict)

    @staticmethod
    def make(root: Path, data: Federation | VerticalFederation, policy: Mapping[str, object] | None = None) -> Place:
        place = Place(root, data.clients)
        ServerKeys.make(root / "server", f"127.0.0.1:{free_port()}", free_port())
        (root / "cards").mkdir()
        secret = os.urandom(32)
        for number in range(data.clients):
            home = place.home(number)
            ClientKeys.make(home / "keys", place.name(number))
            write_atomically(home / "keys" / GROUP, secret, private=True)
            shutil.copy(home / "keys" / CARD, root / "cards" / f"{place.name(number)}.json")
            shutil.copy(home / "keys" / CARD, root / "server" / "clients" / f"{place.name(number)}.json")
            np.savez(home / "own.npz", allow_pickle=False, **rows_of(data, number))
            place.write_policy(number, policy or {})
        return place

    def name(self, number: int) -> str:
        return f"client{number}"

    def home(self, number: int) -> Path:
        return self.root / self.name(number)

    def file(self, number: int) -> Path:
        return self.home(number) / "client.toml"

    def write_policy(self, number: int, policy: Mapping[str, object]) -> None:
        said = {**POLICY, **policy}
        lines = ['server = "../server/card.json"', 'keys = "keys"', 'cards = "../cards"', 'home = "home"']
        lines += ["[data]", 'kind = "arrays"', 'path = "own.npz"', "[policy]"]
        lines += [f"{name} = {toml(value)}" for name, value in said.items()]
        self.file(number).write_text("\n".join(lines) + "\n")

    # -- processes ------------------------------------------------------------------------------------------------

    def start(self, who: str, *arguments: str) -> Process:
        """A process of its own that runs a command, as somebody would type it here."""
        process = multiprocessing.get_context("fork").Process(
            target=_command, args=(self.root, who, ["deploy", *arguments]), daemon=True
        )
        process.start()
        self.processes[who] = process
        return process

    def start_server(self) -> None:
        self.start("server", "server", "--home", "server", "--host", "127.0.0.1")

    def start_client(self, number: int) -> None:
        self.start(self.name(number), "client", f"{self.name(number)}/client.toml")

    def start_all(self) -> None:
        self.start_server()
        for number in range(self.clients):
            self.start_client(number)

    def start_run(self, *arguments: str) -> Process:
        return self.start("run", "run", "--home", "server", "--runs", "runs", *arguments)

    def run(self, words: str, seconds: float = 250) -> None:
        (self.root / "run.toml").write_text(words)
        process = self.start_run("run.toml")
        process.join(seconds)
        assert process.exitcode == 0, self.log("run")

    def log(self, who: str) -> str:
        return (self.root / f"{who}.log").read_text()

    def kill(self, who: str) -> None:
        """As a power cut would."""
        self.processes[who].kill()
        self.processes[who].join()

    def await_log(self, who: str, words: str, seconds: float = 150, times: int = 1) -> None:
        until = time.monotonic() + seconds
        while not (self.root / f"{who}.log").exists() or self.log(who).count(words) < times:
            assert time.monotonic() < until, f"{who} never said {words!r}: {self.log(who)[-2000:]}"
            time.sleep(0.02)

    def close(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.join(5)
            process.kill()
            process.join()


def _command(root: Path, who: str, arguments: list[str]) -> None:
    os.chdir(root)
    log = os.open(root / f"{who}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    warnings.resetwarnings()  # a process of its own is under no test's rules
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    main(arguments)


def rows_of(data: Federation | VerticalFederation, number: int) -> dict[str, np.ndarray]:
    """What one client holds, as it would be in a file of its own."""
    if isinstance(data, VerticalFederation):
        return {"x": data.part(number).numpy(), "y": data.examples.y.numpy()}
    train, test = data.train[number], data.test[number]
    rows = torch.cat([train, test])
    split = torch.cat([torch.zeros(len(train)), torch.ones(len(test))]).long()
    return {"x": data.examples.x[rows].numpy(), "y": data.examples.y[rows].numpy(), SPLIT: split.numpy()}


def toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    return str(value)
