"""A run whose letters are carried by hand: the server's and the clients' code as it is deployed, in one process."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.deploy.places import Place

from coterie.deploy.journal import Journal
from coterie.deploy.keys import ServerKeys, roster
from coterie.deploy.participant import Participant
from coterie.deploy.policy import ClientFile
from coterie.deploy.running import Direction, Job, record_of
from coterie.run.folder import RunFolder, free_folder

Carry = Callable[["Hand", int, bytes], bytes | None]


class Notes(Journal):
    """Remembers events in place of writing them."""

    def __init__(self) -> None:
        super().__init__(None, aloud=False)
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, event: str, **facts: object) -> None:
        self.events.append((event, facts))

    def of(self, event: str) -> list[dict[str, Any]]:
        return [facts for name, facts in self.events if name == event]


def straight(hand: Hand, client: int, letter: bytes) -> bytes | None:
    return hand.clients[client].answer(letter)


@dataclass
class Hand:
    """Carries letters at once. ``carry`` may lose or change them, or ask somebody else."""

    clients: dict[int, Participant]
    carry: Carry = straight
    letters: list[tuple[int, bytes, bytes | None]] = field(default_factory=list)
    waiting: dict[str, bytes] = field(default_factory=dict)

    def push(self, bodies: Mapping[int, bytes], seconds: float) -> dict[str, int]:
        names = {}
        for node, body in bodies.items():
            answer = self.carry(self, node, body)
            self.letters.append((node, body, answer))
            names[name := f"{len(self.letters)}"] = node
            if answer is not None:
                self.waiting[name] = answer
        return names

    def pull(self, names: Sequence[str], until: float) -> Iterator[tuple[str, bytes]]:
        for name in names:
            if name in self.waiting:
                yield name, self.waiting.pop(name)


def clients_of(place: Place) -> tuple[dict[int, Participant], dict[int, Notes]]:
    notes = {number: Notes() for number in range(place.clients)}
    return {number: Participant(ClientFile.read(place.file(number)), notes[number]) for number in notes}, notes


def direction(place: Place, text: str, hand: Hand, folder: RunFolder | None = None) -> tuple[Direction, Notes]:
    job = Job.of(tomllib.loads(text), place.root / "run.toml")
    home, notes = place.root / "server", Notes()
    runs = folder or RunFolder.create(free_folder(place.root / "runs", job.config.name), record_of(job))
    nodes = {number: number for number in hand.clients}
    return Direction(job, roster(home / "clients"), ServerKeys.read(home), nodes, hand, runs, notes), notes


def seen(path: Path) -> set[str]:
    """All files below a folder, by name."""
    return {str(one.relative_to(path)) for one in path.rglob("*") if one.is_file()}
