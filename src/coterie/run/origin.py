"""What a run was begun with, so that whoever goes on with it goes on with the same: settings, data and versions."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from coterie.config import registry
from coterie.config.schema import Config
from coterie.data.federation import Federation, VerticalFederation
from coterie.data.lazy import AnyFederation, LazyFederation
from coterie.errors import InvalidInput
from coterie.rng import Secrets
from coterie.run.fingerprint import digest
from coterie.run.folder import Record, versions

BEGUN_WITH = "begun with"


@dataclass(frozen=True)
class Origin:
    """Digests: what has changed can be said, and nothing of it be read."""

    settings: str
    data: str  # as they were spread over the clients
    code: str = ""  # of a model of the user's own

    @staticmethod
    def of(config: Config, federation: Federation | VerticalFederation) -> Origin:
        said = json.dumps(config.model_dump(mode="json"), sort_keys=True)
        kind = config.model.kind
        source = Path(inspect.getfile(registry.model_target(kind))).read_text() if ":" in kind else ""
        return Origin(digest([said]), _digest(federation), digest([source]) if source else "")

    @property
    def entry(self) -> Record:
        """For the run's record."""
        return {BEGUN_WITH: asdict(self)}

    def compare(self, record: Mapping[str, object], where: str) -> list[str]:
        """What is another now than when the run began, and harmless; what is not raises."""
        before = record.get(BEGUN_WITH)
        if not isinstance(before, dict):
            return ["the run does not say what data it was begun with, so nobody can tell whether they are the same"]
        wrong = [name for name, now in asdict(self).items() if before.get(name) != now]
        if wrong:
            named = " and ".join("the code of the model" if name == "code" else f"its {name}" for name in wrong)
            raise InvalidInput(
                f"run {where} was begun with something else: {named} changed since; bring that back, or start a new "
                "run with `coterie train`"
            )
        then, now = record.get("versions"), versions()
        known = then if isinstance(then, dict) else {}
        return [
            f"{name} is {now[name]} and was {known.get(name, 'unknown')}, so the numbers may come out otherwise"
            for name in now
            if known.get(name) != now[name]
        ]


def root_of(secrets: Secrets, federation: AnyFederation) -> str:
    """By which a run is known again: what its noise comes from, and the data that it is put on.

    On other data the same secrets make other releases, which somebody must pay for. Data that are never all there
    (``LazyFederation``) are not looked at.
    """
    data = "" if isinstance(federation, LazyFederation) else _digest(federation)
    return secrets.child("data", data).fingerprint()


def set_to(*settings: object) -> str:
    """By which the objects of a run are known again. Where they are in memory says nothing of what they do."""
    return digest([re.sub(r" at 0x[0-9a-f]+", "", repr(one)) for one in settings])


def _digest(federation: Federation | VerticalFederation) -> str:
    found = hashlib.blake2b(digest_size=8)
    for tensor in _tensors(federation):
        found.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        found.update(tensor.contiguous().numpy().data)
    return found.hexdigest()


def _tensors(federation: Federation | VerticalFederation) -> Iterator[Tensor]:
    examples = federation.examples
    yield from (examples.x, examples.y, *examples.tags.values())
    if isinstance(federation, VerticalFederation):
        yield from federation.columns
        return
    for shards in (federation.train, federation.test):
        yield from (shards.rows, shards.offsets)
