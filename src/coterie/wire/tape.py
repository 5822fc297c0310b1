"""The recording of what travelled. It keeps only what some declared adversary could read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from coterie.errors import require
from coterie.wire import recording
from coterie.wire.messages import Down, Kind, Message, Published
from coterie.wire.view import ThreatModel, View, as_seen, only_given, seat_at


@dataclass(frozen=True)
class _Entry:
    """Where a message is, and who may read it: the contents stay on disk where there is a folder."""

    round: int
    kind: Kind
    down: bool
    readers: frozenset[ThreatModel]
    load: Callable[[], Message]


class Tape:
    """Records messages, in memory or in a folder (see ``recording``), and builds the adversaries' views.

    In memory it grows with every message: a whole server's tape of a large model belongs in a folder, and whoever looks
    as the rounds go by has enough of the last few, ``keep``. A request that is asked again (a killed run goes on)
    replaces what was recorded from there on.
    """

    def __init__(self, threats: Sequence[ThreatModel], folder: Path | None = None, keep: int | None = None) -> None:
        require(
            len(threats) > 0,
            "threats",
            (),
            "must name at least one threat model: the tape keeps what they may see",
        )
        require(keep is None or keep >= 1, "keep", keep, "must be a number of rounds from 1 up, or None for all")
        require(keep is None or folder is None, "keep", keep, "is for a tape in memory; a folder holds all rounds")
        self.threats = tuple(threats)
        self.folder = folder
        self.keep = keep
        self._entries: list[_Entry] = []
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.glob("*.npz")):
                self._entries.append(self._entry(recording.load(path), partial(recording.load, path)))

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def own(self) -> frozenset[int]:
        """The clients that some adversary is."""
        return frozenset(client for threat in self.threats for client in threat.clients)

    def record(self, message: Message, goes_on: bool = False) -> None:
        """``goes_on``: a further part of a request, for other clients, where not all were sent the same."""
        if isinstance(message, Down) and not goes_on:
            self._forget(message)
            if self.keep is not None:
                first = message.round - self.keep + 1
                self._entries = [entry for entry in self._entries if entry.round >= first]
        readable = torch.cat([threat.positions(message) for threat in self.threats]).unique()
        if not len(readable):
            return
        kept: Message = message if len(readable) == len(message.clients) else message.pick(readable)
        if isinstance(kept, Down) and not any(threat.server for threat in self.threats):
            kept = only_given(kept)
        if self.folder is None:
            self._entries.append(self._entry(kept, lambda: kept))
            return
        path = self._path(len(self))
        recording.save(kept, path)
        self._entries.append(self._entry(kept, partial(recording.load, path)))

    def kept(self) -> list[Message]:
        """What it holds, to be saved with a run that may be killed and recorded again in one that goes on."""
        return [entry.load() for entry in self._entries]

    def view(
        self,
        threat: ThreatModel,
        keys: Mapping[str, object] | None = None,
        opener: Callable[[Published], Published] | None = None,
    ) -> View:
        """What this adversary saw; only threat models that the tape was made for have all of it.

        Whoever is a client, or holds its key, opens what is published as clients do: ``opener``.
        """
        require(
            threat in self.threats,
            "threat",
            threat.name,
            f"was not declared when the tape was made; it has {[known.name for known in self.threats]}",
        )
        index: dict[tuple[int, Kind, bool], list[Callable[[], Message]]] = defaultdict(list)
        for entry in self._entries:
            if threat in entry.readers:
                index[entry.round, entry.kind, entry.down].append(partial(_load_as_seen, threat, entry.load))
        held = {name: key for name, key in (keys or {}).items() if name in threat.keys}
        return View(threat, dict(index), held, opener if threat.clients or held else None)

    def _entry(self, message: Message, load: Callable[[], Message]) -> _Entry:
        readers = frozenset(threat for threat in self.threats if len(seat_at(threat, message).positions(message)))
        return _Entry(message.round, message.kind, isinstance(message, Down), readers, load)

    def _forget(self, again: Down) -> None:
        """Drop this request, if it was asked before, and all that came after it."""
        for position, entry in enumerate(self._entries):
            if (entry.round, entry.kind, entry.down) == (again.round, again.kind, True):
                if self.folder is not None:
                    for number in reversed(range(position, len(self))):
                        self._path(number).unlink()
                del self._entries[position:]
                return

    def _path(self, number: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{number:08d}.npz"


def _load_as_seen(threat: ThreatModel, load: Callable[[], Message]) -> Message:
    return as_seen(threat, load())
