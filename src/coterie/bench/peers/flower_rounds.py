"""FedAvg of the FCNN in Flower's simulation. Imported, not run: Ray's workers must find the functions by name."""

from __future__ import annotations

import json
import os
import time
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

WORK: dict[str, Any] = json.loads(os.environ["COTERIE_PEER_WORK"])
client_app = ClientApp()
server_app = ServerApp()
times: list[float] = []


@cache
def network() -> nn.Module:
    torch.set_num_threads(1)  # one client a core
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))


@cache
def data(client: int) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(client)
    x = torch.rand(WORK["each"], 784, generator=draws)
    return x, torch.randint(10, (WORK["each"],), generator=draws)


@client_app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = data(int(context.node_config["partition-id"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=WORK["lr"])
    order = torch.randperm(len(x))
    for step in range(WORK["steps"]):
        batch = order[step * WORK["batch_size"] : (step + 1) * WORK["batch_size"]]
        optimizer.zero_grad()
        cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    reply = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(content=RecordDict(reply), reply_to=message)


@server_app.main()  # type: ignore[untyped-decorator]
def serve(grid: Grid, context: Context) -> None:
    def note(server_round: int, arrays: ArrayRecord) -> None:
        times.append(time.perf_counter())

    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=WORK["clients"])
    strategy.start(grid, ArrayRecord(network().state_dict()), num_rounds=WORK["rounds"] + 1, evaluate_fn=note)


def main() -> None:
    """Print the seconds of each round but the first, in which the workers start."""
    cores = WORK["cores"]
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=WORK["clients"],
        backend_config={
            "init_args": {"num_cpus": cores, "include_dashboard": False, "_temp_dir": os.environ["RAY_TMPDIR"]},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    seconds = [after - before for before, after in pairwise(times[1:])]
    print(json.dumps({"seconds": seconds}))
