"""The server's end: a ``Transport`` whose clients are processes on other machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from coterie.deploy.envelope import DOWN, UP, Channel
from coterie.deploy.plan import Refused
from coterie.errors import CoterieError, NotPermitted
from coterie.wire.messages import Down, Up

Log = Callable[..., None]


class TooFewAnswers(CoterieError):
    """Fewer clients answered than the run needs."""


class Post(Protocol):
    """What carries letters: Flower, or in a test anything else."""

    def push(self, bodies: Mapping[int, bytes], seconds: float) -> dict[str, int]: ...

    def pull(self, names: Sequence[str], until: float) -> Iterator[tuple[str, bytes]]: ...


@dataclass
class Correspondence:
    """Letters to clients by number, each with a place of its own in this run, and their answers."""

    post: Post
    run: bytes
    channels: Mapping[int, Channel]  # by client
    nodes: Mapping[int, int]  # a client's node
    log: Log
    deadline: float = 60.0  # seconds for an answer
    patience: int = 2  # after so many missed requests in a row nobody waits for a client
    sent: int = 0  # bytes, as they were posted
    received: int = 0
    _number: int = 0
    _missed: dict[int, int] = field(default_factory=dict)

    def ask(self, letters: Mapping[int, object]) -> dict[int, object]:
        """What each of these clients says, in their order; one that says nothing in time is missing."""
        self._number += 1
        bodies = {
            self.nodes[client]: self.channels[client].seal(DOWN, self.run, self._number, said)
            for client, said in letters.items()
        }
        self.sent += sum(map(len, bodies.values()))
        until = time.monotonic() + self.deadline
        clients = {node: client for client, node in self.nodes.items()}
        names = {name: clients[node] for name, node in self.post.push(bodies, self.deadline).items()}
        answers: dict[int, object] = {}
        for name, data in self.post.pull(list(names), until):
            client = names[name]
            self.received += len(data)
            said = self._opened(client, data)
            if said is not None:
                answers[client] = said
            if not self._awaited(letters, answers):
                break
        for client in letters:
            missed = 0 if client in answers else self._missed.get(client, 0) + 1
            self._missed[client] = missed
            if missed:
                self.log("silent", client=client, number=self._number, missed=missed)
        return {client: answers[client] for client in letters if client in answers}

    def _awaited(self, letters: Mapping[int, object], answers: Mapping[int, object]) -> bool:
        """Whether anybody is still waited for: those who have not answered for long may come back, but in time."""
        return any(client not in answers and self._missed.get(client, 0) < self.patience for client in letters)

    def _opened(self, client: int, data: bytes) -> object | None:
        """What a client says about the newest request; anything else is nobody's answer."""
        try:
            letter = self.channels[client].open(UP, data)
            if (letter.run, letter.number) != (self.run, self._number):
                raise NotPermitted(f"it is about letter {letter.number}, and {self._number} was asked")
        except CoterieError as problem:
            self.log("rejected", client=client, number=self._number, why=str(problem))
            return None
        return letter.said


@dataclass
class Deployed:
    """Carries a protocol's messages. ``least``: with fewer answers to a request than this, the run ends."""

    letters: Correspondence
    least: int = 1

    def exchange(self, asked: Down) -> Iterator[Up]:
        started = time.monotonic()
        clients = asked.clients.tolist()
        answers = self.letters.ask({client: asked.to_one(place) for place, client in enumerate(clients)})
        ups = {client: up for client, said in answers.items() if (up := self._up(client, asked, said)) is not None}
        self.letters.log(
            "exchange",
            round=asked.round,
            kind=str(asked.kind),
            asked=len(clients),
            answered=len(ups),
            seconds=round(time.monotonic() - started, 3),
            readable=sorted({name for up in ups.values() for name in up.sent.values}),
            sealed=sorted({name for up in ups.values() for name in up.sent.sealed}),
            notes=any(up.sent.notes for up in ups.values()),
        )
        needed = min(self.least, len(clients))
        if len(ups) < needed:
            raise TooFewAnswers(
                f"answers to {str(asked.kind)!r} in round {asked.round}={len(ups)} of {len(clients)}, and "
                f"least={needed}; when more clients are there, go on with --resume"
            )
        yield from ups.values()

    def _up(self, client: int, asked: Down, said: object) -> Up | None:
        """An answer that is its sender's own; what is in it, admission looks at."""
        if isinstance(said, Up) and said.sent.ids.shape == (1,) and said.sent.ids.tolist() == [client]:
            return said
        why = said.why if isinstance(said, Refused) else f"{type(said).__name__} is no answer in its own name"
        self.letters.log("refusal", client=client, round=asked.round, kind=str(asked.kind), why=why[:500])
        return None
