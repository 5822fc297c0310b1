"""What a federation of a million would need, computed from parts that are measured here, on this machine.

Each row says what it was computed from. What is measured: letters as they are sealed, opened and added up, secure sums'
further requests, and how fast a link answers a client that looks for messages. What is assumed: that many links and
servers share the work evenly, and that clients drop out independently.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import torch
from scipy.stats import binom

from coterie.bench.ring import random_federation
from coterie.defences.secure_sums import PairwiseMasks, SecureSums
from coterie.deploy.demo import processes, settle
from coterie.deploy.envelope import DOWN, RUN, UP, Channel
from coterie.deploy.keys import CARD, ClientKeys, ServerCard
from coterie.deploy.overhead import CLIENT, EACH, FEATURES, counted
from coterie.errors import require, require_count
from coterie.flow.admission import Expected
from coterie.flow.ask import Ask, Replies, State, Sums
from coterie.flow.guard import Collecting, ServerGuard
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots, Turn
from coterie.learn.models.bundled import fcnn
from coterie.learn.sgd import Local
from coterie.protocols.fedavg import FedAvg
from coterie.rng import Rng
from coterie.seal.roster import two_thirds
from coterie.wire.messages import TRAIN, Contributions, Down, Published, Up

COHORT, NEIGHBOURS = 60, 20  # in which secure sums are measured; with how many others each shares masks
RARELY = 1e-3  # of rounds
LOOKS = 200  # of a client for messages


@dataclass(frozen=True)
class Parts:
    """What was measured: a letter's bytes and processor seconds, and those of a look for messages."""

    down: int
    up: int
    seal: float
    open: float  # and add to the sum
    masked_bytes: float  # of all requests of secure sums, both ways, a client
    masked_requests: int
    masked_seconds: float  # of the server, a client
    look: float  # processor seconds of the link
    look_bytes: float


MOST_ENROLLED = 10**10  # more than there are people


@dataclass(frozen=True)
class Asked:
    """The federation in question."""

    enrolled: int = 1_000_000
    cohort: int = 1_000
    drop: float = 0.1  # the share of those asked who do not answer
    every: float = 600.0  # seconds between two looks of a client that is in no run

    def __post_init__(self) -> None:
        require_count("enrolled", self.enrolled, 1, MOST_ENROLLED)
        require(0 < self.cohort <= self.enrolled, "cohort", self.cohort, f"must be 1 to {self.enrolled}")
        require(0 <= self.drop < 1, "drop", self.drop, "must be at least 0 and below 1")
        require(self.every > 0, "every", self.every, "must be positive")


@dataclass(frozen=True)
class Row:
    what: str
    value: str
    why: str


def needs(asked: Asked, parts: Parts) -> list[Row]:
    """A row a need, each with what it follows from."""
    n, answers = asked.cohort, asked.cohort * (1 - asked.drop)
    plain = n * parts.down + answers * parts.up
    looks = asked.enrolled / asked.every
    lost = _lost(asked.drop, NEIGHBOURS)
    enough = next((k for k in range(NEIGHBOURS, n, 10) if _unopened(asked, k) < RARELY), n)
    return [
        Row("messages a round", f"{n + answers:,.0f}", f"{n:,} requests, {1 - asked.drop:.0%} of them answered"),
        Row("bytes a round at the link", f"{plain / 1e9:.2f} GB", f"{parts.down:,} down and {parts.up:,} up a client"),
        Row(
            "server's processor seconds a round",
            f"{n * parts.seal + answers * parts.open:.1f} s",
            f"{1e3 * parts.seal:.2f} ms to seal, {1e3 * parts.open:.2f} ms to open and add a letter",
        ),
        Row(
            "the same under secure sums",
            f"{n * parts.masked_bytes / 1e9:.2f} GB, {n * (parts.masked_seconds + parts.seal):.1f} s",
            f"{parts.masked_requests} requests, {parts.masked_bytes:,.0f} bytes and "
            f"{1e3 * parts.masked_seconds:.2f} ms a client, measured among {COHORT} with {NEIGHBOURS} neighbours",
        ),
        Row(
            "rounds that secure sums cannot open",
            f"{_unopened(asked, NEIGHBOURS):.2g} of them",
            f"a client's secret is lost if a third of its {NEIGHBOURS} neighbours drop out: {lost:.2g}; with {enough} "
            f"neighbours under one round in {1 / RARELY:,.0f} is",
        ),
        Row(
            "looks for messages",
            f"{looks:,.0f} a second, {looks * parts.look_bytes / 1e6:.1f} MB/s",
            f"{asked.enrolled:,} clients, each every {asked.every:g} s, {parts.look_bytes:,.0f} bytes each",
        ),
        Row(
            "cores for links like this one",
            f"{max(1, looks * parts.look):,.0f}",
            f"one answers {1 / parts.look:,.0f} looks a second; a client in a run looks more often, {n:,} of them",
        ),
        Row(
            "how often a client is asked",
            f"once in {asked.enrolled / n:,.0f} rounds",
            "chosen at random",
        ),
    ]


