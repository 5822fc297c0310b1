"""What a deployment wrote down, as something to attack: its messages, what an adversary has beside them, the truth.

The layout is in docs/recordings.md: messages as ``.npz`` files, ``recording.toml`` beside them, and where somebody
knows it the truth as JSON. Without the truth the attacks say what they suspect, and nobody says whether they are right.
"""

from __future__ import annotations

import reprlib
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field, ValidationError
from torch import Tensor

import coterie.config.builders  # noqa: F401  (recorded ciphertexts can be read once their classes are known)
from coterie.audit import toml
from coterie.audit.case import RecordedOptions, Subject, read
from coterie.config.built import Case
from coterie.config.registry import Words
from coterie.config.schema import Strict
from coterie.data.federation import Examples, Federation, Shards, VerticalFederation
from coterie.errors import DataMissing, InvalidInput, require
from coterie.files import contents, read_json
from coterie.flow.guard import Defence
from coterie.learn.models.model import Model
from coterie.measure.judge import Labels, YesNo
from coterie.measure.preferences import Preferences
from coterie.measure.witness import Witness
from coterie.protocols.base import AnyTrainer, Trainer
from coterie.wire import recording
from coterie.wire.messages import TRAIN, Down, Message, Up
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel, View

DESCRIPTION, TRUTH = "recording.toml", "truth.json"
RECORDER = ThreatModel("recorder", server=True)
Number = Annotated[int, Field(ge=0, lt=100_000)]  # of a client or a class: what is counted up to it must fit in memory


class Truth(Strict):
    """What really was, as far as somebody wrote it down."""

    property: list[tuple[int, int, bool]] = Field(default_factory=list)  # round, cluster, whether it was used
    groups: dict[Number, Number] = Field(default_factory=dict)  # client -> the preference that its cluster serves
    preferred: dict[Number, list[Number]] = Field(default_factory=dict)  # client -> the classes that it holds most of
    held: dict[Number, list[int]] = Field(default_factory=dict)  # client -> the rows of [data] that it trained on
    tested: dict[Number, list[int]] = Field(default_factory=dict)  # and those that it kept for its tests

    def used_property(self) -> YesNo | None:
        answers: dict[Hashable, bool] = {(round, slot): used for round, slot, used in self.property}
        return YesNo(answers, {(round, slot): slot for round, slot, _ in self.property}) if answers else None

    def labels(self) -> Labels | None:
        known: dict[Hashable, int] = {client: group for client, group in self.groups.items()}  # noqa: C416
        return Labels(known, max(known.values()) + 1) if known else None

    def federation(self, examples: Examples) -> Federation:
        """Who trained on which rows, and who kept which for its tests.

        Rows that nobody held are no stand-in for the latter: where clients' data differ, who recognises whose a row is
        would pass for one who recognises members.
        """
        examples.classes_for("an audit of who held which records")
        clients = max([*self.held, *self.tested]) + 1
        train, test = (
            Shards.of([torch.tensor(rows.get(client, ()), dtype=torch.int64) for client in range(clients)])
            for rows in (self.held, self.tested)
        )
        for name, rows in (("held", train.rows), ("tested", test.rows)):
            if len(rows):
                ends = int(rows.min()), int(rows.max())
                inside = ends[0] >= 0 and ends[1] < len(examples)
                require(inside, f"{name} rows", ends, f"must be rows of [data], 0 to {len(examples) - 1}")
        both = int(torch.isin(test.rows, train.rows).sum())
        require(
            both == 0, "rows that are held and tested", both, "must be none: who trained on a row kept it for no test"
        )
        return Federation(examples, train, test, torch.full((clients,), -1))

    def preferences(self, classes: int) -> Preferences | None:
        held = {client: frozenset(found) for client, found in self.preferred.items()}
        return Preferences(held, classes) if held else None


