"""What a model is here: an architecture without parameters, which are passed in and handed back.

Two kinds. A ``Dense`` network computes the gradients of a whole cohort with batched matrix products. Anything
else is an ``nn.Module``, whose clients are computed one after the other: for convolutions and recurrent layers
that is faster than vectorising.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from coterie.errors import InvalidInput, require
from coterie.learn.params import Layout, Params, pick, stack
from coterie.learn.targets import targets
from coterie.learn.whole import SINGLE_UNITS, step_of
from coterie.rng import KEY_BYTES, Secrets


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw what modules take from torch's own generator from this seed, and leave that generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Likewise, from all 256 bits of a seed. ``manual_seed`` keeps 32 of them, and all of these can be tried."""
    with torch.random.fork_rng(devices=[]):
        state = torch.Generator().manual_seed(0).get_state()
        words = key_of(seed).words(MERSENNE_WORDS) & np.uint64(0xFFFFFFFF)
        state.view(torch.int64)[3 : 3 + MERSENNE_WORDS] = torch.from_numpy(words.astype(np.int64))
        torch.default_generator.set_state(state)
        yield


MERSENNE_WORDS = 624


def key_of(seed: int) -> Secrets:
    """A dropout seed as the root of its masks."""
    return Secrets(seed.to_bytes(KEY_BYTES, "little"), reproducible=True)


@dataclass(frozen=True)
class Batch:
    """One step's examples for a group of clients."""

    x: Tensor  # (clients, batch, ...)
    y: Tensor  # (clients, batch) classes, or (clients, batch, width): see ``coterie.learn.targets``
    weights: Tensor  # (clients, batch): 1 / divisor, times the example's own weight if it has one; 0 for padding
    divisors: Tensor  # (clients,): by what the sum over the batch is divided; 1 for a client that is not active
    active: Tensor  # (clients,) bool: whether the client takes this step at all
    seeds: Sequence[int] = ()  # one a client, of 256 bits, for dropout


@dataclass(frozen=True, eq=False)
class WholeSums:
    """Each client's sum of clipped gradients in whole steps, and what they follow from."""

    origins: Sequence[Sequence[NDArray[np.generic]]]  # a client's: numbers of which its total is a function
    totals: Iterator[NDArray[np.int32] | NDArray[np.int64] | NDArray[np.float64]]
    """Of one client after the other, (length,), leaf by leaf in their order. The next one's may take its memory."""
    worth: float  # of a step


