"""Multi-layer perceptrons whose clients are computed together, with batched matrix products."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from coterie.errors import require
from coterie.learn.exact_gradients import (
    BYTE_UNITS,
    LEAST_UNITS,
    DenseSums,
    exact_dense_sums,
    gradient_step,
    stands_alone,
)
from coterie.learn.models.model import Batch, Model, WholeSums, key_of, seeded
from coterie.learn.own_examples import OwnExamples
from coterie.learn.params import Params, pick, stack
from coterie.learn.targets import targets

TOGETHER = 2048  # outputs of several models' first layers that are computed at once: a bound on memory


@dataclass(frozen=True)
class Dense(Model):
    """Fully connected layers with ReLU between them; the input is flattened."""

    sizes: tuple[int, ...]
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require(len(self.sizes) >= 2, "sizes", self.sizes, "must name the input and the output at least")
        require(0 <= self.dropout < 1, "dropout", self.dropout, "must lie in [0, 1)")

    @property
    def vectorised(self) -> bool:
        return True

    @property
    def in_parts(self) -> bool:
        return True

    @property
    def random(self) -> bool:
        return self.dropout > 0

    def with_dropout(self, rate: float) -> Dense:
        return replace(self, dropout=rate)

    def init(self, seed: int) -> dict[str, Tensor]:
        with seeded(seed):
            layers = [nn.Linear(fan_in, fan_out) for fan_in, fan_out in pairwise(self.sizes)]
        return {
            f"{index}.{name}": leaf.detach()
            for index, layer in enumerate(layers)
            for name, leaf in layer.named_parameters()
        }

    def module(self, params: Params) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        with seeded(0), torch.no_grad():  # what a layer draws for itself is overwritten
            for index, (fan_in, fan_out) in enumerate(pairwise(self.sizes)):
                layers += [nn.ReLU(), nn.Dropout(self.dropout)] if index else []
                layers.append(nn.Linear(fan_in, fan_out))
                for name, leaf in layers[-1].named_parameters():
                    leaf.copy_(params[f"{index}.{name}"])
        return nn.Sequential(*layers).eval()

    def logits(self, params: Params, x: Tensor) -> Tensor:
        return self._onward(params, torch.addmm(params["0.bias"], self._features(x, 1), params["0.weight"].T))

    def _onward(self, params: Params, outputs: Tensor) -> Tensor:
        """The logits from the first layer's outputs, which are used up."""
        for index in range(1, self.depth):
            outputs = torch.addmm(params[f"{index}.bias"], outputs.relu_(), params[f"{index}.weight"].T)
        return outputs

    def slot_losses(self, models: Params, x: Tensor, y: Tensor) -> Tensor:
        """The first layers of several models in one product: they all look at the same examples."""
        features, losses = self._features(x, 1), torch.empty(len(x), next(iter(models.values())).shape[0])
        for slots in torch.arange(losses.shape[1]).split(max(1, TOGETHER // self.sizes[1])):
            bias, weight = (models[f"0.{name}"][slots] for name in ("bias", "weight"))
            outputs = torch.addmm(bias.flatten(), features, weight.flatten(0, 1).T).unflatten(1, bias.shape)
            for position, slot in enumerate(slots.tolist()):
                logits = self._onward(pick(models, slot), outputs[:, position])
                losses[:, slot] = targets(y).losses(logits, y)
        return losses

    def _features(self, x: Tensor, leading: int) -> Tensor:
        """The examples as vectors, behind this many axes."""
        flat = x.flatten(leading)
        require(
            flat.shape[-1] == self.sizes[0],
            "features of an example",
            flat.shape[-1],
            f"must be {self.sizes[0]}, the first of the model's sizes={self.sizes}; give the model the data's shape",
        )
        return flat

    @property
    def depth(self) -> int:
        return len(self.sizes) - 1

    def gradients(self, params: Params, batch: Batch, clip: float | None = None) -> dict[str, Tensor]:
        inputs, deltas = self._passed(params, batch)
        if clip is not None:
            scales = clip_factors(inputs, deltas, batch.weights, clip)  # (clients, batch)
            deltas = [delta.mul_(scales.unsqueeze(-1)) for delta in deltas]
        grads: dict[str, Tensor] = {}
        for index, (given, delta) in enumerate(zip(inputs, deltas, strict=True)):
            grads[f"{index}.weight"] = torch.bmm(delta.transpose(1, 2), given)
            grads[f"{index}.bias"] = delta.sum(1)
        return grads

    def step(self, params: Params, batch: Batch, lr: float) -> None:
        """Products that are added to the weights right away: gradients would go out to memory and come back."""
        inputs, deltas = self._passed(params, batch)
        for index, (given, delta) in enumerate(zip(inputs, deltas, strict=True)):
            params[f"{index}.weight"].baddbmm_(delta.transpose(1, 2), given, alpha=-lr)
            params[f"{index}.bias"].sub_(delta.sum(1), alpha=lr)

    def units(self, width: int, length: int) -> tuple[int, int]:
        return LEAST_UNITS, BYTE_UNITS

    def whole_gradients(self, params: Params, batch: Batch, clip: float, units: int, width: int) -> WholeSums:
        """By products of whole numbers (``coterie.learn.exact_gradients``), in blocks whose rows stand alone.

        What only pads a block is computed with it: zeros change no whole number, and time does not tell how many.
        """
        width = width if self._stands_alone(params, width) else 1
        batch = _filled(batch, -batch.x.shape[1] % width)  # a narrower block would round its rows otherwise
        blocks: list[DenseSums] = []
        weights = batch.weights * batch.divisors.unsqueeze(1)
        for number, start in enumerate(range(0, batch.x.shape[1], width)):
            part = slice(start, start + width)
            seeds = tuple(key_of(seed).child(number).number() for seed in batch.seeds)
            block = replace(batch, x=batch.x[:, part], y=batch.y[:, part], weights=weights[:, part], seeds=seeds)
            blocks.append(exact_dense_sums(*self._passed(params, block), clip, units))
        origins = [[part for block in blocks for part in block.origin(client)] for client in range(len(batch.x))]
        worth = gradient_step(clip, units, list(pairwise(self.sizes)))
        if len(blocks) == 1:
            return WholeSums(origins, iter(blocks[0]), worth)
        totals = (np.add.reduce(sums, dtype=np.int64) for sums in zip(*blocks, strict=True))
        return WholeSums(origins, totals, worth)

    def _passed(self, params: Params, batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
        """Each layer's inputs and deltas, (clients, batch, width)."""
        inputs, masks, logits = self._forward(params, batch)
        return inputs, self._backward(params, batch, inputs, masks, logits)

    def _stands_alone(self, params: Params, width: int) -> bool:
        """Whether a row's inputs and deltas are its own on this machine, in a block of this width; tried once."""
        return _rows_stand_alone(self, len(next(iter(params.values()))), width, torch.get_num_threads())

    def repeated(self, start: Params, batch: Batch, steps: int, lr: float) -> dict[str, Tensor] | None:
        """By the examples' products with each other, found once; that pays while examples are fewer than features."""
        x = self._features(batch.x, 2)
        if self.dropout or steps < 2 or self.depth < 2 or x.shape[1] > x.shape[2]:
            return None
        params = {name: leaf.clone() for name, leaf in start.items()}
        products = torch.bmm(x, x.transpose(1, 2)).add_(1.0)  # (clients, batch, batch)
        outputs = torch.baddbmm(params["0.bias"].unsqueeze(1), x, params["0.weight"].transpose(1, 2))
        total = self._moved(params, outputs, products, ((batch, None) for _ in range(steps)), lr)
        params["0.weight"].baddbmm_(total.transpose(1, 2), x, alpha=-lr)
        params["0.bias"].sub_(total.sum(1), alpha=lr)
        return params

    def retraces(self, rows: int, steps: int, width: int) -> bool:
        """By multiplications for an output: the first layer's own, there and back, against those of its products."""
        features = self.sizes[0]
        plain, retraced = 2 * steps * width * features, 2 * rows * features + steps * width * rows
        return not self.dropout and self.depth > 1 and retraced < plain

    def retraced(self, params: Params, outputs: Tensor, own: OwnExamples, batches: Iterable[Batch], lr: float) -> None:
        """Plain steps in place, on batches whose ``x`` (clients, batch) are places among the clients' own examples.

        ``outputs`` (rows, width) are the first layer's on all of these.
        """
        total = self._moved(params, own.side_by_side(outputs), own.products, own.drawn(batches), lr)
        for x, weight, moved, size in zip(own.clients, params["0.weight"], total, own.sizes, strict=True):
            weight.addmm_(moved[:size].T, x, alpha=-lr)
        params["0.bias"].sub_(total.sum(1), alpha=lr)

    def first_outputs(self, models: Params, x: Tensor) -> Tensor:
        """(examples, slots, width): the first layer's, of several models on the same examples."""
        bias, weight = models["0.bias"], models["0.weight"]
        outputs = torch.addmm(bias.flatten(), self._features(x, 1), weight.flatten(0, 1).T)
        return outputs.view(-1, *bias.shape)

    def losses_onward(self, models: Params, first: Tensor, y: Tensor) -> Tensor:
        """(slots, examples): from these."""
        outputs = first.transpose(0, 1)
        for index in range(1, self.depth):
            bias, weight = models[f"{index}.bias"].unsqueeze(1), models[f"{index}.weight"].transpose(1, 2)
            outputs = torch.baddbmm(bias, outputs.relu(), weight)
        every = y.expand(len(outputs), *y.shape)
        return targets(y).many_losses(outputs.flatten(0, 1), every.flatten(0, 1)).view(outputs.shape[:2])

    def _moved(
        self,
        params: Params,
        outputs: Tensor,
        products: Tensor,
        batches: Iterable[tuple[Batch, Tensor | None]],
        lr: float,
    ) -> Tensor:
        """The sums D (clients, rows, width) of the first layer's deltas over these steps; the others are trained.

        Steps on examples x move the first layer's weights W by sums of x alone: W -= lr D^T x. So its ``outputs``
        z = x W^T follow from the ``products`` p = x x^T + 1 (the 1 is the bias): z -= lr p D. W itself is needed at the
        end alone. A batch is of all rows, or of those at these places, (clients * batch,) of (clients * rows).
        """
        total = torch.zeros_like(outputs)
        for batch, places in batches:
            if places is None:
                first, rows = outputs.clone(), products
            else:
                first, rows = (_at(each, places) for each in (outputs, products))
            inputs, masks, logits = self._forward(params, batch, first)
            deltas = self._backward(params, batch, inputs, masks, logits, many=places is not None)
            for index in range(1, self.depth):
                params[f"{index}.weight"].baddbmm_(deltas[index].transpose(1, 2), inputs[index], alpha=-lr)
                params[f"{index}.bias"].sub_(deltas[index].sum(1), alpha=lr)
            if places is None:
                total.add_(deltas[0])
            else:
                total.flatten(0, 1).index_add_(0, places, deltas[0].flatten(0, 1))
            outputs.baddbmm_(rows.transpose(1, 2), deltas[0], alpha=-lr)
        return total

    def _forward(
        self, params: Params, batch: Batch, first: Tensor | None = None
    ) -> tuple[list[Tensor], list[Tensor | None], Tensor]:
        """Each layer's input (clients, batch, width), the dropout masks, and the logits.

        ``first`` are the first layer's outputs, where they are known; they are used up.
        """
        hidden = batch.x if first is not None else self._features(batch.x, 2)
        inputs: list[Tensor] = []
        masks: list[Tensor | None] = []
        for index in range(self.depth):
            inputs.append(hidden)
            bias, weight = params[f"{index}.bias"], params[f"{index}.weight"]
            if first is not None and index == 0:
                hidden = first
            else:
                hidden = torch.baddbmm(bias.unsqueeze(1), hidden, weight.transpose(1, 2))
            if index < self.depth - 1:
                hidden = hidden.relu_()
                masks.append(self._mask(batch, index, hidden))
                if masks[-1] is not None:
                    hidden = hidden.mul_(masks[-1])
        return inputs, masks, hidden

    def _mask(self, batch: Batch, layer: int, hidden: Tensor) -> Tensor | None:
        if self.dropout == 0:
            return None
        kept = [key_of(seed).child(layer).coins(1 - self.dropout, hidden[0].numel()) for seed in batch.seeds]
        return torch.from_numpy(np.stack(kept)).view(hidden.shape).to(hidden).div_(1 - self.dropout)

    def _backward(
        self,
        params: Params,
        batch: Batch,
        inputs: list[Tensor],
        masks: list[Tensor | None],
        logits: Tensor,
        many: bool = False,
    ) -> list[Tensor]:
        """The loss's derivative by each layer's output before its activation, (clients, batch, width)."""
        rule = targets(batch.y)
        delta = (rule.many_slopes if many else rule.slopes)(logits, batch.y).mul_(batch.weights.unsqueeze(-1))
        deltas = [delta]
        for index in range(self.depth - 1, 0, -1):
            delta = torch.bmm(delta, params[f"{index}.weight"])
            mask = masks[index - 1]
            if mask is not None:
                delta.mul_(mask)
            delta = torch.ops.aten.threshold_backward(delta, inputs[index], 0)  # relu's derivative, in one pass
            deltas.insert(0, delta)
        return deltas


def _filled(batch: Batch, more: int) -> Batch:
    """With so many examples more, of no weight."""
    if not more:
        return batch
    x, y, weights = (
        torch.cat([part, part.new_zeros(len(part), more, *part.shape[2:])], 1)
        for part in (batch.x, batch.y, batch.weights)
    )
    return replace(batch, x=x, y=y, weights=weights)


def _at(rows: Tensor, places: Tensor) -> Tensor:
    """(clients, batch, width): of (clients, rows, width), those at places (clients * batch,) of (clients * rows)."""
    return rows.flatten(0, 1).index_select(0, places).view(len(rows), -1, rows.shape[2])


@lru_cache(maxsize=256)
def _rows_stand_alone(model: Dense, clients: int, width: int, threads: int) -> bool:
    """``stands_alone`` for a pass through random models on random rows, without dropout, which is drawn by the row."""
    plain, clients = replace(model, dropout=0.0), min(clients, MOST_TRIED)
    params = stack([plain.init(number) for number in range(clients)])
    labels = torch.arange(clients * width).view(clients, width).remainder_(model.sizes[-1])

    def passed(rows: Tensor) -> Tensor:
        x, y = rows[..., :-1], rows[..., -1].long()
        ones = torch.ones(clients, width)
        inputs, deltas = plain._passed(params, Batch(x, y, ones, ones[:, 0], ones[:, 0].bool()))
        return torch.cat([*inputs, *deltas], 2)

    def drawn(draws: torch.Generator) -> Tensor:
        x = torch.randn(clients, width, model.sizes[0], generator=draws)
        return torch.cat([x, labels.unsqueeze(2).float()], 2)

    return width == 1 or stands_alone(passed, drawn)


MOST_TRIED = 4  # clients: what their number decides in a batched product, it decides from two on


def clip_factors(inputs: list[Tensor], deltas: list[Tensor], weights: Tensor, clip: float) -> Tensor:
    """What brings each example's gradient to at most ``clip``.

    A dense layer's gradient of one example is an outer product, so its norm is the product of two norms, and
    no example's gradient is ever built ("ghost" norms).
    """
    squared = torch.zeros_like(weights)
    for given, delta in zip(inputs, deltas, strict=True):
        squared += (given.square().sum(-1) + 1) * delta.square().sum(-1)
    norms = squared.sqrt_() / weights.abs().clamp_min(torch.finfo(weights.dtype).tiny)
    return (clip / norms).clamp_max_(1.0).masked_fill_(weights == 0, 0.0)
