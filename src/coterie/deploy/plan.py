"""What is run, in words that travel, and the objects that both sides make of them with their own installed code."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from coterie.config import registry
from coterie.config.builders import Known, Releasing, aware_of
from coterie.config.schema import Config, build_model, misfit, validate
from coterie.data.federation import Examples
from coterie.defences.blinding import Blinding
from coterie.defences.ckks_sums import CkksSums
from coterie.defences.mingling.defence import Mingling
from coterie.defences.noisy_sums.distributed import DistributedNoise
from coterie.defences.proven_sums import ProvenSums
from coterie.errors import InvalidInput, require
from coterie.files import read_json
from coterie.flow.guard import Defence
from coterie.flow.protocol import AnyProtocol
from coterie.flow.stack import Stack, member_of, members
from coterie.learn.models.model import Model
from coterie.protocols.clusterings.weighted_grid import WeightedGrid
from coterie.rng import Rng
from coterie.seal.mock import MockCipher
from coterie.wire.codec import register

BEGINNING = 16  # requests that a run may have beside its rounds: votes on where to start, bounds, the result
TRAVELS = ("name", "seed", "delta", "model", "trainer", "defence")


@register
@dataclass(frozen=True)
class Offer:
    """A run as the server proposes it to one client. Nothing in it is code, and nothing in it is done unasked."""

    words: str  # the configuration as JSON
    shape: tuple[int, ...]  # of one example
    labels: tuple[str, ...]  # the classes, in the order of their numbers
    names: tuple[str, ...]  # of all clients, in the order of their numbers
    number: int  # the client's own
    draws: bytes  # what reproducible draws come from, if the client's owner lets the server choose
    public: Tensor | None = None  # (points, features): what a clustering starts from
    recorded: bool = False  # whether messages are written down, for audits
    resumes: bool = False  # whether this goes on with a run of this name

    def config(self) -> Config:
        """Raises for whatever is no configuration, or would import something."""
        try:
            words = read_json(self.words.encode())
        except (InvalidInput, ValueError, RecursionError) as error:
            raise InvalidInput(f"offer is no configuration: {error}") from error
        require(isinstance(words, dict), "offer", type(words).__name__, "must be a table")
        config = validate(Config, {name: words[name] for name in words if name in TRAVELS}, "offer")
        config.refuse_code("the offered run", "nothing helps: a deployed client runs installed code alone")
        return config


def words_of(config: Config) -> str:
    return config.model_dump_json(include=set(TRAVELS))


@register
@dataclass(frozen=True)
class Accepted:
    """A client takes part."""

    size: int  # what the roster may say that it holds
    key: object = None  # the name of the key that clients share, where the run needs one


@register
@dataclass(frozen=True)
class Refused:
    """A client does not take part in something, and why."""

    why: str


@register
@dataclass(frozen=True)
class Told:
    """What a client says of a result, if its owner lets it."""

    measures: dict[str, float]


@dataclass(frozen=True)
class KeyName:
    """All that the server knows of the clients' key."""

    context: object


@dataclass(frozen=True)
class Plan:
    """The objects of one run."""

    protocol: AnyProtocol
    defence: Defence
    model: Model | None
    config: Config

    @staticmethod
    def of(offer: Offer) -> Plan:
        config = offer.config()
        (trainer,) = config.trainers if len(config.trainers) == 1 else (None,)
        if trainer is None:
            raise InvalidInput("trainer: a deployed run has one; name one table [trainer]")
        features = int(torch.tensor(offer.shape).prod())
        rng = Rng.seeded(config.seed).child("public")
        target = registry.look_up(trainer.kind, registry.TRAINERS, "trainer")
        given = {"known": lambda: Known(offer.public, features, rng)}
        protocol = registry.build(target, trainer.options, f"trainer {trainer.kind!r}", given)
        defence = registry.build_defence(config.defence, Releasing(protocol, len(offer.names), config.delta))
        if why := defence.fits(protocol):
            raise misfit(config.defence, trainer, why)
        model = build_model(config.model, example_of(offer)) if protocol.trains else None
        return Plan(aware_of(protocol, defence), defence, model, config)

    @property
    def rounds(self) -> int:
        """As many as the run has, whatever its algorithm calls them."""
        return max(1, sum(int(getattr(self.protocol, name, 0)) for name in ("rounds", "steps", "seedings")))

    @property
    def most_requests(self) -> int:
        """That a client may be asked in such a run: one a round, as many to be placed anew, and some to begin with."""
        return 2 * self.rounds + BEGINNING

    @property
    def defence_kinds(self) -> tuple[str, ...]:
        """By name: of a stack its own, and those of all that is in it."""
        return tuple(_kinds({"kind": self.config.defence.kind, **self.config.defence.options}))

    @property
    def cipher(self) -> object | None:
        """The cipher for whose key the clients must have agreed on one; None: there is none."""
        mingling = member_of(self.defence, Mingling)
        return None if mingling is None else mingling.cipher

    @property
    def key_name(self) -> object | None:
        """By which the clients' key is known to those who lack it."""
        mingling = member_of(self.defence, Mingling)
        return None if mingling is None else mingling.key.context

    def with_key(self, key: object) -> Plan:
        return replace(self, defence=_with_key(self.defence, key))

    def require_real(self) -> None:
        """Stand-ins do in a simulation what nothing does on a wire."""
        for part in members(self.defence):
            if isinstance(part, DistributedNoise) and part.masks is None:
                raise InvalidInput("defence 'noisy_sums' added_by 'shared' must have masks = true in a deployment")
            if isinstance(part, Mingling) and isinstance(part.cipher, MockCipher):
                raise InvalidInput("cipher='mock' protects nothing; take 'secure_sums' or 'ckks' in a deployment")
            if isinstance(part, Blinding | CkksSums | ProvenSums):
                name = {Blinding: "blinded_sums", CkksSums: "ckks_sums", ProvenSums: "proven_sums"}[type(part)]
                raise InvalidInput(f"defence {name!r} is not deployed yet: parties have no common secret for it")
        if isinstance(self.protocol, WeightedGrid):
            raise InvalidInput("trainer 'weighted_grid' is not deployed yet: its sketches need a common secret")


def example_of(offer: Offer) -> Examples:
    """An example of the federation's kind, from which a model's measures follow."""
    x = torch.zeros(1, *offer.shape)
    return Examples(x, torch.zeros(1, dtype=torch.int64), max(1, len(offer.labels)), "the federation's examples")


def _with_key(defence: Defence, key: object) -> Defence:
    if isinstance(defence, Stack):
        return Stack(*(_with_key(member, key) for member in defence.members))
    return replace(defence, key=key) if isinstance(defence, Mingling) else defence


def _kinds(words: Mapping[str, Any]) -> Iterator[str]:
    yield str(words["kind"])
    for member in words.get("members", ()):
        yield from _kinds(member)


def pieces(value: object) -> Iterator[object]:
    """An object and all that its fields hold, for whoever looks for settings in it."""
    yield value
    inside = value if isinstance(value, tuple | list) else ()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        inside = [getattr(value, one.name) for one in dataclasses.fields(value)]
    for one in inside:
        yield from pieces(one)
