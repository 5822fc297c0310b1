"""What a configuration file may say."""

from __future__ import annotations

import copy
import inspect
import json
import reprlib
import shlex
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from coterie.config import registry
from coterie.config.registry import Words
from coterie.config.wording import complaint, deeper_than, refuse_flags
from coterie.errors import DataMissing, InvalidInput, nearest, require
from coterie.files import meant, require_plain
from coterie.flow.protocol import AnyProtocol
from coterie.measure.stopping import Patience
from coterie.privacy.guarantee import DELTA

if TYPE_CHECKING:
    from coterie.config.builders import Known
    from coterie.config.built import Case
    from coterie.data.federation import Examples, Federation
    from coterie.flow.guard import Defence
    from coterie.learn.models.model import Model
    from coterie.rng import Rng

SET_ASIDE = "set_aside"


class Strict(BaseModel):
    """What a file says: a name that it does not know is an error, and nothing changes it afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Choice(BaseModel):
    """A table with a kind and that kind's own options."""

    model_config = ConfigDict(extra="allow", frozen=True, ser_json_inf_nan="constants")  # or infinity would be null
    kind: str

    @staticmethod
    def of(kind: str, /, **options: object) -> Choice:
        return Choice.model_validate({"kind": kind, **options})

    @property
    def options(self) -> Words:
        return dict(self.model_extra or {})


class PublicChoice(Choice):
    """What everybody knows: rows set aside from the data before clients are made of them, or data of its own."""

    kind: str = SET_ASIDE


@dataclass(frozen=True)
class Held:
    """The data, and the part of them that is public and no client's."""

    examples: Examples
    public: Examples | None = None


class Config(Strict):
    """One run, or several that differ in their trainer only."""

    model_config = ConfigDict(ser_json_inf_nan="constants")
    name: str = Field(default="run", max_length=100, pattern=r"^\w[\w .+,=()-]*$")  # a folder is named after it
    seed: int = Field(default=0, ge=0)
    evaluate_every: int = Field(default=10, ge=1)
    stop: Patience | None = None  # when a run may end before its last round
    device: str = "cpu"  # or "cuda", "mps": where clients compute
    delta: float = Field(default=DELTA, gt=0, lt=1)  # at which every epsilon is stated
    data: Choice = Choice(kind="mnist5k")
    public: PublicChoice | None = None
    partition: Choice = Choice(kind="label_sets")
    model: Choice = Choice(kind="fcnn")
    trainer: Choice | tuple[Choice, ...] = Choice(kind="ifca")
    defence: Choice = Choice(kind="none")

    @field_validator("trainer")
    @classmethod
    def _one_at_least(cls, said: Choice | tuple[Choice, ...]) -> Choice | tuple[Choice, ...]:
        require(said != (), "trainer", [], "must be a table, or several")
        return said

    @property
    def trainers(self) -> tuple[Choice, ...]:
        return self.trainer if isinstance(self.trainer, tuple) else (self.trainer,)

    def refuse_code(self, where: str, remedy: str) -> None:
        """What others wrote does not make us import anything."""
        if ":" in self.model.kind:
            raise InvalidInput(f"{where} would import and run {self.model.kind!r}; if you trust it, {remedy}")

    # -- from words to objects -------------------------------------------------------------------

    def held(self, seed: int | None = None) -> Held:
        """The data; generated ones, and what is set aside, by this seed, else by the configuration's."""
        said = self.model_dump_json(include={"data", "public"})
        load = _held if "path" in said else _held_before  # a file may be another one by now
        return load(said, self.seed if seed is None else seed)

    def examples(self, seed: int | None = None) -> Examples:
        """What clients are made of."""
        return self.held(seed).examples

    def partitioned(self, examples: Examples, seed: int | None = None) -> Federation:
        from coterie.rng import Rng

        target = registry.look_up(self.partition.kind, registry.PARTITIONS, "partition")
        split = registry.build(target, self.partition.options, f"partition {self.partition.kind!r}")
        rng = Rng.seeded(self.seed if seed is None else seed)
        try:
            return split.split(examples, rng.child("partition"))  # type: ignore[no-any-return]
        except InvalidInput as error:
            raise InvalidInput(f"partition {self.partition.kind!r}: {error}") from error

    def federation(self, seed: int | None = None) -> Federation:
        return self.partitioned(self.examples(seed), seed)

    def built_model(self, examples: Examples) -> Model:
        return build_model(self.model, examples)

    def protocol(self, choice: Choice, seed: int | None = None) -> AnyProtocol:
        """The trainer. A clustering starts from what is public, which is drawn by this seed."""
        target = registry.look_up(choice.kind, registry.TRAINERS, "trainer")
        given = {"known": lambda: self._known(seed)}
        return registry.build(target, choice.options, f"trainer {choice.kind!r}", given)  # type: ignore[no-any-return]

    def _known(self, seed: int | None) -> Known:
        from coterie.config.builders import Known
        from coterie.rng import Rng

        held = self.held(seed)
        require(held.examples.x.is_floating_point(), "data", self.data.kind, "are texts, and a clustering needs points")
        points = None if held.public is None else held.public.x.flatten(1)
        rng = Rng.seeded(self.seed if seed is None else seed).child("public")
        return Known(points, held.examples.x[0].numel(), rng)

    def built_defence(self, choice: Choice, protocol: AnyProtocol, clients: int | None = None) -> Defence:
        """For this protocol, run by so many clients; None: by as many as it takes."""
        from coterie.config.builders import Releasing

        return registry.build_defence(choice, Releasing(protocol, clients, self.delta))

    def case(self, trainer: Choice, federation: Federation | None = None) -> Case:
        """All that is run, as objects; the defence must have a place on the trainer."""
        from coterie.config.builders import aware_of
        from coterie.config.built import Case

        federation = federation or self.federation()
        protocol = self.protocol(trainer)
        defence = self.built_defence(self.defence, protocol, federation.clients)
        if why := defence.fits(protocol):
            raise misfit(self.defence, trainer, why)
        model = self.built_model(federation.examples) if protocol.trains else None
        told, stops = aware_of(protocol, defence), self.stop is not None
        return Case(told, federation, model, defence, self.seed, self.delta, stops=stops)