class Model(ABC):
    """An architecture. The targets decide the loss (``coterie.learn.targets``): of classes it is cross-entropy."""

    @abstractmethod
    def init(self, seed: int) -> dict[str, Tensor]:
        """Fresh parameters of one model."""

    @abstractmethod
    def logits(self, params: Params, x: Tensor) -> Tensor:
        """(examples, classes) for one model, without dropout; as many outputs as targets need."""

    @abstractmethod
    def gradients(self, params: Params, batch: Batch, clip: float | None = None) -> dict[str, Tensor]:
        """The weighted sum of the examples' gradients, leaves (clients, ...).

        With ``clip``, each example's gradient (over all leaves) is first scaled to at most that L2 norm.
        """

    @abstractmethod
    def units(self, width: int, length: int) -> tuple[int, int]:
        """The coarsest and the finest grid for ``whole_gradients``, in blocks of this width and for so many numbers."""

    @abstractmethod
    def whole_gradients(self, params: Params, batch: Batch, clip: float, units: int, width: int) -> WholeSums:
        """The sums of clipped gradients, not divided.

        The batch is taken in blocks of ``width`` examples, which is public. Exactly: an example that goes moves the sum
        by its own whole-number gradient, of norm ``units`` at most, and by no other bit. An example's weight scales its
        loss, before its gradient is clipped.
        """

    def step(self, params: Params, batch: Batch, lr: float) -> None:
        """A step of plain gradient descent, in place."""
        with torch.enable_grad():
            grads = self.gradients(params, batch)
        for name, leaf in params.items():
            leaf.sub_(grads[name], alpha=lr)

    @abstractmethod
    def with_dropout(self, rate: float) -> Model:
        """The same architecture and parameters, trained with dropout."""

    @property
    @abstractmethod
    def vectorised(self) -> bool:
        """Whether many clients at once are faster than one after the other."""

    @property
    def in_parts(self) -> bool:
        """Whether several threads may train some of the clients each."""
        return False

    @property
    @abstractmethod
    def random(self) -> bool:
        """Whether training draws random numbers (dropout), so that batches must carry seeds."""

    @abstractmethod
    def module(self, params: Params) -> nn.Module:
        """A plain module with these parameters of one model, ready to predict."""

    def placed(self, leaves: Params) -> Params:
        """These leaves where the model computes; back again with ``home``."""
        return leaves

    def home(self, leaves: Params) -> Params:
        return leaves

    def own(self) -> dict[str, Tensor] | None:
        """The parameters that it came with, where it was given as a module; None: all are drawn."""
        return None

    def repeated(self, start: Params, batch: Batch, steps: int, lr: float) -> dict[str, Tensor] | None:
        """The parameters after so many plain steps on the same batch, if there is a shorter way than step by step."""
        return None

    def losses(self, params: Params, x: Tensor, y: Tensor) -> Tensor:
        """(examples,) of one model."""
        return targets(y).losses(self.logits(params, x), y)

    def slot_losses(self, models: Params, x: Tensor, y: Tensor) -> Tensor:
        """(examples, slots): each model's, leaves (slots, ...)."""
        slots = next(iter(models.values())).shape[0]
        return torch.stack([self.losses(pick(models, slot), x, y) for slot in range(slots)], 1)


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

    def module(self, params: Params) -> nn.Module:
        """With the buffers that the module is built with: they are no parameters, and nothing here changes them."""
        with seeded(0):
            module = self.build()
        own = dict(module.named_parameters())
        with torch.no_grad():
            for name, leaf in params.items():
                own[name].copy_(leaf)
        return module.eval()

    def logits(self, params: Params, x: Tensor) -> Tensor:
        module = built(self)
        module.eval()
        with torch.no_grad():
            return functional_call(module, dict(params), (x,))  # type: ignore[no-any-return]

    def gradients(self, params: Params, batch: Batch, clip: float | None = None) -> dict[str, Tensor]:
        module = built(self)
        if not module.training:  # it walks through all layers, in every step of every client
            module.train()
        per_client = self._clipped if clip is not None else self._plain
        clients = len(batch.x)
        parts = []
        for client in range(clients):
            leaves = {name: leaf[client].detach() for name, leaf in params.items()}
            with drawing(batch.seeds[client]) if batch.seeds else nullcontext():
                parts.append(per_client(module, leaves, batch, client, clip))
        return stack(parts) if clients > 1 else {name: leaf.unsqueeze(0) for name, leaf in parts[0].items()}

    def units(self, width: int, length: int) -> tuple[int, int]:
        return max(1 << 15, math.ceil(64 * math.sqrt(length))), SINGLE_UNITS

    def whole_gradients(self, params: Params, batch: Batch, clip: float, units: int, width: int) -> WholeSums:
        """Each example's gradient is found, a few at a time, put on the grid, and added up in double precision."""
        from coterie.learn.per_example import whole_gradient

        module, sums = built(self), []
        module.train()
        for client, weights in enumerate(batch.weights * batch.divisors.unsqueeze(1)):
            leaves, x, y = pick(params, client), batch.x[client], batch.y[client]
            with drawing(batch.seeds[client]) if batch.seeds else nullcontext():
                sums.append(whole_gradient(module, leaves, x, y, weights, clip, units, width))
        worth = step_of(clip, units, Layout.of(params, leading=1).length, torch.float64)
        return WholeSums([[total] for total in sums], iter(sums), worth)

    @staticmethod
    def _plain(module: nn.Module, leaves: Params, batch: Batch, client: int, clip: float | None) -> Params:
        """The module's own parameters are pointed at the client's: ``functional_call`` takes a tenth of a step."""
        own = dict(module.named_parameters())
        for name, leaf in leaves.items():
            own[name].data = leaf
        kept = batch.weights[client] != 0
        x, y, weights = batch.x[client], batch.y[client], batch.weights[client]
        if not bool(kept.all()):  # padding would cost as much as real examples
            if not bool(kept.any()):
                return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
            x, y, weights = x[kept], y[kept], weights[kept]
        loss = (targets(y).losses(module(x), y) * weights).sum()
        wanted = [own[name] for name in leaves]
        grads = torch.autograd.grad(loss, wanted, materialize_grads=True)  # unused leaves: zeros
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


def outputs(model: Model, params: Params, x: Tensor, training: bool = False) -> Tensor:
    """The model's outputs, to be differentiated, by inputs too; its last layer may be wider than it was built."""
    if isinstance(model, ModuleModel):
        return functional_call(built(model).train(training), dict(params), (x,))  # type: ignore[no-any-return]
    return model.logits(params, x)


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

    def own(self) -> dict[str, Tensor] | None:
        if not isinstance(self.factory, _Copier):
            return None
        return {name: leaf.detach().clone() for name, leaf in self.factory.module.named_parameters()}


def as_model(thing: Model | nn.Module | Callable[[], nn.Module]) -> Model:
    """A bundled model as it is; a module (a copy of it) or a function that builds one, wrapped.

    A module keeps its own weights where a trainer begins with one model; a function's are drawn from the run's seed.
    """
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
