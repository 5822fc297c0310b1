"""The client's process: warm, on Flower's fleet connection, until it is stopped."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from coterie.deploy.flower import Fleet, LinkGone, NotAdmitted, Parcel
from coterie.deploy.home import held
from coterie.deploy.journal import Journal
from coterie.deploy.participant import Participant
from coterie.deploy.policy import ClientFile
from coterie.errors import CoterieError, InvalidInput
from coterie.flow.workers import die_with

SOON, BUSY, IDLE = 0.05, 0.4, 2.0  # seconds between two looks for messages: after one, in a run, and long after it
QUIET = 20.0  # seconds without a message after which a client looks less often
AGAIN = (0.5, 10.0)  # seconds before it tries to reach the link again: at first, and at most


def serve(path: Path, log: Journal, stopped: Callable[[], bool] = lambda: False) -> None:
    """Answer whatever comes, for ever. A link that goes away is waited for; one that refuses the client is an error."""
    file = ClientFile.read(path)
    with held(file.home):
        _serve(file, log, stopped)


def _serve(file: ClientFile, log: Journal, stopped: Callable[[], bool]) -> None:
    participant = Participant(file, log)
    server, node = participant.server, participant.keys.node
    fleet = Fleet(server.address, server.authority, node, file.home / "node")
    log("ready", name=participant.keys.name, card=participant.keys.card.fingerprint, server=server.fingerprint)
    wait, connected = AGAIN[0], False
    try:
        while not stopped():
            try:
                if not connected:
                    fleet.connect()
                    connected, wait = True, AGAIN[0]
                    log("connected", server=participant.server.address)
                _answer_all(fleet, participant, log, stopped)
            except NotAdmitted as error:
                if not connected:
                    raise
                log("turned away", why=str(error))  # a run that ended while it answered, or a link that began anew
                connected = False
            except LinkGone as error:
                log("link gone", why=str(error), again_in=wait)
                connected = False
                time.sleep(wait)
                wait = min(2 * wait, AGAIN[1])
    finally:
        fleet.close()
        log("stopped", name=participant.keys.name)


def serve_all(paths: Sequence[Path]) -> None:
    """A process a client, forked from this one, until it is stopped."""
    for path in paths:
        ClientFile.read(path)  # or say what is wrong with it before anybody begins
    context, parent = multiprocessing.get_context("fork"), os.getpid()
    gc.freeze()  # so that what they share stays shared
    processes = [context.Process(target=_serve_one, args=(path, parent)) for path in paths]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    ended = [str(path) for path, process in zip(paths, processes, strict=True) if (process.exitcode or 0) > 0]
    if ended:
        raise InvalidInput(f"{len(ended)} of {len(paths)} clients could not go on; the lines above say why: {ended[0]}")


def _serve_one(path: Path, parent: int) -> None:
    die_with(parent)
    try:
        serve(path, Journal())
    except CoterieError as problem:
        Journal()("failed", client=str(path), why=str(problem))
        sys.exit(2)


def _answer_all(fleet: Fleet, participant: Participant, log: Journal, stopped: Callable[[], bool]) -> None:
    last, wait = time.monotonic(), SOON
    while not stopped():
        parcel = _newest(fleet)
        if parcel is None:
            time.sleep(wait)
            wait = min(1.5 * wait, BUSY if time.monotonic() - last < QUIET else IDLE)
            continue
        answer = participant.answer(parcel.body)
        last, wait = time.monotonic(), SOON
        if answer is not None:
            parcel.reply(answer)


def _newest(fleet: Fleet) -> Parcel | None:
    """Of all that has come the last: whoever was away for a while does not begin with what nobody waits for."""
    found = fleet.pull()
    while found is not None:
        try:
            newer = fleet.pull()
        except (LinkGone, NotAdmitted):  # what has come is still to be answered, if it can be
            return found
        if newer is None:
            return found
        found = newer if newer.body else found
    return None