def _held(said: str, seed: int) -> Held:
    """What ``[data]`` and ``[public]`` say, loaded."""
    from coterie.rng import Rng

    words, rng = json.loads(said), Rng.seeded(seed)
    examples = _load(Choice.model_validate(words["data"]), rng.child("data"))
    if words["public"] is None:
        return Held(examples)
    public = PublicChoice.model_validate(words["public"])
    if public.kind != SET_ASIDE:
        found = _load(public, rng.child("public"))
        shapes = tuple(tuple(one.x.shape[1:]) for one in (found, examples))
        require(shapes[0] == shapes[1], "shape of public rows", shapes[0], f"must be that of the data, {shapes[1]}")
        return Held(examples, found)
    rows = registry.build(_rows, public.options, "public")
    require(
        0 < rows < len(examples), "public rows", rows, f"must lie in 1..{len(examples) - 1}, the examples there are"
    )
    return _apart(examples, rows, rng)


_held_before = lru_cache(maxsize=2)(_held)


def _rows(rows: int) -> int:
    return rows


def _apart(examples: Examples, rows: int, rng: Rng) -> Held:
    import torch

    order = torch.randperm(len(examples), generator=rng.child("set aside").torch())
    taken = torch.zeros(len(examples), dtype=torch.bool)
    taken[order[:rows]] = True
    return Held(examples.take(~taken), examples.take(taken, f"{examples.name} (public)"))


def _load(choice: Choice, rng: Rng) -> Examples:
    from coterie.data.catalogue import find

    options = choice.options
    folder = options.pop("folder", None)
    source = registry.build(find(choice.kind), options, f"data {choice.kind!r}")
    return source.load(folder, rng=rng)  # type: ignore[no-any-return]


def misfit(defence: Choice, trainer: Choice, why: str) -> InvalidInput:
    return InvalidInput(
        f"defence {defence.kind!r} does not fit trainer {trainer.kind!r}: {why}; change [defence] or [trainer]"
    )


def build_model(choice: Choice, examples: Examples) -> Model:
    """The model; what follows from the data (classes, shape, vocabulary) need not be said."""
    from torch import nn

    from coterie.learn.models.model import as_model

    target = registry.model_target(choice.kind)
    if inspect.isclass(target) and issubclass(target, nn.Module):
        return as_model(lambda: target(**choice.options))
    follows: dict[str, object] = {"classes": examples.classes, "inputs": examples.x[0].numel()}
    if examples.x.dim() == 4:
        follows["shape"] = tuple(examples.x.shape[1:])
    if not examples.x.is_floating_point():
        follows["vocabulary"] = len(examples.vocabulary) or int(examples.x.max()) + 1
    accepted = inspect.signature(target).parameters
    options = {name: value for name, value in follows.items() if name in accepted} | choice.options
    model = as_model(registry.build(target, options, f"model {choice.kind!r}"))
    _require_possible(model, choice)
    return model


