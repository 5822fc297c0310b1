"""One layer's per-example gradients: their norms, and their sum once each has been given its scale.

Each follows from the layer's input and the loss's derivative by its output, both with the example as axis 0. The
gradients are built where they are small, else their norms are "ghost" norms (Li et al. 2022).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import group_norm, layer_norm, unfold

from coterie.learn.whole_pieces import OuterProducts, Piece, ScatteredRows

BUILT_ENTRIES = 1 << 26  # per-example gradients of one layer that may be built at once: 256 MiB


class Part(ABC):
    """One layer's per-example gradients, built or not."""

    @abstractmethod
    def squared(self) -> Tensor:
        """(examples,) squared norms."""

    @abstractmethod
    def weighted(self, scales: Tensor) -> dict[str, Tensor]:
        """The sums over examples, each times its scale, by leaf."""

    @abstractmethod
    def pieces(self) -> dict[str, Piece]:
        """Every example's gradient, by leaf, for an exact sum: for few examples."""


@dataclass
class Built(Part):
    """Small enough to be there in full."""

    grads: dict[str, Tensor]  # leaves (examples, ...)

    def squared(self) -> Tensor:
        return torch.stack([grad.flatten(1).square().sum(1) for grad in self.grads.values()]).sum(0)

    def weighted(self, scales: Tensor) -> dict[str, Tensor]:
        return {name: (scales.unsqueeze(0) @ grad.flatten(1)).view(grad.shape[1:]) for name, grad in self.grads.items()}

    def pieces(self) -> dict[str, Piece]:
        return {name: OuterProducts.rows(grad) for name, grad in self.grads.items()}


@dataclass
class Outer(Part):
    """A dense layer: the gradient is the sum over positions of outer products of output derivative and input."""

    weight: str
    bias: str | None
    given: Tensor  # (examples, positions, inputs)
    delta: Tensor  # (examples, positions, outputs)

    def squared(self) -> Tensor:
        positions = self.given.shape[1]
        if positions == 1:
            squared = self.given.square().sum((1, 2)) * self.delta.square().sum((1, 2))
        elif ghost_is_cheaper(positions, self.given.shape[2], self.delta.shape[2], len(self.given)):
            squared = gram_product(self.given, self.delta)
        else:
            squared = torch.bmm(self.delta.transpose(1, 2), self.given).square().sum((1, 2))
        return squared + self.delta.sum(1).square().sum(1) if self.bias else squared

    def weighted(self, scales: Tensor) -> dict[str, Tensor]:
        scaled = (self.delta * scales.view(-1, 1, 1)).flatten(0, 1)
        sums = {self.weight: scaled.T @ self.given.flatten(0, 1)}
        return sums | {self.bias: scaled.sum(0)} if self.bias else sums

    def pieces(self) -> dict[str, Piece]:
        if self.given.shape[1] == 1:
            weight = OuterProducts(self.delta.flatten(1), self.given.flatten(1))
        else:
            weight = OuterProducts.rows(torch.bmm(self.delta.transpose(1, 2), self.given))
        pieces: dict[str, Piece] = {self.weight: weight}
        return pieces | ({self.bias: OuterProducts.rows(self.delta.sum(1))} if self.bias else {})


def gram_product(given: Tensor, delta: Tensor) -> Tensor:
    """Squared norms of the sums over positions of outer products, from two Gram matrices of positions."""
    return (torch.bmm(given, given.transpose(1, 2)) * torch.bmm(delta, delta.transpose(1, 2))).sum((1, 2))


def ghost_is_cheaper(positions: int, inputs: int, outputs: int, examples: int) -> bool:
    builds = examples * inputs * outputs
    return builds > BUILT_ENTRIES or positions * (inputs + outputs) < inputs * outputs


