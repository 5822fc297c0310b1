"""The sum of clipped per-example gradients of an ``nn.Module``, exactly and without one backward pass an example.

One forward and one backward pass give, for every layer with parameters, its input and the loss's derivative by its
output, both with the example as axis 0. From these follow each example's gradient norm (built, or "ghost" as in
Li et al. 2022, whichever costs less) and, once the norms are known, the clipped sum, without going back again.

A module with anything else in it is computed one example at a time: slow, always right. So is one for which a trial
on two examples shows that its layers' inputs and outputs do not tell the whole story (a weight used by hand, an
operation in place).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import linear

from coterie.learn.exact_gradients import TRIALS, stands_alone
from coterie.learn.layer_gradients import BUILT_ENTRIES, RULES, Names, Outer, Part, understood
from coterie.learn.models.model import seeded
from coterie.learn.params import Layout, Params, map_leaves
from coterie.learn.targets import targets
from coterie.learn.whole import radius
from coterie.learn.whole_pieces import OuterProducts, Piece, add_up

TRIAL_TOLERANCE = 1e-3


def clipped_gradient(module: nn.Module, leaves: Params, x: Tensor, y: Tensor, weights: Tensor, clip: float) -> Params:
    """sum_i weights[i] g_i min(1, clip / |g_i|), where g_i is example i's gradient over all leaves."""
    kept = weights != 0
    if not bool(kept.all()):  # padding
        x, y, weights = x[kept], y[kept], weights[kept]
    if not len(x):
        return map_leaves(torch.zeros_like, leaves)
    if not _traceable(module, leaves, x, y):
        return one_by_one(module, leaves, x, y, weights, clip)
    parts = _trace(module, leaves, x, y)
    scales = weights * clip_scales(_norms(parts, len(x)), clip)
    return _sums(parts, scales, leaves)


def clip_scales(norms: Tensor, clip: float) -> Tensor:
    return clip / norms.clamp_min(clip) if clip != torch.inf else torch.ones_like(norms)


def one_by_one(module: nn.Module, leaves: Params, x: Tensor, y: Tensor, weights: Tensor, clip: float) -> Params:
    """The same, example by example."""
    total = map_leaves(torch.zeros_like, leaves)
    for at in range(len(x)):
        grads = _plain(module, leaves, x[at : at + 1], y[at : at + 1])
        norm = torch.stack([grad.square().sum() for grad in grads.values()]).sum().sqrt()
        scale = weights[at] * clip_scales(norm, clip)
        for name, grad in grads.items():
            total[name] += scale * grad
    return total


BLOCKS = (8, 16, 32)
"""Examples that are passed at once for an exact sum: of one number, for in another the same rows are rounded otherwise,
and one in which rows stand alone, for small products may be rounded otherwise in every second row."""

TRIED_NUMBERS = 1 << 25
"""In all trials of a block: large models are tried less often, at least four times."""


def whole_gradient(
    module: nn.Module, leaves: Params, x: Tensor, y: Tensor, weights: Tensor, clip: float, units: int, width: int
) -> NDArray[np.float64]:
    """The sum of the examples' weighted gradients, clipped, in whole numbers, (length,).

    Each example's is a function of itself and no longer than ``units``: gradients are found in blocks of one size, if
    there is one on this machine in which rows stand alone, and else one by one. A gradient that is not finite counts as
    zero. Batches have a public ``width``. Dropout alone is drawn by the place among those kept: an example that goes
    leaves others the next masks, which are as likely, and secret.
    """
    kept, layout = (weights != 0).nonzero().flatten(), Layout.of(leaves)
    total, inner = np.zeros(layout.length), radius(units, layout.length, torch.float64)
    totals = {name: total[span] for name, span in layout.spans.items()}
    if not len(kept):
        return total
    size = _block(module, leaves, x, y, width)
    for places in kept.split(size):
        block = torch.cat([places, places[:1].expand(size - len(places))])  # filled up with what has no weight
        own = torch.cat([weights[places], weights.new_zeros(size - len(places))]).double().numpy()
        add_up(_pieces(module, leaves, x[block], y[block]), own, clip, inner, totals)
    return total


