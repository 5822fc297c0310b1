"""Federated training as plainly as it can be written: one client after the other, autograd, torch.optim."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Params = dict[str, Tensor]
Steps = Sequence[tuple[Tensor, Tensor]]  # one client's batches: (x, y) a step


def module_of(sizes: Sequence[int]) -> nn.Module:
    """The layers of a Dense network as modules."""
    layers: list[nn.Module] = [nn.Flatten()]
    for index, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()] if index < len(sizes) - 2 else [nn.Linear(fan_in, fan_out)]
    return nn.Sequential(*layers)


def load(module: nn.Module, params: Params) -> None:
    """Put leaves into a module in their order, whatever their names are."""
    with torch.no_grad():
        for leaf, value in zip(module.parameters(), params.values(), strict=True):
            leaf.copy_(value)


def read(module: nn.Module, names: Sequence[str]) -> Params:
    return {name: leaf.detach().clone() for name, leaf in zip(names, module.parameters(), strict=True)}


def sgd(
    module: nn.Module,
    start: Params,
    steps: Steps,
    lr: float,
    mu: float = 0.0,
    example_weights: Sequence[Tensor] | None = None,
) -> Params:
    """One client's model after its steps, with FedProx's term in the loss itself."""
    module = copy.deepcopy(module)
    load(module, start)
    anchor = [leaf.detach().clone() for leaf in module.parameters()]
    optimiser = torch.optim.SGD(module.parameters(), lr=lr)
    for number, (x, y) in enumerate(steps):
        optimiser.zero_grad()
        losses = cross_entropy(module(x), y, reduction="none")
        if example_weights is not None:
            losses = losses * example_weights[number]
        loss = losses.mean()
        loss = loss + mu / 2 * sum(
            ((leaf - old) ** 2).sum() for leaf, old in zip(module.parameters(), anchor, strict=True)
        )
        loss.backward()
        optimiser.step()
    return read(module, list(start))


def mean_loss(module: nn.Module, params: Params, x: Tensor, y: Tensor) -> float:
    load(module, params)
    with torch.no_grad():
        return float(cross_entropy(module(x), y))


def average(models: Sequence[Params], weights: Sequence[float]) -> Params:
    total = sum(weights)
    return {name: sum(w * model[name] for w, model in zip(weights, models, strict=True)) / total for name in models[0]}  # type: ignore[misc]


def ifca_round(
    module: nn.Module,
    models: Sequence[Params],
    data: Sequence[tuple[Tensor, Tensor]],
    steps: Sequence[Steps],
    lr: float,
    *,
    gradients: bool = False,
) -> tuple[list[Params], list[int]]:
    """Ghosh et al. 2020, Algorithm 1: option II (model averaging), or option I (gradient averaging, one step)."""
    choice = []
    for x, y in data:
        losses = [mean_loss(module, model, x, y) for model in models]
        choice.append(losses.index(min(losses)))
    sizes = [float(len(y)) for _, y in data]
    new = []
    for cluster, model in enumerate(models):
        members = [client for client, chosen in enumerate(choice) if chosen == cluster]
        trained = {client: sgd(module, model, steps[client], lr) for client in members}
        if gradients:  # theta - lr * sum_i p_i g_i over the members; p_i is the client's share of all data
            moved = dict(model)
            for client in members:
                for name in moved:
                    moved[name] = moved[name] + sizes[client] / sum(sizes) * (trained[client][name] - model[name])
            new.append(moved)
        elif members:
            new.append(average(list(trained.values()), [sizes[client] for client in members]))
        else:
            new.append(model)
    return new, choice


def e_step(module: nn.Module, models: Sequence[Params], mixture: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Marfoq et al. 2021, Eq. 9: q_i(m) is proportional to pi_m exp(-loss_m(i)); one example at a time."""
    rows = []
    for example, label in zip(x, y, strict=True):
        scores = []
        for component, model in enumerate(models):
            loss = mean_loss(module, model, example.unsqueeze(0), label.unsqueeze(0))
            scores.append(float(mixture[component]) * float(torch.tensor(-loss, dtype=torch.float64).exp()))
        rows.append([score / sum(scores) for score in scores])
    return torch.tensor(rows)


def brute_force_bipartition(similarity: Tensor) -> float:
    """Of all ways to split in two, the smallest value of the largest similarity across."""
    clients = len(similarity)
    best = float("inf")
    for code in range(1, 2 ** (clients - 1)):
        side = torch.tensor([bool(code >> client & 1) for client in range(clients)])
        best = min(best, float(similarity[side][:, ~side].max()))
    return best


def weighted_sums(values: Tensor, weights: Tensor, membership: Tensor) -> Tensor:
    """(slots, ...) from values (clients, slots | 1, ...), one client and one slot at a time, in float64."""
    clients, slots = membership.shape
    total = torch.zeros(slots, *values.shape[2:], dtype=torch.float64)
    for client in range(clients):
        for slot in range(slots):
            mine = values[client, slot if values.shape[1] > 1 else 0].double()
            total[slot] += float(membership[client, slot]) * float(weights[client]) * mine
    return total
