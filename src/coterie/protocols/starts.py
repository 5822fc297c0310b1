"""Which models a trainer begins with: drawn, a module's own, a run's, or trained before on public data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from coterie.data.federation import Examples, Shards
from coterie.errors import DataMissing, InvalidInput, require
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard
from coterie.flow.protocol import Server
from coterie.flow.turn import Turn
from coterie.learn.params import Layout, Params, stack
from coterie.learn.sgd import Local

MODELS_FILE = "models.npz"  # what a finished run leaves in its folder


@dataclass(frozen=True)
class Start:
    """Drawn from the run's seed; or, with ``run``, the models that a finished run left in its folder.

    A model that was given as an ``nn.Module`` has weights of its own. A trainer that begins with one model begins with
    these. One that needs several which differ (IFCA, FedEM) cannot: it says so, instead of drawing others silently.
    """

    run: str | None = None

    @property
    def drawn(self) -> bool:
        """Whether models may also be drawn in another way, by a vote for instance."""
        return self.run is None

    def models(self, server: Server, slots: int) -> dict[str, Tensor]:
        """Leaves (slots, ...)."""
        if self.run is not None:
            return fitting(_of_run(Path(self.run)), server, slots)
        own = None if server.model is None else server.model.own()
        if own is not None and slots == 1:
            return stack([own])
        self.require_drawable(server, slots)
        return server.fresh(slots)

    @staticmethod
    def require_drawable(server: Server, slots: int) -> None:
        """Raise unless several models can be drawn that differ."""
        if slots == 1 or server.model is None:
            return
        if server.model.own() is not None:
            raise InvalidInput(
                f"model=nn.Module has one set of weights, and this trainer begins with {slots} models that differ; "
                "pass the module's class to have them drawn, or begins=Given(...) with one module a slot"
            )
        one, other = (server.init(server.rng.child("init", slot).seed()) for slot in range(2))
        if all(torch.equal(leaf, other[name]) for name, leaf in one.items()):
            raise InvalidInput(
                f"model=function gives the same weights whatever the seed, and {slots} equal models never come apart; "
                "let it draw them, or pass begins=Given(...) with one module a slot"
            )


@dataclass(frozen=True, eq=False)
class Given(Start):
    """These models, one a slot: modules, or their parameters by name; or one tree of leaves (slots, ...)."""

    given: Params | Sequence[nn.Module | Params] = ()

    @property
    def drawn(self) -> bool:
        return False

    def models(self, server: Server, slots: int) -> dict[str, Tensor]:
        given = self.given
        if isinstance(given, Sequence):
            require(len(given) > 0, "given", given, "must have one model a slot at least")
            given = stack(_parameters(model) for model in given)
        return fitting(given, server, slots)


@dataclass(frozen=True, eq=False)
class Pretrained(Start):
    """Drawn, and then trained by the server on public examples, a set of them a slot: MingledPie's start.

    (Its code trains one epoch on 1,000 examples of each label set.) The examples are the server's own: nothing of the
    clients' is touched.
    """

    public: tuple[Examples, ...] = ()
    local: Local = field(default_factory=lambda: Local(epochs=1, batch_size=50, lr=0.01))

    @property
    def drawn(self) -> bool:
        return False

    def models(self, server: Server, slots: int) -> dict[str, Tensor]:
        require(
            len(self.public) == slots, "len(public)", len(self.public), f"must be one set of examples a slot ({slots})"
        )
        fresh = super().models(server, slots)
        turn = Turn(0, server.roots.child("public"))
        trained = []
        for slot, examples in enumerate(self.public):
            shards = Shards.of([torch.arange(len(examples))])
            alone = Cohort(torch.tensor([slot]), turn, examples, shards, server.model)
            start = {name: leaf[slot : slot + 1] for name, leaf in fresh.items()}
            trained.append(alone.train(start, self.local, ClientGuard(), label="public"))
        return {name: torch.cat([models[name] for models in trained]) for name in fresh}


def fitting(given: Params, server: Server, slots: int) -> dict[str, Tensor]:
    """These leaves (slots, ...), if they are the model's and as many."""
    due = Layout.of(server.init(0)).shapes
    for name in (*due, *given):
        shape = tuple(given[name].shape[1:]) if name in given else None
        wanted = tuple(due[name]) if name in due else None
        require(
            shape == wanted, f"begins: leaf {name!r}", shape, f"must be {wanted} as in the model; is it the same one?"
        )
    there = len(next(iter(given.values())))
    require(there == slots, "begins: models", there, f"must be {slots}, one a slot of this trainer")
    return {name: given[name].detach().clone() for name in due}


def _parameters(model: nn.Module | Params) -> Params:
    return dict(model.named_parameters()) if isinstance(model, nn.Module) else model


def _of_run(folder: Path) -> dict[str, Tensor]:
    path = folder / MODELS_FILE
    if not path.exists():
        raise DataMissing(f"begins: run {folder} has no {MODELS_FILE}; name the folder of a finished run")
    with np.load(path, allow_pickle=False) as saved:
        return {name: torch.from_numpy(saved[name]) for name in saved.files}
