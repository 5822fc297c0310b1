"""The second way: Flower's own SuperLink, SuperNodes and `flwr run`, by Flower's public names alone.

The app that is sent around names these two objects and holds no code. Letters, policy, ledger and the client's half of
every exchange are those of `coterie deploy client`. But a stock SuperNode executes whatever app a run brings, so here
the policy binds a server that runs this app, and no other: see docs/deployment.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from secrets import token_bytes

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from coterie.deploy.envelope import RUN, UP, Channel
from coterie.deploy.home import held
from coterie.deploy.journal import Journal
from coterie.deploy.keys import ClientCard, ServerKeys, shared
from coterie.deploy.participant import Participant
from coterie.deploy.policy import ClientFile
from coterie.deploy.running import LOG, Deployment, Direction, begun, enrolled
from coterie.deploy.transport import TooFewAnswers
from coterie.errors import CoterieError, InvalidInput

RECORD, BODY = "coterie", "body"
ACTION = "coterie"
WHO = b"who\n"  # before a run's name: the server asks a node which client it is
OFTEN = 0.3  # seconds between two looks for answers
BUSY = 60.0  # seconds that a message waits for another one at the same client
CLIENT_LOG = "events.jsonl"

client_app = ClientApp()
server_app = ServerApp()


# -- at a client ------------------------------------------------------------------------------------------------------


def answer(message: Message, context: Context) -> Message:
    """One message in a process that Flower starts for it; what is between two of a request is Flower's context."""
    body, said = _body(message), b""
    try:
        file = ClientFile.read(Path(str(context.node_config.get("client", "client.toml"))))
        with held(file.home, BUSY), closing(Journal(file.home / CLIENT_LOG)) as log:
            client = Participant(file, log)
            client.go_on(_body_of(context.state))
            said = client.introduced(body[len(WHO) :]) if _asks_who(body) else client.answer(body) or b""
            context.state[RECORD] = ConfigRecord({BODY: client.unfinished})
    except CoterieError as problem:  # the owner is told, and the server nothing
        Journal()("failed", why=str(problem))
    return Message(RecordDict({RECORD: ConfigRecord({BODY: said})}), reply_to=message)


def _asks_who(body: bytes) -> bool:
    return body.startswith(WHO) and len(body) == len(WHO) + RUN


def _body(message: Message) -> bytes:
    return b"" if message.has_error() else _body_of(message.content)


def _body_of(records: RecordDict) -> bytes:
    """Empty if there is nothing of ours in it."""
    found = records.config_records[RECORD].get(BODY, b"") if RECORD in records.config_records else b""
    return found if isinstance(found, bytes) else b""


# -- at the server ----------------------------------------------------------------------------------------------------


class OverGrid:
    """Letters as messages of Flower's."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def push(self, bodies: Mapping[int, bytes], seconds: float) -> dict[str, int]:
        messages = [
            Message(RecordDict({RECORD: ConfigRecord({BODY: body})}), node, f"query.{ACTION}", ttl=seconds)
            for node, body in bodies.items()
        ]
        names = list(self._grid.push_messages(messages))
        if len(names) != len(messages):  # Flower says that of a message that is too long
            raise InvalidInput(f"the link took {len(names)} of {len(messages)} messages; are they too long for it?")
        return {name: node for name, node in zip(names, bodies, strict=True) if name}

    def pull(self, names: Sequence[str], until: float) -> Iterator[tuple[str, bytes]]:
        waiting = set(names)
        while waiting:
            for reply in self._grid.pull_messages(list(waiting)):
                asked = reply.metadata.reply_to_message_id
                waiting.discard(asked)
                yield asked, _body(reply)
            if time.monotonic() >= until:
                return
            time.sleep(OFTEN if waiting else 0.0)


def main(grid: Grid, context: Context) -> None:
    """The run that the app's settings name, over the nodes that are there."""
    said = {name: Path(str(context.run_config[name])) for name in ("home", "file", "runs", "resume")}
    resumes = bool(str(context.run_config["resume"]))
    keys, cards = enrolled(said["home"])
    job, folder = begun(
        said["home"], None if resumes else said["file"], said["runs"], said["resume"] if resumes else None
    )
    log = Journal(folder.path / LOG)
    try:
        post = OverGrid(grid)
        nodes = present(grid, post, keys, cards, job.deployment)
        Direction(job, cards, keys, nodes, post, folder, log).run(resumes)
    finally:
        log.close()


def present(
    grid: Grid, post: OverGrid, keys: ServerKeys, cards: list[ClientCard], deployment: Deployment
) -> dict[int, int]:
    """The nodes of the clients that are there, by number: each is asked who it is, and only a card's owner can say."""
    run, until = token_bytes(RUN), time.monotonic() + deployment.wait
    numbers = {card.name: number for number, card in enumerate(cards)}
    channels = [Channel(shared(keys.letters, card.letters, b"letters")) for card in cards]
    nodes: dict[int, int] = {}
    asked: set[int] = set()
    while len(nodes) < len(cards) and time.monotonic() < until:
        fresh = set(grid.get_node_ids()) - asked
        asked |= fresh
        names = post.push(dict.fromkeys(fresh, WHO + run), deployment.deadline) if fresh else {}
        for name, told in post.pull(list(names), time.monotonic() + deployment.deadline):
            number = _who(told, run, numbers, channels)
            if number is not None:
                nodes[number] = names[name]
        time.sleep(0.0 if len(nodes) == len(cards) else OFTEN)
    if len(nodes) < deployment.least:
        raise TooFewAnswers(
            f"clients at the link={len(nodes)} of {len(cards)}, and least={deployment.least}; start their "
            "SuperNodes, each with its own file in --node-config"
        )
    return nodes


def _who(told: bytes, run: bytes, numbers: Mapping[str, int], channels: Sequence[Channel]) -> int | None:
    """Which client says so; None: whoever it is has no card's key."""
    name, _, sealed = told.partition(b"\n")
    number = numbers.get(name.decode(errors="replace"))
    if number is None:
        return None
    try:
        letter = channels[number].open(UP, sealed)
    except CoterieError:
        return None
    return number if (letter.run, letter.number) == (run, 0) else None


client_app.query(ACTION)(answer)
server_app.main()(main)


# -- the app ----------------------------------------------------------------------------------------------------------

APP = """\
# What `flwr run` sends around: names of what is installed everywhere, and no code.
[project]
name = "coterie-federation"
version = "1.0.0"
[tool.flwr.app]
publisher = "coterie"
[tool.flwr.app.components]
serverapp = "coterie.deploy.stock:server_app"
clientapp = "coterie.deploy.stock:client_app"
[tool.flwr.app.config]
"""


def write_app(folder: Path, file: Path, home: Path, runs: Path) -> None:
    """An app for `flwr run`, with the paths on the server's machine in it."""
    paths = {"file": file, "home": home, "runs": runs}
    words = {name: str(path.absolute()) for name, path in paths.items()} | {"resume": ""}
    folder.mkdir(parents=True, exist_ok=True)
    lines = (f"{name} = {json.dumps(value)}\n" for name, value in words.items())
    (folder / "pyproject.toml").write_text(APP + "".join(lines))
