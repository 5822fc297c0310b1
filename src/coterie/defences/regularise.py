"""Regularisation as a defence (paper 000, Section 5.1). Neither form carries a formal guarantee, nor claims one."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.errors import require
from coterie.flow.guard import ClientGuard, Defence
from coterie.flow.protocol import AnyProtocol
from coterie.flow.turn import Step
from coterie.learn.params import Params

NO_TRAINING = "clients train no model that could be regularised"


@dataclass(frozen=True)
class _DroppingOut(ClientGuard):
    rate: float

    @property
    def dropout(self) -> float:
        return self.rate


@dataclass(frozen=True)
class Dropout(Defence):
    """Clients train with this dropout rate wherever the model has a dropout layer. Rate 0 is neutral.

    The paper adds "dropout layers" without saying where: the bundled models have them before and after the first
    dense layer.
    """

    rate: float = 0.1

    def __post_init__(self) -> None:
        require(0 <= self.rate < 1, "rate", self.rate, "must lie in [0, 1); 0 switches dropout off")

    @property
    def client(self) -> ClientGuard:
        return _DroppingOut(self.rate)

    def fits(self, protocol: AnyProtocol) -> str:
        return "" if protocol.trains else NO_TRAINING


@dataclass(frozen=True)
class _Decaying(ClientGuard):
    penalty: float

    @property
    def plain(self) -> bool:
        return self.penalty == 0

    def gradient(self, grads: dict[str, Tensor], params: Params, step: Step) -> Params:
        return {name: grad.add(params[name], alpha=self.penalty) for name, grad in grads.items()}


@dataclass(frozen=True)
class L2(Defence):
    """The local loss gains ``penalty / 2`` times the squared norm of all parameters, so the gradient ``penalty * w``.

    The paper does not say whether its penalty includes the half; this is what optimisers call weight decay. Penalty 0
    is neutral.
    """

    penalty: float = 0.01

    def __post_init__(self) -> None:
        require(self.penalty >= 0, "penalty", self.penalty, "must not be negative; 0 switches the penalty off")

    @property
    def client(self) -> ClientGuard:
        return _Decaying(self.penalty)

    def fits(self, protocol: AnyProtocol) -> str:
        return "" if protocol.trains else NO_TRAINING
