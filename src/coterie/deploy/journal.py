"""What happened, one line of JSON an event: for people with grep, and for programs."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path


class Journal:
    """Writes to a file, and to the terminal where that is wanted. No event holds data, keys or models."""

    def __init__(self, path: Path | None = None, aloud: bool = True) -> None:
        self._file = None if path is None else path.open("a", buffering=1)
        self._aloud = aloud

    def __call__(self, event: str, **facts: object) -> None:
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event} | facts)
        if self._file is not None:
            self._file.write(line + "\n")
        if self._aloud:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