def _require_possible(model: Model, choice: Choice) -> None:
    """Its parameters are counted before memory is taken for any of them."""
    import torch

    what = f"model {choice.kind!r} with {reprlib.repr(choice.options)}"
    try:
        with torch.device("meta"), warnings.catch_warnings(action="ignore"):  # of layers without a number
            sizes = [leaf.numel() for leaf in model.init(0).values()]
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"{what} cannot be built ({str(error).splitlines()[0]}); take other sizes") from error
    require(min(sizes) > 0, f"{what}: parameters of a layer", min(sizes), "must be 1 at least")
    require(sum(sizes) <= MOST_PARAMETERS, f"{what}: parameters", sum(sizes), f"must be at most {MOST_PARAMETERS}")


LARGEST = 1 << 20  # bytes of a configuration
MOST_PARAMETERS = 1 << 28  # of one model
DEEPEST = 20  # tables and lists in one another
AUDITS_OWN = ("audit", "limits", "recorded")  # one file serves `coterie train` and `coterie audit`
AnyConfig = TypeVar("AnyConfig", bound=Config)
AnyStrict = TypeVar("AnyStrict", bound=Strict)


def validate(cls: type[AnyStrict], values: Mapping[str, object], where: str) -> AnyStrict:
    """The table that these values are; the first that is wrong is named."""
    require(isinstance(values, Mapping), where, reprlib.repr(values), "must be a table of names and values")
    for key in values:
        if key not in cls.model_fields:
            raise InvalidInput(f"{where}: key {key!r} {nearest(key, cls.model_fields)}")
    require(not deeper_than(DEEPEST, values), where, reprlib.repr(values), f"has tables {DEEPEST} deep; write it flat")
    refuse_flags(cls, values, f"{where}:")
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        raise InvalidInput(complaint(error, f"{where}:", cls)) from error


def parse(values: Mapping[str, object], where: str) -> Config:
    return validate(Config, values, where)


def is_data(path: Path) -> bool:
    return path.suffix in (".csv", ".tsv", ".txt", ".gz", ".zip", ".parquet", ".pq", ".npz")


def read_toml(path: Path, remedy: str) -> Words:
    """What a file says, within limits; ``remedy``: where one gets such a file."""
    whose = f"; if it is your data: coterie init --data {shlex.quote(str(path))}" if is_data(path) else ""
    try:
        require_plain(path)
        size = path.stat().st_size
        require(
            size <= LARGEST, f"bytes of {path}", size, f"must be at most {LARGEST}; is it a configuration?{whose[1:]}"
        )
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except InvalidInput:
        raise
    except FileNotFoundError as error:
        raise DataMissing(f"{path} does not exist; {meant(path)}{remedy}") from error
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}; name a TOML file that can") from error
    except (ValueError, RecursionError) as error:  # letters and numbers that are none, too
        raise InvalidInput(f"{path} is not valid TOML: {error}{whose}") from error


def asked_property(path: Path) -> Words | None:
    """What the file's audit would look for: a recording of this training is asked the same."""
    asked = read_toml(path, "").get("audit", {})
    found = asked.get("property") if isinstance(asked, dict) else None
    return found if isinstance(found, dict) else None


def read(path: Path, said: Sequence[str] = ()) -> Config:
    """``said``: what a command line changes, as in ``defence.threshold=2``."""
    values = read_toml(path, "`coterie train` without a file runs an example")
    for table in AUDITS_OWN:
        values.pop(table, None)
    return beside(parse(changed(values, said), str(path)), path)


def changed(values: Words, said: Sequence[str]) -> Words:
    """The same with these settings, ``table.option=value``; a value that is no TOML is a word."""
    found = copy.deepcopy(values)
    for setting in said:
        path, equals, text = setting.partition("=")
        *tables, option = path.strip().split(".")
        require(bool(equals and option), "set", setting, "must be table.option=value, as in defence.threshold=2")
        place = found
        for table in tables:
            place = place.setdefault(table, {})
            require(isinstance(place, dict), "set", setting, f"finds no single table {table!r} in the file")
        place[option] = _value(text.strip())
    return found


def _value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def beside(config: AnyConfig, path: Path) -> AnyConfig:
    """A user's data file may be named as it is seen from the configuration's folder, or from where one stands."""
    found: dict[str, Choice] = {}
    for name, choice in (("data", config.data), ("public", config.public)):
        if choice is not None and "path" in choice.options and "folder" not in choice.options:
            said = {"kind": choice.kind, "folder": str(path.parent), **choice.options}
            found[name] = type(choice).model_validate(said)
    return config.model_copy(update=found) if found else config
