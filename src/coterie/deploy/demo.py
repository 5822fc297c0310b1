"""A federation of four on this machine: a link, four clients and two runs, each a process of its own, over TLS.

First MingledPie under real CKKS, then FedDP-KMeans with noise that the clients share under signed masks.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Any

import numpy as np
import torch

from coterie.data.federation import Examples, Federation
from coterie.data.partition import LabelSets
from coterie.data.sources.base import SPLIT
from coterie.data.sources.embedded import Digits
from coterie.deploy.keys import CARD, GROUP, ClientKeys, ServerKeys, open_sealed, roster, seal_for
from coterie.errors import CoterieError
from coterie.files import write_atomically
from coterie.learn.clusters.lloyd import nearest, squared_distances
from coterie.rng import Rng
from coterie.seal.ckks import Ckks

CLIENTS = 4
MINGLED = """name = "mingled_pie"
[model]
kind = "dense"
sizes = [64, 10]
[trainer]
kind = "ifca"
clusters = 2
rounds = 4
candidates = 0
[trainer.local]
epochs = 2
batch_size = 10
lr = 0.1
[defence]
kind = "mingling"
cipher = "ckks"
unit = 1000
[deploy]
shape = [64]
classes = 10
least = 3
"""
NOISY = """name = "feddp_kmeans"
[trainer]
kind = "feddp_kmeans"
clusters = 10
steps = 2
[defence]
kind = "noisy_sums"
epsilon = 8.0
added_by = "shared"
masks = true
signed = true
[deploy]
shape = [64]
least = 3
"""
CLIENT = """server = "../server/card.json"
keys = "keys"
cards = "../cards"
home = "home"
[data]
kind = "arrays"
path = "own.npz"
[policy]
trainers = ["ifca", "feddp_kmeans"]
models = ["dense"]
defences = ["mingling", "noisy_sums"]
least_cohort = 4
tells_measures = true
"""


@dataclass(frozen=True)
class Shown:
    """What a run of the demo came to."""

    name: str
    utility: str
    bytes_a_client: float  # a round, both ways
    seconds: float  # a round
    exchanges: int
    server_sees: str


def demo(root: Path, tell: Callable[[str], None]) -> list[Shown]:
    """Make everything in this folder, run it, and say what came of it; what is under way is told."""
    tell(f"keys, cards and data of a server and {CLIENTS} clients")
    data = prepare(root)
    with processes(root):
        found = []
        for name, text in {"mingled_pie": MINGLED, "feddp_kmeans": NOISY}.items():
            tell(f"{name} on {CLIENTS + 1} processes")
            found.append(_run(root, name, text, data))
        return found


def prepare(root: Path) -> Federation:
    """Keys, cards, data and files, as four organisations and a server would have them on five machines."""
    digits = Digits().load()
    flat = Examples(digits.x.flatten(1), digits.y, 10, "digits")
    data: Federation = LabelSets(clients=CLIENTS, sets=2).split(flat, Rng.seeded(0))
    settle(root, data, CLIENT)
    _share_key(root)
    return data


def settle(root: Path, data: Federation, words: str) -> None:
    """A server and one client a shard, each with its keys, the others' cards, and clients with data and a file."""
    ServerKeys.make(root / "server", f"127.0.0.1:{free_port()}", free_port())
    (root / "cards").mkdir()
    for number in range(data.clients):
        home = root / f"client{number}"
        ClientKeys.make(home / "keys", home.name)
        for cards in (root / "cards", root / "server" / "clients"):
            shutil.copy(home / "keys" / CARD, cards / f"{home.name}.json")
        rows = torch.cat([data.train[number], data.test[number]])
        split = (torch.arange(len(rows)) >= len(data.train[number])).long()
        held = {"x": data.examples.x[rows].numpy(), "y": data.examples.y[rows].numpy(), SPLIT: split.numpy()}
        np.savez(home / "own.npz", allow_pickle=False, **held)
        (home / "client.toml").write_text(words)


