"""What `coterie deploy` does."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from secrets import token_bytes

from rich.console import Console
from rich.table import Table

from coterie.deploy.journal import Journal
from coterie.deploy.keys import (
    CARD,
    GROUP,
    LINK_CERTIFICATE,
    LINK_KEY,
    ClientCard,
    ClientKeys,
    ServerCard,
    ServerKeys,
    open_sealed,
    roster,
    seal_for,
)
from coterie.errors import require
from coterie.files import write_atomically

console = Console()
PURPOSE = "group key"


# -- keys -------------------------------------------------------------------------------------------------------------


def server_keys(folder: Path, address: str, local_port: int) -> None:
    ServerKeys.make(folder, address, local_port)
    console.print(f"server keys: {folder}; hand {folder / CARD} to every client, and put theirs in {folder}/clients/")
    fingerprint = ServerCard.read(folder / CARD).fingerprint
    console.print(f"its fingerprint, for whoever wants to compare: {fingerprint}")


def client_keys(folder: Path, name: str) -> None:
    keys = ClientKeys.make(folder, name)
    console.print(f"keys of {name}: {folder}; hand {folder / CARD} to the server and to the other clients")
    console.print(f"its fingerprint, for whoever wants to compare: {keys.card.fingerprint}")


def group_key(folder: Path, cards: Path, kind: str, out: Path) -> None:
    """Make what clients share, keep it, and seal it for each of the others."""
    from coterie.seal.ckks import Ckks

    mine = ClientKeys.read(folder)
    others = [card for card in roster(cards) if card.name != mine.name]
    require(
        bool(others), "cards", str(cards), "holds no other client's card, for which the key is sealed; put them there"
    )
    secret = Ckks().keygen().to_bytes() if kind == "ckks" else token_bytes(32)
    require(not (folder / GROUP).exists(), "shared key", str(folder / GROUP), "is there already; move it away first")
    write_atomically(folder / GROUP, secret, private=True)
    out.mkdir(parents=True, exist_ok=True)
    for card in others:
        (out / f"{card.name}.sealed.json").write_bytes(seal_for(card, mine, secret, PURPOSE))
    console.print(f"shared key: {folder / GROUP}; sealed for {', '.join(card.name for card in others)} in {out}/")


def take_group_key(folder: Path, cards: Path, letter: Path) -> None:
    mine = ClientKeys.read(folder)
    others: dict[str, ClientCard] = {card.name: card for card in roster(cards)}
    secret = open_sealed(letter, mine, others, PURPOSE)
    require(not (folder / GROUP).exists(), "shared key", str(folder / GROUP), "is there already; move it away first")
    write_atomically(folder / GROUP, secret, private=True)
    console.print(f"shared key: {folder / GROUP}")


# -- processes --------------------------------------------------------------------------------------------------------


def server(home: Path, host: str) -> None:
    from coterie.deploy.flower import LinkSettings, serve
    from coterie.deploy.running import enrolled

    keys, cards = enrolled(home)
    settings = LinkSettings(host, keys.port, keys.local_port, home / LINK_CERTIFICATE, home / LINK_KEY, keys.secret)
    Journal()("link", fleet=f"{host}:{keys.port}", local=f"127.0.0.1:{keys.local_port}", clients=len(cards))
    serve(settings, [card.node for card in cards])


def client(paths: list[Path], log: Path | None) -> None:
    """One client; or several on one machine, to try things out: a process each, which share what they imported."""
    from coterie.deploy.agent import serve, serve_all

    if len(paths) == 1:
        serve(paths[0], Journal(log))
        return
    require(log is None, "log", str(log), "is one client's; leave it out")
    serve_all(paths)


def run(home: Path, path: Path | None, runs: Path, resume: Path | None, record: Path | None) -> None:
    from coterie.audit.recorded import RECORDER
    from coterie.commands.training import free_recording
    from coterie.deploy.running import LOG, begun, described, directed
    from coterie.wire.tape import Tape

    job, folder = begun(home, path, runs, resume)
    log = Journal(folder.path / LOG, aloud=False)
    console.print(f"{folder.path}: waiting for clients, {job.deployment.wait:g} s at most", soft_wrap=True)
    tape = None if record is None else Tape([RECORDER], free_recording(record, "", 1))
    try:
        with directed(home, job, folder, log, tape) as direction:
            outcome = direction.run(resumes=resume is not None)
    finally:
        log.close()
    if record is not None:
        described(job, path, record)
        console.print(f"messages: {record}; `coterie audit --recorded {record}` attacks them", soft_wrap=True)
    console.print(f"run: {folder.path}; {outcome.seconds:.2f} s a round, {outcome.sent + outcome.received:,} bytes")
    for number, measures in outcome.told.items():
        said = ", ".join(f"{name} {value:.4f}" for name, value in measures.items())
        console.print(
            f"client {number}: {said or 'has its result, and tells no measure of it (tells_measures in its policy)'}"
        )


def app(path: Path, home: Path, runs: Path, out: Path) -> None:
    from coterie.deploy.running import Job, enrolled
    from coterie.deploy.stock import write_app

    Job.read(path).rehearse(enrolled(home)[1])  # or say what is wrong with it
    write_app(out, path, home, runs)
    console.print(f"app: {out}; `flwr run {out}` runs it on stock SuperNodes, which execute what they are sent")


def demo(folder: Path | None) -> None:
    from importlib import import_module
    from tempfile import TemporaryDirectory

    from coterie.deploy.demo import demo as run_demo

    import_module("coterie.deploy.flower")  # where Flower is missing, one line now rather than one of each process

    if folder is None:
        with TemporaryDirectory(prefix="coterie-demo-") as place:
            found = run_demo(Path(place), _under_way)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        found = run_demo(folder.absolute(), _under_way)
    table = Table(title="Five processes on loopback, over TLS")
    for heading in ("run", "result", "bytes a client and round", "seconds a round", "what the server could see"):
        table.add_column(heading)
    for one in found:
        table.add_row(one.name, one.utility, f"{one.bytes_a_client:,.0f}", f"{one.seconds:.2f}", one.server_sees)
    console.print(table)


def _under_way(what: str) -> None:
    print(f"demo: {what} ...", file=sys.stderr, flush=True)


def scale(enrolled: int, cohort: int, drop: float, every: float) -> None:
    from coterie.deploy.scale import Asked, measure, needs

    asked = Asked(enrolled, cohort, drop, every)
    table = Table(title=f"{enrolled:,} clients, {cohort:,} asked a round, FCNN; parts measured here just now")
    for heading in ("what", "how much", "from"):
        table.add_column(heading)
    for row in needs(asked, measure()):
        table.add_row(row.what, row.value, row.why)
    console.print(table)


def status(home: Path, as_json: bool) -> None:
    """Who is at the link."""
    from coterie.deploy.flower import Office

    keys = ServerKeys.read(home)
    office = Office(keys.local_port, keys.secret)
    try:
        online = {one.public_key: one.online for one in office.nodes()}
    finally:
        office.close()
    cards = roster(home / "clients")
    found = {card.name: {"enrolled": card.node in online, "online": online.get(card.node, False)} for card in cards}
    if as_json:
        print(json.dumps(found, indent=2))
        return
    table = Table(title=f"Clients of {home}")
    for heading in ("client", "state", "card"):
        table.add_column(heading)
    for card in cards:
        state = "online" if found[card.name]["online"] else "away"
        state = state if found[card.name]["enrolled"] else "not enrolled: start the server again"
        table.add_row(card.name, state, card.fingerprint)
    console.print(table)