@dataclass
class GhostConvolution(Part):
    """A convolution with many channels and few positions: norms from Gram matrices, nothing is built."""

    layer: nn.Conv2d
    names: dict[str, str]
    given: Tensor
    delta: Tensor

    def squared(self) -> Tensor:
        layer = self.layer
        assert not isinstance(layer.padding, str)
        columns = unfold(self.given, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
        delta = self.delta.flatten(2)
        squared = gram_product(columns.transpose(1, 2), delta.transpose(1, 2))
        return squared + delta.sum(2).square().sum(1) if "bias" in self.names else squared

    def weighted(self, scales: Tensor) -> dict[str, Tensor]:
        scaled = self.delta * scales.view(-1, 1, 1, 1)
        sums = {self.names["weight"]: _convolution_weight_gradient(self.layer, self.given, scaled, 1)}
        return sums | {self.names["bias"]: scaled.sum((0, 2, 3))} if "bias" in self.names else sums

    def pieces(self) -> dict[str, Piece]:
        return Built(_built_convolution(self.layer, self.names, self.given, self.delta)).pieces()


@dataclass
class Rows(Part):
    """An embedding: each position adds to the row of its token."""

    name: str
    shape: torch.Size
    tokens: Tensor  # (examples, positions)
    delta: Tensor  # (examples, positions, width)

    def squared(self) -> Tensor:
        products = torch.bmm(self.delta, self.delta.transpose(1, 2))
        return (products * self._same()).sum((1, 2))  # rows of one token add up before they are squared

    def weighted(self, scales: Tensor) -> dict[str, Tensor]:
        scaled = (self.delta * scales.view(-1, 1, 1)).flatten(0, 1)
        return {self.name: scaled.new_zeros(self.shape).index_add_(0, self.tokens.flatten(), scaled)}

    def pieces(self) -> dict[str, Piece]:
        """A token's whole row where it comes first: an example is rounded once."""
        same = self._same()
        first = ~same.tril(-1).any(2, keepdim=True)
        return {self.name: ScatteredRows(self.tokens, torch.bmm(same.to(self.delta.dtype), self.delta) * first)}

    def _same(self) -> Tensor:
        return self.tokens.unsqueeze(1) == self.tokens.unsqueeze(2)


Names = dict[str, str]  # a layer's own name of a leaf -> the module's


def _linear(layer: nn.Linear, names: Names, given: Tensor, delta: Tensor) -> Part:
    flat = given.reshape(len(given), -1, given.shape[-1])
    return Outer(names["weight"], names.get("bias"), flat, delta.reshape(len(delta), flat.shape[1], -1))


def _convolution(layer: nn.Conv2d, names: Names, given: Tensor, delta: Tensor) -> Part:
    examples, positions = len(given), delta.shape[2] * delta.shape[3]
    inputs = layer.weight[0].numel()
    if layer.groups == 1 and ghost_is_cheaper(positions, inputs, layer.out_channels, examples):
        return GhostConvolution(layer, names, given, delta)
    return Built(_built_convolution(layer, names, given, delta))


def _built_convolution(layer: nn.Conv2d, names: dict[str, str], given: Tensor, delta: Tensor) -> dict[str, Tensor]:
    """One convolution with a group for each example: its weight gradient is every example's own."""
    examples = len(given)
    weight = _convolution_weight_gradient(
        layer, given.reshape(1, -1, *given.shape[2:]), delta.reshape(1, -1, *delta.shape[2:]), examples
    )
    grads = {names["weight"]: weight.view(examples, *layer.weight.shape)}
    return grads | {names["bias"]: delta.sum((2, 3))} if "bias" in names else grads


def _convolution_weight_gradient(layer: nn.Conv2d, given: Tensor, delta: Tensor, copies: int) -> Tensor:
    rows, *others = layer.weight.shape
    weight = layer.weight.new_empty(copies * rows, *others)  # what it holds is not looked at
    settings = (layer.stride, layer.padding, layer.dilation, False, [0, 0], copies * layer.groups)
    gradient: Tensor = torch.ops.aten.convolution_backward(delta, given, weight, None, *settings, [False, True, False])[
        1
    ]
    return gradient


def _normalisation(layer: nn.GroupNorm | nn.LayerNorm, names: Names, given: Tensor, delta: Tensor) -> Part:
    if isinstance(layer, nn.GroupNorm):
        plain = group_norm(given, layer.num_groups, eps=layer.eps)
        axes = tuple(range(2, given.dim()))
    else:
        plain = layer_norm(given, layer.normalized_shape, eps=layer.eps)
        axes = tuple(range(1, given.dim() - len(layer.normalized_shape)))
    return Built(
        {
            names[own]: (value.sum(axes) if axes else value)
            for own, value in (("weight", delta * plain), ("bias", delta))
            if own in names
        }
    )


def _embedding(layer: nn.Embedding, names: Names, tokens: Tensor, delta: Tensor) -> Part:
    flat = tokens.reshape(len(tokens), -1)
    delta = delta.reshape(*flat.shape, -1)
    if layer.padding_idx is not None:
        delta = delta.masked_fill((flat == layer.padding_idx).unsqueeze(-1), 0.0)
    return Rows(names["weight"], layer.weight.shape, flat, delta)


RULES: dict[type[nn.Module], Callable[..., Part]] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.GroupNorm: _normalisation,
    nn.LayerNorm: _normalisation,
    nn.Embedding: _embedding,
}


def understood(layer: nn.Module) -> bool:
    match layer:
        case nn.Conv2d():
            return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        case nn.Embedding():
            return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
        case nn.GRU():
            return layer.num_layers == 1 and not layer.bidirectional and layer.batch_first and layer.bias
        case _:
            return type(layer) in RULES