def _share_key(root: Path) -> None:
    """The first client makes the key that opens sums, and seals it for each of the others; the server has no part."""
    secret, cards = Ckks().keygen().to_bytes(), {card.name: card for card in roster(root / "cards")}
    first = ClientKeys.read(root / "client0" / "keys")
    write_atomically(root / "client0" / "keys" / GROUP, secret, private=True)
    for number in range(1, CLIENTS):
        keys, letter = root / f"client{number}" / "keys", root / f"client{number}" / "sealed.json"
        letter.write_bytes(seal_for(cards[f"client{number}"], first, secret, "group key"))
        write_atomically(keys / GROUP, open_sealed(letter, ClientKeys.read(keys), cards, "group key"), private=True)


@contextmanager
def processes(root: Path, clients: int = CLIENTS, together: bool = False) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The link first, then the clients; ``together``: they are one command's."""
    started = [start(root, "server", "--home", "server", "--host", "127.0.0.1")]
    files = [f"client{number}/client.toml" for number in range(clients)]
    started += [start(root, "client", *some) for some in ([files] if together else [[one] for one in files])]
    try:
        yield started
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def start(root: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from coterie.commands.cli import main; main()", "deploy", *arguments]
    paths = os.pathsep.join(str(Path(one).absolute()) for one in sys.path if one)
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    with (root / "processes.log").open("ab") as log:
        return subprocess.Popen(command, cwd=root, stdout=log, stderr=log, env=environment)


def events_of(root: Path, name: str, text: str) -> list[dict[str, Any]]:
    """Run it, and what happened."""
    (root / f"{name}.toml").write_text(text)
    process = start(root, "run", f"{name}.toml", "--home", "server", "--runs", "runs")
    if process.wait() != 0:
        said = (root / "processes.log").read_text()[-2000:]
        raise CoterieError(f"run {name} ended with {process.returncode}: {said}")
    lines = (root / "runs" / f"{name}-001" / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def _run(root: Path, name: str, text: str, data: Federation) -> Shown:
    events = events_of(root, name, text)
    exchanges = [one for one in events if one["event"] == "exchange"]
    end = next(one for one in events if one["event"] == "finished")
    utility = _accuracy(end["told"]) if name == "mingled_pie" else _cost(root, data)
    passed = (end["sent"] + end["received"]) / CLIENTS / max(1, end["rounds"])
    return Shown(name, utility, passed, end["seconds_a_round"], len(exchanges), _seen(exchanges))


def _accuracy(told: Mapping[str, Mapping[str, float]]) -> str:
    values = [measures["accuracy"] for measures in told.values() if "accuracy" in measures]
    return f"accuracy {sum(values) / max(1, len(values)):.3f}, the mean over {len(values)} clients"


def _cost(root: Path, data: Federation) -> str:
    """Beside what one centre for all of the points would cost."""
    with np.load(root / "client0" / "home" / "models.npz") as held:
        centres = torch.from_numpy(held["centres"])[0]
    points = data.examples.x[data.train.rows]
    cost = float(squared_distances(points, centres, nearest(points, centres)).mean())
    alone = float((points - points.mean(0)).square().sum(1).mean())
    return f"k-means cost {cost:.3f} (one centre for all: {alone:.3f})"


def _seen(exchanges: list[dict[str, Any]]) -> str:
    """What of the answers was in a form that the server can read."""
    readable = sorted({name for one in exchanges for name in one["readable"]})
    sealed = sorted({name for one in exchanges for name in one["sealed"]})
    notes = "keys, shares of secrets and masked sums" if any(one["notes"] for one in exchanges) else ""
    parts = [f"in the clear: {', '.join(readable) or 'no value of any client'}"]
    parts += [f"ciphertexts named {', '.join(sealed)}"] if sealed else []
    return "; ".join([*parts, *([f"and {notes}"] if notes else [])])


def free_port() -> int:
    with socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
