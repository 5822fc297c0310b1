"""The recording of what travelled. It keeps only what some declared adversary could read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from coterie.errors import require
from coterie.wire.codec import decode, encode
from coterie.wire.messages import Contributions, Envelope, Published
from coterie.wire.view import ThreatModel, View


class Tape:
    """Records envelopes, in memory or in a folder (one file a message), and builds the adversaries' views."""

    def __init__(self, threats: Sequence[ThreatModel], folder: Path | None = None) -> None:
        require(
            len(threats) > 0,
            "threats",
            (),
            "name at least one threat model: the tape keeps what they may see",
        )
        self.threats = tuple(threats)
        self.folder = folder
        self._entries: list[tuple[Callable[[], Envelope], Envelope]] = []  # how to load it, and its address
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.glob("*.msg")):
                self._append(partial(_load, path), decode(path.read_bytes()))

    def record(self, envelope: Envelope) -> None:
        readable = torch.cat([threat.positions(envelope) for threat in self.threats]).unique()
        if not len(readable):
            return
        kept = envelope if len(readable) == len(envelope.clients) else envelope.pick(readable)
        if self.folder is None:
            self._append(lambda: kept, kept)
            return
        path = self.folder / f"{len(self._entries):08d}.msg"
        partial_path = path.with_suffix(".part")
        partial_path.write_bytes(encode(kept))
        partial_path.replace(path)
        self._append(partial(_load, path), kept)

    def rewind(self, round: int) -> None:
        """Forget this round and all later ones: a resumed run records them again."""
        while self._entries and self._entries[-1][1].round >= round:
            self._entries.pop()
            if self.folder is not None:
                (self.folder / f"{len(self._entries):08d}.msg").unlink()

    def view(self, threat: ThreatModel, keys: Mapping[str, Any] | None = None) -> View:
        """What this adversary saw; only threat models that the tape was made for have all of it."""
        require(threat in self.threats, "threat", threat.name, "was not declared when the tape was made")
        index: dict[tuple[int, str, bool], list[int]] = defaultdict(list)
        for position, (_, address) in enumerate(self._entries):
            if len(threat.positions(address)):
                index[address.round, address.kind, address.down].append(position)
        held = {name: key for name, key in (keys or {}).items() if name in threat.keys}
        return View(threat, [load for load, _ in self._entries], dict(index), held)

    def _append(self, load: Callable[[], Envelope], envelope: Envelope) -> None:
        address = envelope
        if self.folder is not None:  # keep the address in memory and the contents on disk
            payload = envelope.payload
            empty: Published | Contributions
            if isinstance(payload, Published):
                empty = Published({}, payload.sizes)
            else:
                empty = replace(payload, values={}, sealed={})
            address = replace(envelope, payload=empty)
        self._entries.append((load, address))


def _load(path: Path) -> Envelope:
    envelope = decode(path.read_bytes())
    assert isinstance(envelope, Envelope)
    return envelope
