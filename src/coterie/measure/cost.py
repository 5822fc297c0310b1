"""What a run costs: seconds, bytes and memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from coterie.flow.drive import Transport
from coterie.wire.messages import Contributions, Envelope


@dataclass
class Meter:
    """A ``Transport`` that passes everything on and counts what clients send."""

    transport: Transport
    kind: str = "train"
    uploads: int = 0  # one a client and round
    upload_bytes: int = 0
    rounds: set[int] = field(default_factory=set)
    _started: float = field(default_factory=time.monotonic)

    def exchange(self, ask: Envelope) -> Iterator[Envelope]:
        for envelope in self.transport.exchange(ask):
            payload = envelope.payload
            if ask.kind == self.kind and isinstance(payload, Contributions):
                self.rounds.add(ask.round)
                self.uploads += len(payload)
                self.upload_bytes += payload_bytes(payload)
            yield envelope

    @property
    def bytes_a_client(self) -> float:
        """A client and round."""
        return self.upload_bytes / max(self.uploads, 1)

    @property
    def seconds_a_round(self) -> float:
        """Since this meter was made, all parties together on this machine."""
        return (time.monotonic() - self._started) / max(len(self.rounds), 1)


def payload_bytes(sent: Contributions) -> int:
    """Parameters, weights and memberships in the clear, and ciphertexts as they travel."""
    plain = [*sent.values.values(), sent.weights, sent.membership]
    sealed = sum(batch.nbytes for batch in sent.sealed.values())
    return sum(leaf.numel() * leaf.element_size() for leaf in plain) + sealed


def peak_memory() -> int:
    """Bytes that this process held at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