@dataclass(frozen=True)
class Recording:
    """The folder, and what the configuration beside it says."""

    subject: Subject

    def __post_init__(self) -> None:
        require(self.folder.is_dir(), "recording", str(self.folder), "is not a folder; name the one with the messages")
        require(
            any(self.folder.glob("*.npz")),
            "recording",
            str(self.folder),
            "holds no messages (.npz); docs/recordings.md has the layout",
        )

    @property
    def options(self) -> RecordedOptions:
        assert self.subject.recorded is not None
        return self.subject.recorded

    @property
    def folder(self) -> Path:
        assert self.options.folder is not None
        return self.options.folder

    def view(self, threat: ThreatModel, training: bool = True) -> View:
        """What this adversary saw; ``training``: it goes by rounds of training, so there must be some."""
        view = Tape([threat], self.folder).view(threat)
        if training and not view.rounds():
            raise InvalidInput(
                f"recording {self.folder} holds no message of kind 'train' that a {threat.name} may read "
                f"(kinds: {', '.join(map(str, view.kinds()))}; adversary={list(self.options.adversary)}); record the "
                "rounds of training, or set recorded.adversary to clients that are in it"
            )
        return view

    @cached_property
    def truth(self) -> Truth:
        if self.options.truth is None:
            return Truth()
        path = self.folder / self.options.truth
        if not path.resolve().is_relative_to(self.folder.resolve()):  # its description may be anybody's
            raise InvalidInput(f"recorded.truth={self.options.truth!r} lies outside {self.folder}; copy it into there")
        if not path.is_file():
            what = "is no file" if path.exists() else "does not exist"
            raise DataMissing(f"recorded.truth={path} {what}; leave it out to go without a score")
        try:
            return Truth.model_validate(read_json(contents(path)))
        except ValidationError as error:
            first = error.errors()[0]
            place, given = ".".join(map(str, first["loc"])), reprlib.repr(first.get("input"))
            raise InvalidInput(f"{path}: {place}={given}: {first['msg']}; docs/recordings.md has the layout") from error
        except (OSError, ValueError, RecursionError) as error:
            raise InvalidInput(f"{path} is not valid JSON: {error}") from error

    @property
    def has_uploads(self) -> bool:
        return any(isinstance(message, Up) for message in self._messages())

    @property
    def has_published(self) -> bool:
        return any(isinstance(message, Down) for message in self._messages())

    @cached_property
    def clients(self) -> int:
        """How many are in it: whoever takes part is told so."""
        return len({client for message in self._messages() for client in message.clients.tolist()})

    @cached_property
    def incomplete(self) -> str:
        """Which rounds of training are configured and not there: cut off, or lost on the way; empty: none."""
        asked = range(int(getattr(self.subject.launched, "rounds", 0)))
        there = {message.round for message in self._messages() if message.kind == TRAIN}
        missing = [round for round in asked if round not in there]
        if not there or not missing:
            return ""
        return (
            f"{len(missing)} of {len(asked)} rounds of training are not in it ({missing[0]} to {missing[-1]}): attacks "
            "saw less than an adversary that was there all the time"
        )

    def _messages(self) -> Iterator[Message]:
        return (recording.load(path) for path in sorted(self.folder.glob("*.npz")))

    @property
    def trainer(self) -> AnyTrainer:
        """How the clients train, which the attacks imitate."""
        trainer = self.subject.protocol(self.subject.trainers[0])
        require(isinstance(trainer, Trainer), "trainer", self.subject.trainers[0].kind, "does not train models")
        assert isinstance(trainer, Trainer)
        return trainer

    @property
    def defence(self) -> Defence:
        """What is known to have been in use."""
        return self.subject.built_defence(self.subject.defence, self.subject.launched)

    def model(self, view: View, examples: Examples) -> Model:
        """The model that was deployed: its leaves must be those that were recorded."""
        model = self.subject.built_model(examples)
        round = view.rounds()[0]
        recorded = _leaves(view, round)
        built = {name: tuple(leaf.shape) for name, leaf in model.init(0).items()}
        if recorded and recorded != built:
            raise InvalidInput(
                f"model {self.subject.model.kind!r} has leaves {built}, and round {round} of {self.folder} holds "
                f"{recorded}; set [model] to what was deployed, and [data] to data of the same shape and classes"
            )
        return model


def _leaves(view: View, round: int) -> dict[str, tuple[int, ...]]:
    """The shapes of one model's leaves, from what clients sent or were given; none where all of it is sealed."""
    if view.has_sent(round):
        return {name: tuple(leaf.shape[2:]) for name, leaf in view.sent(round).values.items()}
    return {name: tuple(leaf.shape[1:]) for name, leaf in view.received(round).values.items()}


