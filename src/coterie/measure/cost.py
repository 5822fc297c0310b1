"""What a run costs: seconds and memory. Bytes are the ring's own count (``wire.traffic``)."""

from __future__ import annotations

import resource
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from coterie.flow.ask import AnyAsk


@dataclass
class Stopwatch:
    """Seconds a round, all parties together on this machine. What is measured on the way is not the federation's."""

    rounds: set[int] = field(default_factory=set)
    paused: float = 0.0
    _started: float = field(default_factory=time.monotonic)

    def note(self, ask: AnyAsk) -> None:
        self.rounds.add(ask.round)

    @property
    def seconds_a_round(self) -> float:
        return (time.monotonic() - self._started - self.paused) / max(len(self.rounds), 1)


def peak_memory() -> int:
    """Bytes that this process held at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def forget_peak() -> None:
    """Let the peak of memory count from here on, where the system can: a process runs many jobs."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
