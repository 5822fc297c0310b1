"""What a model is here: an architecture without parameters, which are passed in and handed back.

Two kinds. A ``Dense`` network computes the gradients of a whole cohort with batched matrix products. Anything
else is an ``nn.Module``, whose clients are computed one after the other: for convolutions and recurrent layers
that is faster than vectorising.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from coterie.errors import InvalidInput, require
from coterie.learn.params import Params, stack


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw what modules take from torch's own generator from this seed, and leave that generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@dataclass(frozen=True)
class Batch:
    """One step's examples for a group of clients."""

    x: Tensor  # (clients, batch, ...)
    y: Tensor  # (clients, batch)
    weights: Tensor  # (clients, batch): 1 / divisor, times the example's own weight if it has one; 0 for padding
    divisors: Tensor  # (clients,): by what the sum over the batch is divided; 1 for a client that is not active
    active: Tensor  # (clients,) bool: whether the client takes this step at all
    seeds: Sequence[int] = ()  # one a client, for dropout


class Model(ABC):
    """An architecture for classification under cross-entropy."""

    @abstractmethod
    def init(self, seed: int) -> dict[str, Tensor]:
        """Fresh parameters of one model."""

    @abstractmethod
    def logits(self, params: Params, x: Tensor) -> Tensor:
        """(examples, classes) for one model, without dropout."""

    @abstractmethod
    def gradients(self, params: Params, batch: Batch, clip: float | None = None) -> dict[str, Tensor]:
        """The weighted sum of the examples' gradients, leaves (clients, ...).

        With ``clip``, each example's gradient (over all leaves) is first scaled to at most that L2 norm.
        """

    @abstractmethod
    def with_dropout(self, rate: float) -> Model:
        """The same architecture and parameters, trained with dropout."""

    @property
    @abstractmethod
    def vectorised(self) -> bool:
        """Whether many clients at once are faster than one after the other."""

    @property
    @abstractmethod
    def random(self) -> bool:
        """Whether training draws random numbers (dropout), so that batches must carry seeds."""

    def losses(self, params: Params, x: Tensor, y: Tensor) -> Tensor:
        """(examples,) cross-entropy of one model."""
        return cross_entropy(self.logits(params, x), y, reduction="none")


class ModuleModel(Model):
    """Base of every architecture that is an ``nn.Module``."""

    @abstractmethod
    def build(self) -> nn.Module:
        """The module; its initial parameters are drawn by ``init``."""

    @property
    def vectorised(self) -> bool:
        return False

    @property
    def random(self) -> bool:
        return True  # a module may draw anywhere in its forward pass; those that are known not to, say so

    def init(self, seed: int) -> dict[str, Tensor]:
        with seeded(seed):
            module = self.build()
        check_module(module)
        return {name: leaf.detach().clone() for name, leaf in module.named_parameters()}

    def logits(self, params: Params, x: Tensor) -> Tensor:
        module = built(self)
        module.eval()
        with torch.no_grad():
            return functional_call(module, dict(params), (x,))  # type: ignore[no-any-return]

    def gradients(self, params: Params, batch: Batch, clip: float | None = None) -> dict[str, Tensor]:
        module = built(self)
        module.train()
        per_client = self._clipped if clip is not None else self._plain
        clients = len(batch.x)
        parts = []
        for client in range(clients):
            leaves = {name: leaf[client].detach() for name, leaf in params.items()}
            with seeded(batch.seeds[client]) if batch.seeds else nullcontext():
                parts.append(per_client(module, leaves, batch, client, clip))
        return stack(parts) if clients > 1 else {name: leaf.unsqueeze(0) for name, leaf in parts[0].items()}

    @staticmethod
    def _plain(module: nn.Module, leaves: Params, batch: Batch, client: int, clip: float | None) -> Params:
        leaves = {name: leaf.requires_grad_() for name, leaf in leaves.items()}
        kept = batch.weights[client] != 0
        x, y, weights = batch.x[client], batch.y[client], batch.weights[client]
        if not bool(kept.all()):  # padding would cost as much as real examples
            if not bool(kept.any()):
                return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
            x, y, weights = x[kept], y[kept], weights[kept]
        loss = (cross_entropy(functional_call(module, leaves, (x,)), y, reduction="none") * weights).sum()
        grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)  # unused leaves: zeros
        return dict(zip(leaves, grads, strict=True))

    @staticmethod
    def _clipped(module: nn.Module, leaves: Params, batch: Batch, client: int, clip: float | None) -> Params:
        from coterie.learn.per_example import clipped_gradient

        assert clip is not None
        return clipped_gradient(module, leaves, batch.x[client], batch.y[client], batch.weights[client], clip)


@cache
def built(model: ModuleModel) -> nn.Module:
    """One instance a process; its own parameters are never used."""
    with seeded(0):
        return model.build()


def check_module(module: nn.Module) -> None:
    """Raise for what cannot be averaged over clients, or cannot be trained here."""
    for name, part in module.named_modules():
        tracks = isinstance(part, nn.modules.instancenorm._InstanceNorm) and part.track_running_stats
        if isinstance(part, nn.modules.batchnorm._BatchNorm) or tracks:
            raise InvalidInput(
                f"model layer {name!r} is {type(part).__name__}, whose running statistics are no parameters: averaging "
                "clients leaves them undefined, and they mix the examples that per-example clipping must keep apart. "
                "Use nn.GroupNorm instead"
            )
    parameters = dict(module.named_parameters())
    require(bool(parameters), "model", type(module).__name__, "has no parameters to train")
    for name, leaf in parameters.items():
        lazy = isinstance(leaf, nn.parameter.UninitializedParameter)
        require(not lazy, "model parameter", name, "has no shape yet; give the lazy layer its input size")
        require(leaf.requires_grad, "model parameter", name, "is frozen, and all are trained here; make it a buffer")


@dataclass(frozen=True)
class OwnModule(ModuleModel):
    """A user's own architecture, from a function that builds it."""

    factory: Callable[[], nn.Module]
    dropout: float | None = None

    def build(self) -> nn.Module:
        module = self.factory()
        if self.dropout is not None:
            layers = [part for part in module.modules() if isinstance(part, nn.Dropout)]
            require(
                bool(layers),
                "dropout",
                self.dropout,
                "needs a model with nn.Dropout layers; add one to yours",
            )
            for layer in layers:
                layer.p = self.dropout
        return module

    def with_dropout(self, rate: float) -> OwnModule:
        return replace(self, dropout=rate)


def as_model(thing: Model | nn.Module | Callable[[], nn.Module]) -> Model:
    """A bundled model as it is; a module (its structure is copied) or a function that builds one, wrapped."""
    if isinstance(thing, Model):
        return thing
    if isinstance(thing, nn.Module):
        check_module(thing)
        return OwnModule(_Copier(thing))
    require(callable(thing), "model", thing, "must be a Model, an nn.Module or a function that returns one")
    return OwnModule(thing)


class _Copier:
    """Builds copies of a module with fresh parameters, so that ``init`` follows the run's seed.

    What a layer without ``reset_parameters`` holds (a bare ``nn.Parameter``) starts as it is in the module.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self) -> nn.Module:
        from copy import deepcopy

        module = deepcopy(self.module)
        for part in module.modules():
            reset = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()
        return module