def open_recording(folder: Path, description: Path | None) -> Subject:
    """The recording's own description, unless another one is named. Its own may be anybody's, and runs no code."""
    path = description or folder / DESCRIPTION
    if description is None and folder.is_dir() and not path.exists():
        raise DataMissing(
            f"{path} does not exist; it says which model was deployed and what the adversary holds "
            "(docs/recordings.md), and another file can be named: coterie audit FILE --recorded FOLDER"
        )
    require(folder.is_dir(), "recording", str(folder), "is not a folder; name the one with the messages")
    subject = read(path)
    if description is None:
        subject.refuse_code(str(path), f"name it yourself: coterie audit {path} --recorded {folder}")
    options = (subject.recorded or RecordedOptions()).model_copy(update={"folder": folder})
    return subject.model_copy(update={"recorded": options})


# -- writing -------------------------------------------------------------------------------------------------------


def describe(
    folder: Path,
    config: Words,
    case: Case,
    choices: Tensor,
    witness: Witness,
    asked: Mapping[str, object] | None = None,
) -> None:
    """Write what the attacks need beside the messages of a federation that was trained here.

    ``choices`` (clients,) are the clusters that the clients use in the end, ``asked`` the property that the
    configuration's audit looks for.
    """
    options: dict[str, object] = {"truth": TRUTH}
    federation = case.federation
    if case.protocol.trains and int(federation.groups.max()) >= 0:
        options["serves"] = {str(k): group for k, group in clusters_stand_for(choices, federation.groups).items()}
    named: tuple[str, ...] = ("name", "seed", "data", "partition", "model", "trainer", "defence")
    if not case.protocol.trains:  # whoever knows all other records knows who has which
        named = ("name", "seed", "delta", "data", "public", "partition", "trainer", "defence")
    tables = {key: config[key] for key in named if config[key] is not None}
    for key in ("data", "public"):
        if "path" in tables.get(key, {}):  # the recording may be looked at from elsewhere
            tables[key] = {**tables[key], "path": str(Path(tables[key]["path"]).absolute())}
    if asked:
        tables["audit"] = {"property": dict(asked)}
    if config["partition"]["kind"] == "property":
        asked = {key: config["partition"][key] for key in ("tag", "value") if key in config["partition"]}
        tables["audit"] = {"property": asked}
        options["warmup"] = config["partition"].get("warmup", 0)
    text = f"{HEADER}{toml.document(tables | {'recorded': options})}"
    (folder / DESCRIPTION).write_text(text)
    (folder / TRUTH).write_text(truth_of(federation, witness).model_dump_json())


def clusters_stand_for(choice: Tensor, groups: Tensor) -> Mapping[int, int]:
    """The group that most of each cluster's clients belong to: what the server knows from setting the task up."""
    found = {}
    for cluster in range(int(groups.max()) + 1):
        members = groups[choice == cluster]
        found[cluster] = int(torch.bincount(members).argmax()) if len(members) else cluster
    return found


HEADER = """\
# What the attacks need beside these messages. [data] is what the adversary holds: here the data that were trained on,
# which is the worst case; name others of the same kind for a weaker adversary.
"""


def truth_of(federation: Federation, witness: Witness) -> Truth:
    """What the simulator knows: groups, preferred classes, and who used the property when."""
    if isinstance(federation, VerticalFederation):  # parties with columns have none of these
        return Truth()
    groups = {client: group for client, group in enumerate(federation.groups.tolist()) if group >= 0}
    known = Preferences.of(federation).labels if federation.examples.classified else {}
    preferred = {client: sorted(classes) for client, classes in known.items()}
    answers = witness.property_truth(federation).answers if federation.schedules else {}
    used = [(key[0], key[1], answer) for key, answer in answers.items() if isinstance(key, tuple)]
    held, tested = (
        {client: part[client].tolist() for client in range(federation.clients)}
        for part in (federation.train, federation.test)
    )
    return Truth(groups=groups, preferred=preferred, property=used, held=held, tested=tested)
