"""What is audited as objects, where a configuration has words for them: the same subject, built by somebody else.

The words that a report needs are read off the objects. The objects themselves wait in this process under a name, and
the processes that are forked from it find them there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from uuid import uuid4

import torch
from torch import Tensor, nn

from coterie.audit.case import Subject
from coterie.config import registry
from coterie.config.schema import Choice, Held, validate
from coterie.data.federation import Examples, Federation, Shards
from coterie.errors import InvalidInput, require
from coterie.flow.guard import Defence
from coterie.flow.protocol import AnyProtocol
from coterie.learn.models.model import Model
from coterie.rng import Rng
from coterie.run import fingerprint
from coterie.run.fingerprint import digest


@dataclass(frozen=True)
class Parts:
    """What somebody handed over."""

    protocol: AnyProtocol
    federation: Federation
    model: Model | None
    defences: Mapping[str, Defence]  # by the words for them

    @property
    def name(self) -> str:
        """Equal objects have equal names; what has no plain form is known for as long as this process lasts."""
        try:
            return digest(_traces(self))
        except TypeError:
            return uuid4().hex[:16]


_parts: dict[str, Parts] = {}


class Handed(Subject):
    """A subject of objects. Every seed trains the same federation anew."""

    handed: str  # the name under which its parts wait

    @staticmethod
    def of(
        protocol: AnyProtocol,
        federation: Federation,
        model: Model | None,
        defences: Sequence[Defence],
        audit: Mapping[str, object] | None = None,
        **said: object,
    ) -> Handed:
        """The first defence is the one that is launched with, the others are compared."""
        words = [words_for(one, registry.DEFENCES) for one in defences]
        require(len(set(words)) == len(words), "compare", [str(one) for one in words], "names one defence twice")
        parts = Parts(protocol, federation, model, {_key(word): one for word, one in zip(words, defences, strict=True)})
        name = parts.name
        _parts[name] = parts
        options = {"compare": words[1:], **(audit or {})}
        values = {
            "data": Choice(kind=federation.examples.name or "data"),
            "partition": Choice(kind=f"{federation.clients} clients, as handed over"),
            "model": Choice(kind="none" if model is None else type(model).__name__),
            "trainer": words_for(protocol, registry.TRAINERS),
            "defence": words[0],
        }
        return validate(Handed, {"handed": name, "audit": options, **values, **said}, "coterie.audit")

    @property
    def parts(self) -> Parts:
        if self.handed not in _parts:
            raise InvalidInput(f"objects {self.handed!r} were handed to another process; call coterie.audit again")
        return _parts[self.handed]

    @property
    def fingerprint(self) -> str:
        return digest([super().fingerprint, self.handed])[:12]

    def held(self, seed: int | None = None) -> Held:
        return Held(self.parts.federation.examples)

    def federation(self, seed: int | None = None) -> Federation:
        return self.parts.federation

    def protocol(self, choice: Choice, seed: int | None = None) -> AnyProtocol:
        return self.parts.protocol

    def built_model(self, examples: Examples) -> Model:
        model = self.parts.model
        if model is None:
            raise InvalidInput("model=None, and this protocol trains one; pass it as the third argument")
        return model

    def built_defence(self, choice: Choice, protocol: AnyProtocol, clients: int | None = None) -> Defence:
        found = self.parts.defences.get(_key(choice))
        return super().built_defence(choice, protocol, clients) if found is None else found

    def dealt(self, examples: Examples, rows: Tensor, seed: int) -> Federation:
        """Every row stays with its client; which of them are for its tests is drawn anew, as many as there were."""
        federation, generator = self.parts.federation, Rng.seeded(seed).child("dealt").torch()
        wanted = torch.zeros(len(examples), dtype=torch.bool)
        wanted[rows] = True
        train, test = [], []
        for client in range(federation.clients):
            own, apart = federation.train[client], federation.test[client]
            both = torch.cat([own, apart]).unique()
            both = both[wanted[both]]
            both = both[torch.randperm(len(both), generator=generator)]
            count = round(len(both) * len(own) / max(1, len(own) + len(apart)))
            train.append(both[:count])
            test.append(both[count:])
        return replace(federation, train=Shards.of(train), test=Shards.of(test))


def subject_from(values: Mapping[str, object]) -> Subject:
    """From the plain values that a job was given."""
    return (Handed if "handed" in values else Subject).model_validate(values)


def words_for(thing: object, names: Mapping[str, str]) -> Choice:
    """How a file would name this object, as far as it could: its kind, and the options that are not as by default."""
    kind = type(thing)
    if kind is Defence:
        return Choice(kind="none")
    place = f"{kind.__module__}:{kind.__name__}"
    known = next((name for name, target in names.items() if target == place), kind.__name__)
    return Choice.of(known, **_changed(thing))


def _changed(thing: object) -> dict[str, object]:
    """The fields of a dataclass that differ from what they are by default, and can be said in words."""
    if not dataclasses.is_dataclass(thing):
        return {}
    found: dict[str, object] = {}
    for field in dataclasses.fields(thing):
        value = getattr(thing, field.name)
        if not field.init or field.name.startswith("_") or _is_default(field, value):
            continue
        said = _changed(value) if dataclasses.is_dataclass(value) else value
        if isinstance(said, bool | int | float | str) or (isinstance(said, dict) and said):
            found[field.name] = said
    return found


def _is_default(field: dataclasses.Field[object], value: object) -> bool:
    default = field.default
    if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    return type(default) is type(value) and not isinstance(value, Tensor) and bool(default == value)


def _traces(thing: object) -> Iterator[str]:
    """What tells an object from others of its kind; raises ``TypeError`` where that cannot be known."""
    kind = type(thing)
    yield f"{kind.__module__}.{kind.__qualname__}"
    if kind.__module__.partition(".")[0] not in (*sys.stdlib_module_names, "coterie", "torch", "numpy"):
        yield _source(kind.__module__)
    if isinstance(thing, Tensor):
        yield f"{thing.dtype} {tuple(thing.shape)}"
        yield hashlib.sha256(thing.detach().contiguous().cpu().numpy().tobytes()).hexdigest()
    elif isinstance(thing, nn.Module):
        yield repr(thing)
        for held in (thing.named_parameters(recurse=False), thing.named_buffers(recurse=False), thing.named_children()):
            yield from _traces(dict(held))
        yield from _traces(_settings(thing))
    elif isinstance(thing, Mapping):
        for key, value in thing.items():
            yield from (*_traces(key), *_traces(value))
    elif isinstance(thing, list | tuple | frozenset):
        for item in thing:
            yield from _traces(item)
    elif thing is None or isinstance(thing, bool | int | float | str | bytes | Enum):
        yield repr(thing)
    elif dataclasses.is_dataclass(thing):
        for field in dataclasses.fields(thing):
            yield from _traces(getattr(thing, field.name))
    elif f"{kind.__module__}.".startswith("coterie.") and getattr(thing, "__dict__", None):
        yield from _traces(vars(thing))
    else:
        raise TypeError(f"{kind.__name__} has no plain form")


def _settings(module: nn.Module) -> dict[str, object]:
    """What a module is besides weights and parts, not all of which it prints. What torch keeps for itself is not it."""
    torchs = type(module).__module__.partition(".")[0] == "torch"
    own = {name: value for name, value in vars(module).items() if name not in vars(nn.Module())}
    return {name: value for name, value in own.items() if not (torchs and name.startswith("_"))}


def _source(module: str) -> str:
    """Of somebody's own code, and of what that imports; what was typed into a prompt has none that could be known."""
    if fingerprint.path_of(module) is None:
        raise TypeError(f"{module} has no source")
    return fingerprint.code(module)


def _key(choice: Choice) -> str:
    return choice.model_dump_json()
