"""Simulator and Flower: one expected output, asserted against both. No noise, the same seed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.deploy.places import Place

from coterie.data.federation import Examples, Federation, VerticalFederation
from coterie.data.partition import LabelSets
from coterie.data.sources.embedded import Digits
from coterie.deploy.plan import Plan
from coterie.deploy.running import Job
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots
from coterie.learn.params import Params
from coterie.rng import Rng

DEPLOY = """
[deploy]
shape = [64]
classes = 10
deadline = 60
least = 4
"""
NETWORK = """
[model]
kind = "dense"
sizes = [64, 10]
[trainer.local]
steps = 3
batch_size = 10
lr = 0.1
"""
RUNS = {
    "fedavg": '[trainer]\nkind = "fedavg"\nrounds = 2\n' + NETWORK,
    "ifca": '[trainer]\nkind = "ifca"\nclusters = 2\nrounds = 2\ncandidates = 4\n' + NETWORK,
    "sattler": '[trainer]\nkind = "sattler"\nrounds = 3\nseparation = 1.0\n' + NETWORK,
    "fedem": '[trainer]\nkind = "fedem"\ncomponents = 2\nrounds = 2\n' + NETWORK,
    "exact mingling": '[trainer]\nkind = "ifca"\nclusters = 2\nrounds = 2\ncandidates = 0\n'
    + NETWORK
    + '[defence]\nkind = "mingling"\nsigned = true\nsmallest = 1\n',
    "feddp_kmeans": '[trainer]\nkind = "feddp_kmeans"\nclusters = 3\nsteps = 2\n',
}


def two_kinds(clients: int) -> Federation:
    """Half of the clients see other labels."""
    digits = Digits().load()
    flat = Examples(digits.x.flatten(1)[:600], digits.y[:600], 10, "digits")
    return LabelSets(clients=clients, sets=2).split(flat, Rng.seeded(0))


@pytest.fixture(scope="module")
def rows() -> Federation:
    return two_kinds(4)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, rows: Federation) -> Iterator[Place]:
    found = Place.make(tmp_path_factory.mktemp("rows"), rows)
    try:
        found.start_all()
        yield found
    finally:
        found.close()


def words(name: str) -> str:
    return f'name = "{name.replace(" ", "_")}"\nseed = 3\n' + RUNS[name] + DEPLOY


def simulated(text: str, data: Federation | VerticalFederation) -> Params:
    """What the ring gives for the same file."""
    job = Job.of(tomllib.loads(text), Path("run.toml"))
    plan = Plan.of(job.offer(tuple(f"client{number}" for number in range(data.clients)), False, False))
    with Ring(plan.protocol, data, plan.model, plan.defence, Roots.seeded(job.config.seed)) as ring:
        return ring.models(ring.run())


def given(place: Place, number: int) -> Mapping[str, np.ndarray]:
    """What a client has in the end, in its own folder."""
    with np.load(place.home(number) / "home" / "models.npz") as held:
        return {name: held[name] for name in held.files}


def assert_same(place: Place, text: str, data: Federation) -> None:
    """What each client has in its folder is what the simulator says; under Sattler's, of the groups that it is in."""
    expected = simulated(text, data)
    for number in range(data.clients):
        found = given(place, number)
        assert expected.keys() <= found.keys()
        for leaf, value in expected.items():
            own = torch.from_numpy(found[leaf])
            assert own.shape == value.shape
            seen = own.flatten(1).ne(0).any(1) if "sattler" in text else torch.ones(len(own), dtype=torch.bool)
            assert seen.any()
            torch.testing.assert_close(own[seen], value[seen], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", list(RUNS))
def test_clients_on_flower_get_what_the_simulator_says(name: str, place: Place, rows: Federation) -> None:
    place.run(words(name))
    assert_same(place, words(name), rows)


def test_parties_with_columns_on_flower_get_what_the_simulator_says(tmp_path: Path) -> None:
    digits = Digits().load()
    examples = Examples(digits.x.flatten(1)[:150], digits.y[:150], 10, "digits")
    data = VerticalFederation(examples, tuple(torch.arange(64).split(24)))
    deploy = DEPLOY.replace("shape = [64]\n", "").replace("least = 4", "least = 3")  # parties differ in width
    text = 'name = "columns"\nseed = 3\n[trainer]\nkind = "vertical_kmeans"\nclusters = 3\n' + deploy
    expected = simulated(text, data)
    place = Place.make(tmp_path, data)
    try:
        place.start_all()
        place.run(text)
        for number in range(data.clients):
            assert given(place, number)["labels"].tolist() == expected["labels"].tolist()
    finally:
        place.close()
