"""FedAvg of the FCNN in pfl's simulation, as its tutorials set it up: one process, no evaluation."""

from __future__ import annotations

import json
import os
import time
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend  # type: ignore[import-not-found]
from pfl.algorithm.base import NNAlgorithmParams  # type: ignore[import-not-found]
from pfl.algorithm.federated_averaging import FederatedAveraging  # type: ignore[import-not-found]
from pfl.callback.base import TrainingProcessCallback  # type: ignore[import-not-found]
from pfl.data.dataset import Dataset  # type: ignore[import-not-found]
from pfl.data.federated_dataset import FederatedDataset  # type: ignore[import-not-found]
from pfl.data.sampling import get_user_sampler  # type: ignore[import-not-found]
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams  # type: ignore[import-not-found]
from pfl.metrics import Metrics, Weighted  # type: ignore[import-not-found]
from pfl.model.pytorch import PyTorchModel  # type: ignore[import-not-found]
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

WORK: dict[str, Any] = json.loads(os.environ["COTERIE_PEER_WORK"])


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self.layers(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


class Clock(TrainingProcessCallback):  # type: ignore[misc]
    def __init__(self) -> None:
        self.times: list[float] = []

    def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
        self.times.append(time.perf_counter())
        return False, Metrics()


def users() -> FederatedDataset:
    data = {}
    for user in range(WORK["clients"]):
        draws = torch.Generator().manual_seed(user)
        x = torch.rand(WORK["each"], 784, generator=draws)
        y = torch.randint(10, (WORK["each"],), generator=draws)
        data[user] = Dataset(raw_data=[x, y], user_id=str(user))
    return FederatedDataset(data.__getitem__, get_user_sampler("minimize_reuse", list(data)))


def main() -> None:
    """Print the seconds of each round but the first, the only one in which pfl evaluates."""
    np.random.seed(0)  # noqa: NPY002
    clock, everyone, network = Clock(), users(), Network()
    central = torch.optim.SGD(network.parameters(), lr=1.0)
    rounds = WORK["rounds"] + 1
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds,
            train_cohort_size=WORK["clients"],
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=everyone, val_data=everyone),
        PyTorchModel(network, local_optimizer_create=torch.optim.SGD, central_optimizer=central),
        NNTrainHyperParams(
            local_batch_size=WORK["batch_size"],
            local_num_epochs=None,
            local_num_steps=WORK["steps"],
            local_learning_rate=WORK["lr"],
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    seconds = [after - before for before, after in pairwise(clock.times)]
    print(json.dumps({"seconds": seconds}))
