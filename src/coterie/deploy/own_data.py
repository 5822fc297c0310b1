"""A client's own data: as its owner's file names them, and as the federation knows their kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.config import registry
from coterie.data.federation import Examples, Federation, VerticalFederation
from coterie.data.partition.dealing import is_split
from coterie.data.sources.base import SPLIT, TEST
from coterie.deploy.plan import Plan
from coterie.deploy.policy import ClientFile
from coterie.errors import Withheld
from coterie.privacy.guarantee import Level, RunFacts
from coterie.rng import Rng

ASK = "the owner's log says more"


def require_shape(fits: bool, shape: tuple[int, ...], offered: tuple[int, ...]) -> None:
    """The shape follows from the data, too: where texts become columns, from how many different ones there are."""
    if not fits:
        rule = f"must be the federation's, {offered}, or left out where parties hold columns"
        raise Withheld(
            f"shape of an example here={shape} {rule}",
            f"shape in the offer={offered} must be that of an example here; {ASK}",
        )


def load(file: ClientFile) -> Examples:
    """What the owner's file names."""
    from coterie.data.catalogue import find

    options: dict[str, Any] = file.data.options
    folder = options.pop("folder", None)
    source = registry.build(find(file.data.kind), options, f"data {file.data.kind!r}")
    return source.load(folder, rng=Rng.from_entropy())  # type: ignore[no-any-return]


def relabelled(examples: Examples, labels: tuple[str, ...]) -> Examples:
    """With the federation's numbers of the classes, in place of those that follow from the labels found here.

    Which labels the federation's lack is for the owner: a server could offer none, and be told what records there are.
    """
    own = examples.label_names or tuple(map(str, range(examples.classes)))
    present = set(examples.y.unique().tolist())
    strange = sorted(own[code] for code in present if own[code] not in labels)
    if strange:
        remedy = f"must be among the federation's, {list(labels)}"
        raise Withheld(f"labels here={strange!r} {remedy}", f"labels of some rows here {remedy}; {ASK}")
    numbers = torch.tensor([labels.index(name) if name in labels else 0 for name in own])
    return replace(examples, y=numbers[examples.y], classes=len(labels), label_names=labels)


def split(examples: Examples, test_share: float) -> tuple[Tensor, Tensor]:
    """Rows to train on and rows to measure on: as the data say, or every so manieth."""
    rows = torch.arange(len(examples))
    if is_split(examples):
        held = examples.tags[SPLIT] == TEST
    else:
        held = ((rows + 1) * test_share).floor() > (rows * test_share).floor()
    return rows[~held], rows[held]


def facts_of(
    plan: Plan, data: Federation | VerticalFederation, clients: int, number: int, delta: float
) -> RunFacts | None:
    """Of this run, for this client's units: its own data, as the one of this number among so many clients."""
    facts = plan.protocol.facts(data, delta)
    if facts is None:
        return None
    if facts.bounded is Level.CLIENT:  # however this client prepared its rows, they are its own
        facts = replace(facts, reveals=getattr(plan.protocol, "reveals", ""))
    own = sum(facts.columns)
    columns = tuple(own if place == number else 0 for place in range(clients)) if own else ()
    return replace(facts, clients=clients, columns=columns)