def _pieces(module: nn.Module, leaves: Params, x: Tensor, y: Tensor) -> dict[str, Piece]:
    """Each example's gradient, by leaf; of a leaf that is missing, zero."""
    if len(x) == 1:
        return {name: OuterProducts.rows(grad.unsqueeze(0)) for name, grad in _plain(module, leaves, x, y).items()}
    pieces: dict[str, Piece] = {}
    for part in _trace(module, leaves, x, y).values():
        pieces |= part.pieces()
    return pieces


def _numbers(module: nn.Module, leaves: Params, x: Tensor, y: Tensor) -> Tensor:
    """(examples, ...): those that gradients follow from."""
    return torch.cat([piece.numbers() for piece in _pieces(module, leaves, x, y).values()], 1)


def _block(module: nn.Module, leaves: Params, like: Tensor, like_y: Tensor, width: int) -> int:
    """Tried once for a module and shape, without dropout, which is drawn by the row.

    On random examples and leaves: a server whose first model is all zeros, in which rows do not differ, must not
    choose. As few as there may be: a drawn batch fills about two thirds of its public width.
    """
    best = next((size for size in BLOCKS if 3 * size >= 2 * width), BLOCKS[-1])
    key = (tuple(like.shape[1:]), torch.get_num_threads(), best)
    tried = _alone.setdefault(module, {})
    if key not in tried:
        traceable, leaves = _traceable(module, leaves, like, like_y), _made_up_leaves(leaves)
        x, y = _made_up(like, 2, torch.Generator().manual_seed(0)), targets(like_y).made_up(2, like_y)
        with _trial(module):
            sizes = [best, *(size for size in BLOCKS if size != best)] if traceable else []
            own = _numbers(module, leaves, x, y).shape[1] if sizes else 0
            small = (size for size in sizes if size == BLOCKS[0] or size * own <= BUILT_ENTRIES)
            tried[key] = next((size for size in small if _stands_alone(module, leaves, like, like_y, size, own)), 1)
    return tried[key]