def _lost(drop: float, neighbours: int) -> float:
    """The chance that too few neighbours are left to give back a client's secret."""
    return float(binom.cdf(two_thirds(neighbours) - 1, neighbours, 1 - drop))


def _unopened(asked: Asked, neighbours: int) -> float:
    """The chance that a round has such a client."""
    return 1 - (1 - _lost(asked.drop, neighbours)) ** asked.cohort


# -- parts ------------------------------------------------------------------------------------------------------------


def measure() -> Parts:
    models = {name: leaf[None] for name, leaf in fcnn().init(0).items()}
    channel, run = Channel(bytes(32)), bytes(RUN)
    down = Down(TRAIN, 3, torch.tensor([7]), Published(models))
    sent = Contributions(
        torch.tensor([7]), {name: leaf[None] for name, leaf in models.items()}, torch.ones(1), torch.ones(1, 1)
    )
    letter = channel.seal(DOWN, run, 1, down)
    answer = channel.seal(UP, run, 1, Up(TRAIN, 3, sent))
    total = Sums.of(sent)

    def take() -> None:
        said = channel.open(UP, answer).said
        assert isinstance(said, Up)
        for name, leaf in Sums.of(said.sent).values.items():
            total.values[name].add_(leaf)

    seal, opened = _best(partial(channel.seal, DOWN, run, 1, down)), _best(take)
    masked = _masked()
    return Parts(len(letter), len(answer), seal, opened, *masked, *_looks())


def _best(work: Callable[[], object], times: int = 20) -> float:
    found = []
    for _ in range(times):
        started = time.process_time()
        work()
        found.append(time.process_time() - started)
    return min(found)


@dataclass(frozen=True)
class _Timed(ServerGuard):
    """Another's conversation, with the clock running while it is the server's turn alone."""

    inner: ServerGuard
    seconds: list[float] = field(default_factory=list)

    def expects(self, expected: Expected) -> Expected:
        return self.inner.expects(expected)

    def collect(self, ask: Ask[State], turn: Turn) -> Collecting[State]:
        course = self.inner.collect(ask, turn)
        request = next(course)
        while True:
            replies = list((yield request))  # clients compute here
            started = time.process_time()
            try:
                request = course.send(Replies(iter(replies)))
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                self.seconds.append(time.process_time() - started)


@dataclass(frozen=True)
class _Watched(SecureSums):
    timed: list[float] = field(default_factory=list)

    @property
    def server(self) -> ServerGuard:
        return _Timed(super().server, self.timed)


def _masked() -> tuple[float, int, float]:
    """Bytes, requests and the server's seconds a client, in a round of secure sums."""
    rng = Rng.seeded(0)
    x = torch.rand(COHORT * EACH, FEATURES, generator=rng.child("pictures").torch())
    defence = _Watched(PairwiseMasks(NEIGHBOURS))
    protocol = FedAvg(rounds=1, local=Local(steps=1, batch_size=EACH, lr=0.1))
    federation = random_federation(COHORT, EACH, x, rng)
    with Ring(protocol, federation, fcnn(), defence, Roots.seeded(0)) as ring:
        ring.run()
        passed = ring.traffic.up_bytes + ring.traffic.down_bytes
        return passed / COHORT, len(ring.traffic.down), sum(defence.timed) / COHORT


def _looks() -> tuple[float, float]:
    """The link's seconds and the bytes of a client's look for messages, over TLS, where there is nothing for it."""
    from coterie.deploy.flower import Fleet, LinkGone

    rng = Rng.seeded(0)
    x = torch.rand(EACH, FEATURES, generator=rng.child("pictures").torch())
    with TemporaryDirectory(prefix="coterie-scale-") as place:
        root = Path(place)
        settle(root, random_federation(1, EACH, x, rng), CLIENT)
        card, keys = ServerCard.read(root / "server" / CARD), ClientKeys.read(root / "client0" / "keys")
        with counted(card.address) as way, processes(root, 0) as (link,):
            fleet = Fleet(way.address, card.authority, keys.node)
            try:
                while True:
                    try:
                        fleet.connect()
                        break
                    except LinkGone:  # not there yet
                        time.sleep(0.2)
                fleet.pull()
                before, used = way.passed, sum(psutil.Process(link.pid).cpu_times()[:2])
                for _ in range(LOOKS):
                    fleet.pull()
                seconds = sum(psutil.Process(link.pid).cpu_times()[:2]) - used
                return seconds / LOOKS, (way.passed - before) / LOOKS
            finally:
                fleet.close()
