"""What a deployment costs beside its payload: seconds and bytes a round with processes on loopback, and their memory.

Bytes are counted between clients and the link, where a network would be: with TLS, HTTP, Flower's framing and every
look for messages, from the offer to the result.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryDirectory

import psutil
import torch

from coterie.bench.ratio import Ratio
from coterie.bench.registry import Options
from coterie.bench.ring import random_federation
from coterie.deploy.demo import events_of, free_port, processes, settle
from coterie.deploy.keys import CARD, ServerCard
from coterie.learn.models.bundled import fcnn
from coterie.rng import Rng

FEATURES, EACH, ROUNDS = 784, 20, 6
FEW, SOME, MANY = 4, 16, 64  # clients
SLOWEST, MORE = 1.5, 1.05  # seconds a round with few clients; bytes over those of the payload
RUN = """name = "overhead"
[model]
kind = "fcnn"
[trainer]
kind = "fedavg"
rounds = {rounds}
[trainer.local]
steps = 2
batch_size = 10
lr = 0.1
[deploy]
shape = [784]
classes = 10
least = {clients}
wait = 600
deadline = 300
"""
CLIENT = """server = "server.json"
keys = "keys"
cards = "../cards"
home = "home"
[data]
kind = "arrays"
path = "own.npz"
[policy]
trainers = ["fedavg"]
models = ["fcnn"]
defences = ["none"]
"""


@dataclass(frozen=True)
class Cost:
    """Of a deployment of some clients."""

    clients: int
    seconds: float  # a round
    passed: int  # bytes between clients and link, in the whole run
    payload: int  # bytes of models in it
    client_mib: float  # one client's share of memory
    server_mib: float  # the link's

    @property
    def mib(self) -> float:
        return self.clients * self.client_mib + self.server_mib


def overhead(options: Options, counts: tuple[int, ...] = (FEW, SOME)) -> Iterator[Ratio]:
    for clients in counts:
        cost = measured(clients, options.seed, together=clients >= MANY)
        name = f"FedAvg, FCNN, {clients} clients"
        few = clients == FEW
        yield Ratio(f"{name}: a round", cost.seconds, "s", None, SLOWEST if few else None, bound_on_ratio=False)
        passed, payload = (bytes_ / 1e6 / ROUNDS for bytes_ in (cost.passed, cost.payload))
        about = "the models alone, both ways; ours has offers, TLS, HTTP, framing and looks for messages in it"
        yield Ratio(f"{name}: bytes a round", passed, "MB", payload, 1 / MORE, setup=about)
        share = f"{cost.client_mib:.0f} MiB a client, {cost.server_mib:.0f} the link; pages that they share once"
        yield Ratio(f"{name}: memory", cost.mib, "MiB", setup=share)


def many(options: Options) -> Iterator[Ratio]:
    """As many clients as a small machine holds."""
    return overhead(options, (MANY,))


def measured(clients: int, seed: int = 0, rounds: int = ROUNDS, together: bool = False) -> Cost:
    """``together``: the clients are one command's, and share what they imported."""
    rng = Rng.seeded(seed)
    x = torch.rand(clients * EACH, FEATURES, generator=rng.child("pictures").torch())
    with TemporaryDirectory(prefix="coterie-overhead-") as place:
        root = Path(place)
        settle(root, random_federation(clients, EACH, x, rng), CLIENT)
        card = ServerCard.read(root / "server" / CARD)
        with counted(card.address) as way:
            for number in range(clients):
                replace(card, address=way.address).write(root / f"client{number}" / "server.json")
            with processes(root, clients, together) as (link, *others):
                events = events_of(root, "overhead", RUN.format(clients=clients, rounds=rounds))
                server_mib, each = _mib([link]), _mib(others)
    (end,) = (one for one in events if one["event"] == "finished")
    models = 2 * rounds + 1  # down and up, and the result
    size = sum(leaf.numel() * leaf.element_size() for leaf in fcnn().init(0).values())
    return Cost(clients, end["seconds_a_round"], way.passed, models * clients * size, each / clients, server_mib)


def _mib(started: Sequence[Popen[bytes]]) -> float:
    """What they hold with what they started; of pages that several share, each its part."""
    first = [psutil.Process(one.pid) for one in started]
    family = [*first, *(child for one in first for child in one.children(recursive=True))]
    return sum(float(one.memory_full_info().pss) for one in family) / 2**20


@dataclass
class Way:
    """To the link, by which every byte is counted."""

    address: str
    passed: int = 0


@contextmanager
def counted(target: str) -> Iterator[Way]:
    """A port on loopback that hands on to another, byte by byte."""
    host, _, port = target.rpartition(":")
    way, lock = Way(f"{host}:{free_port()}"), threading.Lock()
    ways: list[threading.Thread] = []
    listener = socket.create_server((host, int(way.address.rpartition(":")[2])), backlog=256)

    def hand_on(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                with lock:
                    way.passed += len(data)
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)  # so that the other way ends, too
        source.close()

    def accept() -> None:
        with suppress(OSError):  # closed: it is over
            while True:
                near, _ = listener.accept()
                try:
                    far = socket.create_connection((host, int(port)))
                except OSError:  # the link is not there yet
                    near.close()
                    continue
                for ends in ((near, far), (far, near)):
                    for one in ends:
                        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    ways.append(threading.Thread(target=hand_on, args=ends, daemon=True))
                    ways[-1].start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield way
    finally:
        listener.close()
        for one in ways:
            one.join(5.0)  # whoever talked is gone
