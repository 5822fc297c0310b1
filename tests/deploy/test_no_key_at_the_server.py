"""Processes of their own: neither the link's nor the run's memory, nor a file of theirs, holds the clients' key."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.deploy.demo import MINGLED, prepare, processes, start
from coterie.deploy.keys import GROUP

WINDOW = 64  # bytes that nothing else has


def marks(secret: bytes) -> list[bytes]:
    """Windows at several places of the key, which is in memory as it is in its file: word by word."""
    found = [secret[at : at + WINDOW] for at in range(256, len(secret) - WINDOW, len(secret) // 8)]
    assert all(len(set(mark)) > WINDOW // 2 for mark in found)  # nothing that any process holds
    return found


def holds(process: int, wanted: list[bytes]) -> bool:
    """Whether any of it is anywhere in what a process can read or write; it is stopped meanwhile."""
    os.kill(process, signal.SIGSTOP)
    try:
        return any(mark in part for part in memory(process) for mark in wanted)
    finally:
        os.kill(process, signal.SIGCONT)


def memory(process: int) -> Iterator[bytes]:
    maps = Path(f"/proc/{process}/maps").read_text().splitlines()
    with Path(f"/proc/{process}/mem").open("rb", buffering=0) as held:
        for line in maps:
            span, permissions = line.split()[:2]
            low, high = (int(end, 16) for end in span.split("-"))
            if "w" not in permissions:
                continue
            try:
                held.seek(low)
                yield held.read(high - low)
            except (OSError, ValueError, OverflowError):  # [vvar] and the like
                continue


@pytest.mark.timeout(600)
def test_the_servers_processes_and_files_hold_no_key(tmp_path: Path) -> None:
    prepare(tmp_path)
    wanted = marks((tmp_path / "client1" / "keys" / GROUP).read_bytes())
    (tmp_path / "run.toml").write_text(MINGLED.replace("rounds = 4", "rounds = 30"))
    log = tmp_path / "runs" / "mingled_pie-001" / "events.jsonl"
    with processes(tmp_path) as (link, _, client, *_):
        run = start(tmp_path, "run", "run.toml", "--home", "server", "--runs", "runs")
        try:
            while not log.exists() or log.read_text().count('"exchange"') < 3:
                assert run.poll() is None, (tmp_path / "processes.log").read_text()[-2000:]
                time.sleep(0.05)
            assert holds(client.pid, wanted)  # it is found where it is
            assert not holds(link.pid, wanted)
            assert not holds(run.pid, wanted)
        finally:
            run.kill()
            run.wait()
    for folder in ("server", "runs"):
        for path in (one for one in (tmp_path / folder).rglob("*") if one.is_file()):
            assert not any(mark in path.read_bytes() for mark in wanted), path
