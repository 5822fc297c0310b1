"""What mingling costs in seconds and bytes. The paper's machine was another: this says how the cost grows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import tenseal
import torch
from torch import Tensor

from coterie.data.partition import LabelSets
from coterie.data.sources.embedded import Mnist5k
from coterie.defences.mingling.defence import Mingling
from coterie.defences.mingling.fuzzy_tags import ClusterKeys, GroupSets, TagRule
from coterie.defences.mingling.rebuilding import Counted
from coterie.defences.secure_sums import PairwiseMasks
from coterie.errors import require
from coterie.flow.guard import Defence
from coterie.learn.models.bundled import ResNet18, WideCnn, fcnn
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import Model
from coterie.learn.params import Layout
from coterie.protocols.ifca import Ifca
from coterie.rng import Rng
from coterie.run.jobs import Result
from coterie.run.training import train
from coterie.seal.ckks import Ckks, CkksBatch
from coterie.wire.messages import TRAIN, Kind

SLOTS = 4096  # values in a ciphertext of that degree
DISTINCT = 2  # messages that stand in for all clients': adding takes the same time whatever is in them
MODELS: dict[str, Callable[[], Model]] = {
    "FCNN": fcnn,
    "CNN": lambda: WideCnn(10, (3, 32, 32)),
    "ResNet-18": lambda: ResNet18(100),
    "Texas100's MLP": lambda: Dense((6169, 256, 100)),
}


def parameters(model: str) -> int:
    return Layout.of(MODELS[model]().init(0)).length


Made = TypeVar("Made")


def _seconds(work: Callable[[], Made], repeats: int = 2) -> tuple[float, Made]:
    """The shortest of several runs, and what the last of them made."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        taken.append(time.perf_counter() - start)
    return min(taken), result


def mingled(model: str, rate: float, threshold: int, clusters: int, clients: int, seed: int) -> Result:
    """One client's identity set, the server's sums over all clients, and one client's rebuilding."""
    rng = Rng.seeded(seed)
    rule = TagRule(clusters, rate, threshold)
    sets = GroupSets(rule, ClusterKeys.generate(rule, rng.child("keys")))
    everyone = torch.arange(clients)
    identity, membership = _seconds(lambda: sets.membership(everyone, everyone % clusters, rng))
    values = torch.from_numpy(rng.child("models").numpy().normal(size=(DISTINCT, parameters(model) + clusters)))
    cipher = Ckks()
    sealed = cipher.seal(values, cipher.keygen(), range(DISTINCT))
    rows = tuple(sealed.messages[client % DISTINCT] for client in range(clients))
    batch = CkksBatch(sealed.context, tuple(range(clients)), rows, sealed.length)
    aggregation, _ = _seconds(lambda: batch.add(membership), repeats=1)
    true = torch.nn.functional.one_hot(everyone % clusters, clusters).double()
    counts = membership.double().T @ true
    sums = counts @ torch.from_numpy(rng.child("sums").numpy().normal(size=(clusters, parameters(model))))
    rebuilding, _ = _seconds(lambda: Counted().rebuild(sums, counts, lambda: torch.zeros_like(sums)))
    return {"identity": identity / clients, "aggregation": aggregation, "rebuilding": rebuilding}


OURS, THEIRS = "our own", "the public code's"  # settings of CKKS


def encrypted(model: str, settings: str, seed: int) -> Result:
    """One model to bytes and back."""
    values = torch.from_numpy(Rng.seeded(seed).child(model).numpy().normal(size=(1, parameters(model))))
    if settings == THEIRS:
        return _as_run(values[0])
    cipher = Ckks()
    key = cipher.keygen()
    encryption, batch = _seconds(lambda: cipher.seal(values, key, [0]))
    sums = batch.add(torch.ones(1, 1))
    decryption, _ = _seconds(lambda: sums.open(key))
    return {"encryption": encryption, "decryption": decryption, "bytes": batch.nbytes}


def _as_run(values: Tensor) -> Result:
    """TenSEAL with moduli of 60, 40, 40 and 60 bits at degree 8192 and a scale of 2^40, piece by piece: all ciphertexts
    of a large model at once would take gigabytes."""
    context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, poly_modulus_degree=8192, coeff_mod_bit_sizes=[60, 40, 40, 60])
    context.global_scale = 2.0**40
    total = {"encryption": 0.0, "decryption": 0.0, "bytes": 0}

    def seal(piece: Tensor) -> bytes:
        message: bytes = tenseal.ckks_vector(context, piece.tolist()).serialize()
        return message

    def opened(message: bytes) -> list[float]:
        values: list[float] = tenseal.ckks_vector_from(context, message).decrypt()
        return values

    for piece in values.split(SLOTS):
        taken, message = _seconds(partial(seal, piece), 1)
        opening, plain = _seconds(partial(opened, message), 1)
        worst = float((torch.tensor(plain, dtype=torch.float64) - piece).abs().max())
        require(worst < 1e-5, "error of a decrypted value", worst, "must be below 1e-5")
        total = {
            "encryption": total["encryption"] + taken,
            "decryption": total["decryption"] + opening,
            "bytes": total["bytes"] + len(message),
        }
    return total


VARIANTS: dict[str, Callable[[], Defence]] = {
    "IFCA": Defence,
    "CKKS": lambda: Mingling(exact=False, cipher=Ckks(), partition=False),
    "CKKS, exact": lambda: Mingling(cipher=Ckks()),
    "secure sums": Mingling,
    "secure sums, 5-byte words": lambda: Mingling(cipher=PairwiseMasks(width=5)),
    "secure sums, p=0.5, T=2": lambda: Mingling(0.5, 2),
}


def variant(method: str, clients: int, rounds: int, seed: int) -> Result:
    """MB that a client sends and is sent in a round, seconds of a round, and how far the models are from IFCA's."""
    rng = Rng.seeded(seed)
    federation = LabelSets(clients, 5).split(Mnist5k().load(), rng.child("partition"))
    protocol = Ifca(rounds=rounds, clusters=5, choose_on=50, weighting="equal")
    plain = train(protocol, federation, fcnn(), seed=seed, evaluate_every=1000)
    defence = VARIANTS[method]()
    asked: list[float] = []
    outcome = train(
        protocol,
        federation,
        fcnn(),
        seed=seed,
        defence=defence,
        evaluate_every=1000,
        progress=lambda done, measured: asked.append(time.perf_counter()),
    )
    last = rounds - 1
    apart = max(float((outcome.models[name] - leaf).abs().max()) for name, leaf in plain.models.items())
    sent, received = (_training(counted) for counted in (outcome.traffic.up, outcome.traffic.down))
    return {
        "MB sent": sent / rounds / clients / 1e6,
        "MB received": received / rounds / clients / 1e6,
        "seconds a round": (asked[-2] - asked[1]) / last,  # the first request is the vote, the last is the end
        "largest difference from IFCA": apart,
    }


def _training(counted: Mapping[str, int]) -> int:
    """Bytes of all exchanges about training, without the vote on a start."""
    return sum(length for kind, length in counted.items() if Kind.of(kind).name == TRAIN.name)