def _stands_alone(module: nn.Module, leaves: Params, like: Tensor, like_y: Tensor, size: int, own: int) -> bool:
    """``own`` is how many numbers an example has."""
    y, rows = targets(like_y).made_up(size, like_y), torch.empty(0)

    def drawn(draws: torch.Generator) -> Tensor:
        nonlocal rows
        rows = _made_up(like, size, draws)
        return torch.arange(size).unsqueeze(0)

    def numbers(order: Tensor) -> Tensor:
        return _numbers(module, leaves, rows[order[0]], y[order[0]]).unsqueeze(0)

    return stands_alone(numbers, drawn, max(4, min(TRIALS, TRIED_NUMBERS // (size * own))))


def _made_up(like: Tensor, count: int, draws: torch.Generator) -> Tensor:
    x = torch.randn(count, *like.shape[1:], generator=draws)
    return (x if like.is_floating_point() else x.gt(0)).to(like.dtype)


def _made_up_leaves(leaves: Params) -> Params:
    """Of such a size that what layers pass on is about as large as what they are given."""
    draws = torch.Generator().manual_seed(1)

    def drawn(leaf: Tensor) -> Tensor:
        fan = leaf[0].numel() if leaf.dim() > 1 else 1
        return torch.randn(leaf.shape, generator=draws).div_(max(fan, 1) ** 0.5).to(leaf.dtype)

    return map_leaves(drawn, leaves)


def _plain(module: nn.Module, leaves: Params, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    tracked = {name: leaf.detach().requires_grad_() for name, leaf in leaves.items()}
    with torch.enable_grad():
        loss = targets(y).losses(_outputs(module, tracked, x), y).sum()
    grads = torch.autograd.grad(loss, list(tracked.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(tracked.items(), grads, strict=True)
    }


def _outputs(module: nn.Module, leaves: Params, x: Tensor) -> Any:
    """Buffers are handed in as copies: what a module notes down there of one example, the next must not find."""
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    return functional_call(module, {**buffers, **leaves}, (x,))


def _norms(parts: dict[str, Part], examples: int) -> Tensor:
    squared = torch.stack([part.squared() for part in parts.values()]).sum(0) if parts else torch.zeros(examples)
    return squared.clamp_min_(0).sqrt_()


def _sums(parts: dict[str, Part], scales: Tensor, leaves: Params) -> dict[str, Tensor]:
    sums: dict[str, Tensor] = {}
    for part in parts.values():
        sums |= part.weighted(scales)
    return {name: sums[name] if name in sums else torch.zeros_like(leaf) for name, leaf in leaves.items()}


# -- one forward and one backward pass, watched -----------------------------------------------------------------------


class _Trace:
    """What went into each layer, and which tensors the loss must be derived by."""

    def __init__(self, examples: int) -> None:
        self.examples = examples
        self.outputs: list[Tensor] = []
        self.makers: list[tuple[str, int, Callable[..., Part]]] = []  # key, number of outputs, deltas -> part

    def watch(self, key: str, outputs: list[Tensor], maker: Callable[..., Part]) -> None:
        if any(key == seen for seen, _, _ in self.makers) or any(len(out) != self.examples for out in outputs):
            raise _Opaque(key)
        self.outputs += [out if out.requires_grad else out.requires_grad_() for out in outputs]
        self.makers.append((key, len(outputs), maker))

    def parts(self, loss: Tensor) -> dict[str, Part]:
        deltas = list(torch.autograd.grad(loss, self.outputs, allow_unused=True))
        parts, start = {}, 0
        for key, count, maker in self.makers:
            own = [
                torch.zeros_like(out) if delta is None else delta
                for out, delta in zip(self.outputs[start : start + count], deltas[start : start + count], strict=True)
            ]
            parts[key] = maker(*own)
            start += count
        return parts


class _Opaque(Exception):
    """A layer was called twice, or on something whose axis 0 is not the example."""


def _trace(module: nn.Module, leaves: Params, x: Tensor, y: Tensor) -> dict[str, Part]:
    fixed = {name: leaf.detach() for name, leaf in leaves.items()}
    trace = _Trace(len(x))
    with _watched(module, trace), torch.enable_grad():
        loss = targets(y).losses(_outputs(module, fixed, x), y).sum()
        return trace.parts(loss)


@contextmanager
def _watched(module: nn.Module, trace: _Trace) -> Iterator[None]:
    in_place = any(getattr(part, "inplace", False) for part in module.modules())
    handles, unrolled = [], []
    for prefix, layer in _owners(module):
        names = {own: f"{prefix}.{own}" if prefix else own for own, _ in layer.named_parameters(recurse=False)}
        if isinstance(layer, nn.GRU):
            layer.forward = partial(_unrolled_gru, layer, names, trace)  # type: ignore[assignment,method-assign]
            unrolled.append(layer)
        else:
            hook = partial(_remember, trace, names, prefix, in_place)
            handles.append(layer.register_forward_hook(hook))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for layer in unrolled:
            del layer.forward


def _remember(
    trace: _Trace, names: Names, key: str, in_place: bool, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
) -> Tensor | None:
    given = inputs[0].detach()
    trace.watch(key, [output], partial(RULES[type(layer)], layer, names, given))
    return output.clone() if in_place else None  # what follows must not overwrite the watched tensor


def _unrolled_gru(
    layer: nn.GRU, names: Names, trace: _Trace, x: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """``nn.GRU`` step by step, so that the derivative by each step's recurrent product can be had."""
    hidden = x.new_zeros(len(x), layer.hidden_size) if state is None else state[0]
    leaves: Any = layer
    driven = linear(x, leaves.weight_ih_l0, leaves.bias_ih_l0)
    driven = driven if driven.requires_grad else driven.requires_grad_()
    before, recurrent, states = [], [], []
    for part in driven.unbind(1):
        before.append(hidden.detach())
        looped = linear(hidden, leaves.weight_hh_l0, leaves.bias_hh_l0)
        recurrent.append(looped if looped.requires_grad else looped.requires_grad_())
        reset_in, update_in, new_in = part.chunk(3, 1)
        reset_back, update_back, new_back = looped.chunk(3, 1)
        update = torch.sigmoid(update_in + update_back)
        new = torch.tanh(new_in + torch.sigmoid(reset_in + reset_back) * new_back)
        hidden = torch.lerp(new, hidden, update)
        states.append(hidden)
    given = x.detach()
    trace.watch(
        names["weight_ih_l0"],
        [driven],
        lambda delta: Outer(names["weight_ih_l0"], names["bias_ih_l0"], given, delta),
    )
    trace.watch(
        names["weight_hh_l0"],
        recurrent,
        lambda *deltas: Outer(
            names["weight_hh_l0"], names["bias_hh_l0"], torch.stack(before, 1), torch.stack(deltas, 1)
        ),
    )
    return torch.stack(states, 1), hidden.unsqueeze(0)


# -- whether that may be relied on ------------------------------------------------------------------------------------

_trusted: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
_alone: WeakKeyDictionary[nn.Module, dict[tuple[tuple[int, ...], int, int], int]] = WeakKeyDictionary()


@contextmanager
def _trial(module: nn.Module) -> Iterator[None]:
    """As in training, where layers may do other things, but for dropout; random numbers are left as they were."""
    modes: dict[nn.Module, bool] = {part: part.training for part in module.modules()}
    module.train()
    for part in modes:
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.eval()
    try:
        with seeded(0):
            yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def _owners(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers that hold parameters themselves."""
    return [
        (prefix, layer)
        for prefix, layer in module.named_modules()
        if any(True for _ in layer.parameters(recurse=False))
    ]


def _traceable(module: nn.Module, leaves: Params, like: Tensor, like_y: Tensor) -> bool:
    """Tried on what is made up: neither a client's examples nor a server's model decide."""
    if module not in _trusted:
        x, y = _made_up(like, 2, torch.Generator().manual_seed(0)), targets(like_y).made_up(2, like_y)
        _trusted[module] = _understands_all(module) and _agrees(module, _made_up_leaves(leaves), x, y)
    return _trusted[module]


def _understands_all(module: nn.Module) -> bool:
    uses = list(module.named_parameters(remove_duplicate=False))
    untied = len(uses) == len(list(module.parameters()))
    return untied and all(understood(layer) for _, layer in _owners(module))


def _agrees(module: nn.Module, leaves: Params, x: Tensor, y: Tensor) -> bool:
    """A trial without dropout: norms and sum against plain gradients, one example at a time."""
    try:
        with _trial(module):
            parts = _trace(module, leaves, x, y)
            norms = _norms(parts, len(x))
            found = _sums(parts, torch.ones(len(x)), leaves)
            singles = [_plain(module, leaves, x[at : at + 1], y[at : at + 1]) for at in range(len(x))]
    except (_Opaque, RuntimeError):  # what is wrong with the module itself, the slow way will raise again
        return False
    return _close(found, norms, singles)


def _close(found: Params, norms: Tensor, singles: list[dict[str, Tensor]]) -> bool:
    expected = torch.stack([torch.cat([grad.flatten() for grad in single.values()]) for single in singles])
    total = torch.cat([grad.flatten() for grad in found.values()])
    size = expected.norm(dim=1)
    return bool(
        ((norms - size).abs() <= TRIAL_TOLERANCE * size).all()
        and (total - expected.sum(0)).norm() <= TRIAL_TOLERANCE * size.sum()
    )
