"""A run on real machines, from the server's side: offer it, drive it round by round, keep a checkpoint, hand it out."""

from __future__ import annotations

import json
import math
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_bytes
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from coterie.audit import toml
from coterie.audit.recorded import DESCRIPTION
from coterie.config.schema import AUDITS_OWN, Config, Strict, beside, parse, read_toml, validate
from coterie.deploy.envelope import RUN, Channel
from coterie.deploy.journal import Journal
from coterie.deploy.keys import ClientCard, ServerKeys, roster, shared
from coterie.deploy.plan import Accepted, KeyName, Offer, Plan, Refused, Told, words_of
from coterie.deploy.transport import Correspondence, Deployed, Post, TooFewAnswers
from coterie.errors import InvalidInput, require
from coterie.flow.ask import AnyAsk
from coterie.flow.drive import Course
from coterie.flow.protocol import Population, Server
from coterie.flow.turn import Metrics, Roots
from coterie.privacy.ledger import Ledger
from coterie.run.folder import Checkpoint, RunFolder, free_folder
from coterie.wire.codec import encode
from coterie.wire.messages import RESULT, Down
from coterie.wire.tape import Tape
from coterie.wire.traffic import Traffic

MOST_ROWS = 2**40  # that a client may say to hold
MOST_NUMBERS = 2**28  # of an example
MOST_CLASSES = 2**20
MOST_SECONDS = 1e7  # about four months
NEVER = 2**62  # the round in which one joins who is not there
LOG = "events.jsonl"
HEADER = """\
# What the attacks need beside these messages. Add [data]: what the adversary holds, of the clients' kind.
"""
Measures = dict[int, dict[str, float]]
"""What clients say of a result, by client and measure."""

State = Any
"""A protocol's, which only the protocol understands."""


class Deployment(Strict):
    """``[deploy]`` of a run's file: what nobody can know who holds no data, and when to go on without somebody."""

    # of one example, in all clients' data; parties that hold columns need none
    shape: tuple[Annotated[int, Field(ge=1, le=MOST_NUMBERS)], ...] = Field(default=(), max_length=8)
    labels: tuple[str, ...] = ()  # the classes, or
    classes: int = Field(default=0, ge=0, le=MOST_CLASSES)  # how many, where they are numbers from 0
    least: int = Field(default=2, ge=1)  # answers to each request, or the run ends
    deadline: float = Field(default=60.0, gt=0, le=MOST_SECONDS)  # seconds for an answer
    patience: int = Field(default=2, ge=1)  # after so many missed requests in a row nobody waits for a client
    wait: float = Field(default=60.0, ge=0, le=MOST_SECONDS)  # seconds for clients to come before the run begins
    seeded: bool = (
        False  # the server's draws from the file's seed, for runs that can be repeated; its noise is then none
    )

    @property
    def names(self) -> tuple[str, ...]:
        return self.labels or tuple(map(str, range(self.classes)))


@dataclass(frozen=True)
class Job:
    """What a run's file says."""

    config: Config
    deployment: Deployment
    public: Tensor | None = None

    @staticmethod
    def read(path: Path) -> Job:
        return Job.of(read_toml(path, "see docs/deployment.md for a run's file"), path)

    @staticmethod
    def of(words: Mapping[str, Any], path: Path) -> Job:
        kept = {
            name: value for name, value in words.items() if name not in (*AUDITS_OWN, "deploy", "data", "partition")
        }
        deployment = validate(Deployment, words.get("deploy", {}), f"{path} [deploy]")
        config = beside(parse(kept, str(path)), path)
        config.refuse_code(str(path), "nothing helps: clients run installed code alone")
        numbers = math.prod(deployment.shape)
        require(numbers <= MOST_NUMBERS, "numbers of an example", numbers, f"must be at most {MOST_NUMBERS}: see shape")
        return Job(config, deployment, _public(config))

    def rehearse(self, cards: list[ClientCard]) -> None:
        """Build what clients would be offered, before a folder is made or anybody waited for."""
        Plan.of(self.offer(tuple(card.name for card in cards), False, False)).require_real()

    def offer(self, names: tuple[str, ...], recorded: bool, resumes: bool) -> Offer:
        """To client 0; each gets its own number."""
        draws = Roots.seeded(self.config.seed).child("clients").draws.key
        shape, labels = self.deployment.shape, self.deployment.names
        return Offer(words_of(self.config), shape, labels, names, 0, draws, self.public, recorded, resumes)


def _public(config: Config) -> Tensor | None:
    """The points that everybody knows, if the file names some."""
    if config.public is None:
        return None
    from coterie.config import registry
    from coterie.data.catalogue import find
    from coterie.rng import Rng

    options = config.public.options
    folder = options.pop("folder", None)
    source = registry.build(find(config.public.kind), options, f"public {config.public.kind!r}")
    return source.load(folder, rng=Rng.seeded(config.seed)).x.flatten(1)  # type: ignore[no-any-return]


