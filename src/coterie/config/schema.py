"""What a configuration file may say."""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coterie.config import registry
from coterie.errors import DataMissing, InvalidInput, nearest
from coterie.flow.protocol import AnyProtocol

if TYPE_CHECKING:
    from coterie.data.federation import Examples, Federation
    from coterie.flow.guard import Defence
    from coterie.learn.models.model import Model


class Choice(BaseModel):
    """A table with a kind and that kind's own options."""

    model_config = ConfigDict(extra="allow", frozen=True)
    kind: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Config(BaseModel):
    """One run, or several that differ in their trainer only."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = "run"
    seed: int = Field(default=0, ge=0)
    evaluate_every: int = Field(default=10, ge=1)
    data: Choice = Choice(kind="mnist5k")
    partition: Choice = Choice(kind="label_sets")
    model: Choice = Choice(kind="fcnn")
    trainer: Choice | tuple[Choice, ...] = Choice(kind="ifca")
    defence: Choice = Choice(kind="none")

    @property
    def trainers(self) -> tuple[Choice, ...]:
        return self.trainer if isinstance(self.trainer, tuple) else (self.trainer,)

    # -- from words to objects -------------------------------------------------------------------

    def examples(self, seed: int | None = None) -> Examples:
        """The data; generated ones by this seed, else by the configuration's."""
        from coterie.data.catalogue import find
        from coterie.rng import Rng

        options = self.data.options
        folder = options.pop("folder", None)
        source = registry.build(find(self.data.kind), options, f"data {self.data.kind!r}")
        rng = Rng.seeded(self.seed if seed is None else seed)
        return source.load(folder, rng=rng.child("data"))  # type: ignore[no-any-return]

    def partitioned(self, examples: Examples, seed: int | None = None) -> Federation:
        from coterie.rng import Rng

        target = registry.look_up(self.partition.kind, registry.PARTITIONS, "partition")
        split = registry.build(target, self.partition.options, f"partition {self.partition.kind!r}")
        rng = Rng.seeded(self.seed if seed is None else seed)
        return split.split(examples, rng.child("partition"))  # type: ignore[no-any-return]

    def federation(self) -> Federation:
        return self.partitioned(self.examples())

    def built_model(self, examples: Examples) -> Model:
        return build_model(self.model, examples)

    def protocol(self, choice: Choice) -> AnyProtocol:
        target = registry.look_up(choice.kind, registry.TRAINERS, "trainer")
        return registry.build(target, choice.options, f"trainer {choice.kind!r}")  # type: ignore[no-any-return]

    def built_defence(self) -> Defence:
        return registry.build_defence(self.defence)

    def fitting_defence(self, trainer: Choice) -> Defence:
        """The defence, which must have a place on this trainer."""
        defence = self.built_defence()
        if why := defence.fits(self.protocol(trainer)):
            raise misfit(self.defence, trainer, why)
        return defence


def misfit(defence: Choice, trainer: Choice, why: str) -> InvalidInput:
    return InvalidInput(
        f"defence {defence.kind!r} does not fit trainer {trainer.kind!r}: {why}; change [defence] or [trainer]"
    )


def build_model(choice: Choice, examples: Examples) -> Model:
    """The model; what follows from the data (classes, shape, vocabulary) need not be said."""
    from torch import nn

    from coterie.learn.models.model import as_model

    target = registry.look_up(choice.kind, registry.MODELS, "model")
    if inspect.isclass(target) and issubclass(target, nn.Module):
        return as_model(lambda: target(**choice.options))
    follows: dict[str, Any] = {"classes": examples.classes, "inputs": examples.x[0].numel()}
    if examples.x.dim() == 4:
        follows["shape"] = tuple(examples.x.shape[1:])
    if not examples.x.is_floating_point():
        follows["vocabulary"] = len(examples.vocabulary) or int(examples.x.max()) + 1
    accepted = inspect.signature(target).parameters
    options = {name: value for name, value in follows.items() if name in accepted} | choice.options
    return as_model(registry.build(target, options, f"model {choice.kind!r}"))


AUDITS_OWN = ("audit", "limits", "recorded")  # one file serves `coterie train` and `coterie audit`
AnyConfig = TypeVar("AnyConfig", bound=Config)


def validate(cls: type[AnyConfig], values: dict[str, Any], where: str) -> AnyConfig:
    for key in values:
        if key not in cls.model_fields:
            raise InvalidInput(f"{where}: key {key!r} {nearest(key, cls.model_fields)}")
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise InvalidInput(f"{where}: {place}={problem.get('input')!r}: {problem['msg']}") from error


def parse(values: dict[str, Any], where: str) -> Config:
    return validate(Config, values, where)


def read(path: Path) -> Config:
    try:
        text = path.read_text()
    except FileNotFoundError as error:
        raise DataMissing(
            f"configuration {path} does not exist; `coterie train` without a file runs an example"
        ) from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{path} is not valid TOML: {error}") from error
    for table in AUDITS_OWN:
        values.pop(table, None)
    return beside(parse(values, str(path)), path)


def beside(config: AnyConfig, path: Path) -> AnyConfig:
    """A user's data file may be named as it is seen from the configuration's folder, or from where one stands."""
    options = config.data.options
    if "path" not in options or "folder" in options:
        return config
    data = Choice.model_validate({"kind": config.data.kind, "folder": str(path.parent), **options})
    return config.model_copy(update={"data": data})
