"""What a client keeps on its own disk: the ledger, what it remembers of a run, and which runs it has ever begun.

Each file is whole or as it was before, for the owner alone, and on disk before an answer leaves. One process at a time
works in a home: two would answer the same letter twice, and count it once.
"""

from __future__ import annotations

import fcntl
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from coterie.deploy.envelope import RUN
from coterie.deploy.plan import Offer
from coterie.errors import InvalidInput, NotPermitted, require
from coterie.files import write_atomically
from coterie.flow.cohort import Memory
from coterie.privacy.ledger import Ledger, Row, Spend
from coterie.wire.codec import decode, encode, register

LEDGER, SESSION, SEEN, LOCK, MODELS = "ledger.bin", "session.bin", "seen.bin", "lock", "models.npz"
MOMENT = 0.05  # seconds before a lock is tried again


@register
@dataclass(frozen=True)
class Kept:
    """What a client remembers of a run, on disk."""

    run: bytes
    number: int  # of the last letter that it answered
    offer: Offer
    asked: str = ""  # the last request
    before: Memory = field(default_factory=dict)  # what it remembered before that
    after: Memory = field(default_factory=dict)  # and after it
    spent: tuple[Row, ...] = ()
    round: int = 0  # of the last request
    requests: int = 0  # that it has answered; the further exchanges of one count with it


@contextmanager
def held(folder: Path, seconds: float = 0.0) -> Iterator[None]:
    """Keep other processes out of a home; one that is in it is waited for, but not longer than this."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    until = time.monotonic() + seconds
    with (folder / LOCK).open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= until:
                    raise NotPermitted(
                        f"home {folder} is another client's that runs now; stop it, or name a home of its own"
                    ) from error
                time.sleep(MOMENT)
        yield


class Home:
    """The folder of one client. What ``kept`` is, is on disk."""

    def __init__(self, folder: Path, limit: float, delta: float) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o077:  # somebody else made it
            folder.chmod(0o700)
        self.folder = folder
        self.ledger = Ledger(limit, delta, folder / LEDGER)
        self.kept = self._read()
        self._seen()  # or say what is wrong with it before anything is answered

    def _read(self) -> Kept | None:
        path = self.folder / SESSION
        if not path.exists():
            return None
        try:
            found = decode(path.read_bytes())
        except InvalidInput as error:
            raise InvalidInput(f"{path} is damaged ({error}); put back a whole copy of {self.folder}") from error
        require(isinstance(found, Kept), f"what {path} holds", type(found).__name__, "must be a session; move it away")
        return found  # type: ignore[no-any-return]

    def keep(self, kept: Kept) -> None:
        write_atomically(self.folder / SESSION, encode(kept), private=True)
        self.kept = kept

    def has_begun(self, run: bytes) -> bool:
        return run in self._seen()

    def begin(self, run: bytes) -> None:
        """Write down that this run has begun: it never does so again."""
        write_atomically(self.folder / SEEN, b"".join([*self._seen(), run]), private=True)

    def _seen(self) -> list[bytes]:
        path = self.folder / SEEN
        data = path.read_bytes() if path.exists() else b""
        if len(data) % RUN:
            raise InvalidInput(f"{path} has {len(data)} bytes, which are no runs' names; put back a whole copy of it")
        return [data[start : start + RUN] for start in range(0, len(data), RUN)]


# -- rows of a ledger -------------------------------------------------------------------------------------------------


Mechanism = tuple[float, float, float | None, bool]
"""Of a release: its noise multiplier, its sample rate, its epsilon, and whether its noise is Laplace's."""


def joined(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    counts = Counter[tuple[int, Spend]]()
    for whose, spent, times in rows:
        counts[whose, spent] += times
    return tuple((whose, spent, times) for (whose, spent), times in counts.items())


def covers(reserved: tuple[Row, ...], spent: tuple[Row, ...]) -> bool:
    """Whether each release was held for: the same mechanism, as often at least."""
    has, used = _mechanisms(reserved), _mechanisms(spent)
    return all(has[one] >= times for one, times in used.items())


def _mechanisms(rows: tuple[Row, ...]) -> Counter[Mechanism]:
    counts = Counter[Mechanism]()
    for _, one, times in rows:
        counts[round(one.noise_multiplier, 12), round(one.sample_rate, 12), one.epsilon, one.laplace] += times
    return counts