@dataclass
class Outcome:
    """What a run came to, as far as the server knows."""

    state: State
    plan: Plan
    traffic: Traffic
    told: Measures = field(default_factory=dict)
    sent: int = 0  # bytes to clients, as they were posted
    received: int = 0
    seconds: float = 0.0  # a round


@dataclass
class Direction:
    """One run over some post: everything but where letters go."""

    job: Job
    cards: list[ClientCard]
    keys: ServerKeys
    nodes: Mapping[int, int]  # of the clients that are there
    post: Post
    folder: RunFolder
    log: Journal
    tape: Tape | None = None

    def run(self, resumes: bool = False) -> Outcome:
        letters = self._letters()
        offer = self.job.offer(tuple(card.name for card in self.cards), self.tape is not None, resumes)
        plan = Plan.of(offer)  # before anything is read that only its classes can hold
        saved = self.folder.load() if resumes else None
        accepted = self._offered(letters, offer)
        plan = self._keyed(plan, accepted)
        server = self._server(plan, accepted, saved)
        traffic = Traffic() if saved is None else saved.traffic
        transport = Deployed(letters, self.job.deployment.least)
        state = plan.protocol.start(server) if saved is None else saved.state
        rounds, started = [], time.monotonic()

        def before_ask(ask: AnyAsk) -> None:
            rounds.append(ask.round)
            self.folder.save(Checkpoint(ask.state, {}, [], server.ledger.rows, server.metrics.rows, traffic))

        with self.folder.held():
            course = Course(plan.protocol, state, server, transport, self.tape, traffic, None, before_ask)
            state = course.finish()
            seconds = (time.monotonic() - started) / max(1, len(set(rounds)))
            self.folder.save(Checkpoint(state, {}, [], server.ledger.rows, server.metrics.rows, traffic))
            told = self._hand_out(plan, state, server, letters)
            self.folder.finish(plan.protocol.result(state).values)
        facts = {"sent": letters.sent, "received": letters.received, "told": told}
        self.log("finished", rounds=len(set(rounds)), seconds_a_round=round(seconds, 3), **facts)
        return Outcome(state, plan, traffic, told, letters.sent, letters.received, seconds)

    def _letters(self) -> Correspondence:
        channels = {
            number: Channel(shared(self.keys.letters, card.letters, b"letters"))
            for number, card in enumerate(self.cards)
        }
        run = token_bytes(RUN)
        self.log("run", run=run.hex()[:8], name=self.job.config.name, clients=sorted(self.nodes))
        said = self.job.deployment
        return Correspondence(self.post, run, channels, self.nodes, self.log, said.deadline, said.patience)

    def _offered(self, letters: Correspondence, offer: Offer) -> dict[int, Accepted]:
        """Who takes part. One that refuses says why, and the run goes on with the others, if they are enough."""
        said = letters.ask({number: replace(offer, number=number) for number in self.nodes})
        accepted, usual, reasons = {}, _usual_key(said), dict[str, list[str]]()
        for number, answer in said.items():
            if why := _why_not(answer, usual):
                self.log("declined", client=number, name=self.cards[number].name, why=why[:500])
                reasons.setdefault(why[:500], []).append(self.cards[number].name)
            elif isinstance(answer, Accepted):
                accepted[number] = answer
        least = self.job.deployment.least
        if len(accepted) < least:
            raise TooFewAnswers(
                f"clients that take part={len(accepted)} of {len(self.cards)}, and least={least}; "
                + ("; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items()) or "no other answered")
            )
        return accepted

    def _keyed(self, plan: Plan, accepted: Mapping[int, Accepted]) -> Plan:
        """The server knows the clients' key by name, and that it is one."""
        plan.require_real()
        if plan.cipher is None:
            return plan
        name = next(iter(accepted.values())).key
        require(type(name) is type(plan.key_name), "clients' shared key", type(name).__name__, "is of another cipher")
        return plan.with_key(KeyName(name))

    def _server(self, plan: Plan, accepted: Mapping[int, Accepted], saved: Checkpoint | None) -> Server:
        clients = range(len(self.cards))
        sizes = torch.tensor([accepted[one].size if one in accepted else 0 for one in clients])
        joins = torch.tensor([0 if one in accepted else NEVER for one in clients])
        seed, roots = self.job.config.seed, Roots.from_entropy()
        seeded = Roots.seeded(seed)
        roots = seeded if self.job.deployment.seeded else Roots(seeded.draws, roots.secrets)
        ledger, metrics = Ledger(), Metrics()
        if saved is not None:
            ledger.enter(saved.spent)
            metrics.enter(saved.metrics)
        population = Population(sizes, joins)
        return Server(population, plan.defence.server, roots.child("server"), plan.model, ledger, metrics)

    def _hand_out(
        self, plan: Plan, state: State, server: Server, letters: Correspondence
    ) -> dict[int, dict[str, float]]:
        """Trainers' models go to everybody who takes part; a clustering has handed out its centres itself."""
        if not plan.protocol.trains:
            return {}
        ids, round = server.clients.enrolled(0), int(getattr(state, "round", 0))
        given = plan.defence.server.publish(plan.protocol.result(state).unsized, server.turn(round, RESULT))
        down = Down(RESULT, round, ids, given, plan.protocol.sees(state, ids))
        if self.tape is not None:
            self.tape.record(down)
        said = letters.ask({client: down.to_one(place) for place, client in enumerate(ids.tolist())})
        return {client: _sane(answer.measures) for client, answer in said.items() if isinstance(answer, Told)}


def _usual_key(said: Mapping[int, object]) -> bytes:
    """The shared key that most of those who take part have, by name: one client with another stops nobody."""
    names = Counter(encode(answer.key) for answer in said.values() if isinstance(answer, Accepted))
    return max(names, key=lambda name: (names[name], name)) if names else b""


def _why_not(answer: object, usual: bytes) -> str:
    """Why a client takes no part; empty if it does."""
    if isinstance(answer, Refused):
        return answer.why
    if not isinstance(answer, Accepted) or not 0 <= answer.size <= MOST_ROWS:
        return "its answer is none"
    return "" if encode(answer.key) == usual else "its shared key is not the one that most clients have"


def _sane(measures: Mapping[str, object]) -> dict[str, float]:
    """What a client says goes to a terminal and a log: a few names and numbers, and nothing else."""
    fine = {name: value for name, value in measures.items() if isinstance(name, str) and name.isidentifier()}
    return {name: value for name, value in list(fine.items())[:10] if isinstance(value, float) and math.isfinite(value)}


def enrolled(home: Path) -> tuple[ServerKeys, list[ClientCard]]:
    """The server's keys, and the cards of the clients that it knows."""
    keys, cards = ServerKeys.read(home), roster(home / "clients")
    require(len(cards) > 0, f"cards in {home / 'clients'}", 0, "must be one a client; put theirs there")
    return keys, cards


def begun(home: Path, path: Path | None, runs: Path, resume: Path | None) -> tuple[Job, RunFolder]:
    """What is to run, and its folder: a new one for a file, or the one that is gone on with."""
    if (path is None) == (resume is None):
        raise InvalidInput("name the run's file, or with --resume the folder of a run to go on with: one of the two")
    if resume is not None:
        folder = RunFolder(resume)
        words = folder.record
        return Job.of({**words["config"], "deploy": words["deploy"]}, resume / "run.toml"), folder
    assert path is not None
    job = Job.read(path)
    job.rehearse(enrolled(home)[1])
    return job, RunFolder.create(free_folder(runs, job.config.name), record_of(job))


# -- over Flower ------------------------------------------------------------------------------------------------------


@contextmanager
def directed(home: Path, job: Job, folder: RunFolder, log: Journal, tape: Tape | None = None) -> Iterator[Direction]:
    """A run over the link that this server's folder describes, once its clients have come."""
    from coterie.deploy.flower import Office

    keys, cards = enrolled(home)
    office = Office(keys.local_port, keys.secret)
    try:
        nodes = _present(office, cards, job.deployment)
        office.start()
        yield Direction(job, cards, keys, nodes, office, folder, log, tape)
    finally:
        office.close()


def _present(office: Any, cards: list[ClientCard], deployment: Deployment) -> dict[int, int]:
    """The nodes of the clients that are there, by number; all are waited for, and then some do."""
    until = time.monotonic() + deployment.wait
    while True:
        try:
            online = {one.public_key: one.node for one in office.nodes() if one.online}
        except ConnectionError:
            if time.monotonic() >= until:
                raise
            online = {}
        nodes = {number: online[card.node] for number, card in enumerate(cards) if card.node in online}
        if len(nodes) == len(cards):
            return nodes
        if time.monotonic() >= until:
            break
        time.sleep(0.2)
    if len(nodes) < deployment.least:
        raise TooFewAnswers(
            f"clients at the link={len(nodes)} of {len(cards)}, and least={deployment.least}; "
            "start them with `coterie deploy client`"
        )
    return nodes


def described(job: Job, path: Path | None, folder: Path) -> None:
    """What an audit of the messages needs beside them; which data an adversary holds, the run's file may say."""
    words = {} if path is None else tomllib.loads(path.read_text())
    tables = {name: words[name] for name in ("data", "public", "partition", "audit", "limits") if name in words}
    known = json.loads(words_of(job.config)) | tables
    (folder / DESCRIPTION).write_text(f"{HEADER}{toml.document(known | {'recorded': {}})}")


def record_of(job: Job) -> dict[str, Any]:
    """What it takes to run it again, as a run's folder keeps it."""
    deployment = json.loads(job.deployment.model_dump_json())
    return {"config": job.config.model_dump(mode="json"), "deploy": deployment}
