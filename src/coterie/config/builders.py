"""Objects that a configuration names by words where Python passes objects."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.defences.blinding import Blinding
from coterie.defences.ckks_sums import CkksSums
from coterie.defences.mingling.defence import RATE, Mingling
from coterie.defences.mingling.fuzzy_tags import ClusterKeys, Counting, TagRule
from coterie.defences.noisy_sums.central import CentralNoise
from coterie.defences.noisy_sums.distributed import DistributedNoise
from coterie.defences.noisy_sums.local import LocalNoise
from coterie.defences.noisy_sums.plan import NoisySums
from coterie.defences.private_grid import PrivateGrid
from coterie.defences.proven_sums import ProvenSums
from coterie.defences.randomised_response.channel import Channel
from coterie.defences.randomised_response.defence import PerturbOnce, RandomisedResponse
from coterie.defences.randomised_response.mechanisms import LEVELS, MECHANISMS, gap_rr
from coterie.defences.robust import Krum, Median, NormClip, TrimmedMean
from coterie.defences.secure_sums import PairwiseMasks, SecureSums, Smallest
from coterie.errors import InvalidInput, require, require_used
from coterie.flow.guard import Defence
from coterie.flow.protocol import AnyProtocol
from coterie.flow.stack import Stack, member_of
from coterie.learn.clusters.kmeans import weighted_kmeans
from coterie.privacy.guarantee import DELTA, Level
from coterie.protocols.base import Trainer
from coterie.protocols.clusterings.base import Clusterer
from coterie.protocols.clusterings.feddp_kmeans import FedDPKMeans
from coterie.protocols.clusterings.federated_lloyd import FederatedLloyd
from coterie.protocols.clusterings.steps import Stepping
from coterie.protocols.clusterings.weighted_grid import WeightedGrid
from coterie.rng import Rng
from coterie.seal.cipher import Cipher
from coterie.seal.ckks import Ckks
from coterie.seal.mock import MockCipher


def mingling(
    of: Releasing | None = None,
    rate: float | None = None,
    threshold: int | None = None,
    exact: bool | None = None,
    cipher: Literal["secure_sums", "ckks", "mock"] = "secure_sums",
    counting: Literal["identities", "decoys"] = "identities",
    group_tags: int | None = None,
    unit: float = 1.0,
    smallest: int = 3,
    spare: int = 0,
    neighbours: int | None = None,
    width: int = 8,
    members: int = 512,
    partition: bool | None = None,
    signed: bool = False,
    least: int = 0,
) -> Mingling:
    """``exact`` is true under secure sums and false under the paper's own cipher, unless it is given.

    Without ``rate``, ``threshold`` (the paper's p and T) and ``group_tags`` everybody joins every cluster under secure
    sums; else they are 0.5 and 2, unless they are given.
    ``mock`` opens to the same bits as ``ckks`` and protects nothing: for simulations only. ``group_tags`` is the number
    of clusters, where identity sets shall come from the group itself; without it they come from coins. ``members`` is
    how many ciphertexts a sum under ``ckks`` or its mock may have, ``least`` how many clients must be in secure sums.
    """
    if cipher == "secure_sums":
        require_used(f"cipher={cipher!r}", members=(members, 512))
    else:
        masks = {"neighbours": (neighbours, None), "width": (width, 8), "signed": (signed, False), "least": (least, 0)}
        require_used(f"cipher={cipher!r}", **masks)
    _require_enough(least, of)
    ckks = Ckks(members=members)
    ciphers: dict[str, Cipher | PairwiseMasks] = {
        "secure_sums": PairwiseMasks(neighbours, least=least, width=width, signed=signed),
        "ckks": ckks,
        "mock": MockCipher(ckks),
    }
    counts = Counting.DECOYS if counting == "decoys" else Counting.IDENTITIES
    keys = None
    if group_tags is not None:
        keys = ClusterKeys.generate(TagRule(group_tags, RATE if rate is None else rate), Rng.seeded(0))
    return Mingling(
        rate,
        threshold,
        counts,
        cipher == "secure_sums" if exact is None else exact,
        ciphers[cipher],
        cluster_keys=keys,
        unit=unit,
        smallest=Smallest(smallest, spare),
        partition=partition,
    )


def secure_sums(
    of: Releasing | None = None,
    neighbours: int | None = None,
    width: int = 8,
    signed: bool = False,
    least: int = 0,
) -> SecureSums:
    """``neighbours``: with how many others each client shares masks; all, if left out. ``width``: bytes of a word.

    ``signed``: clients sign their keys, and compare what they were told. ``least``: how many must be in a sum.
    """
    _require_enough(least, of)
    return SecureSums(PairwiseMasks(neighbours, least=least, width=width, signed=signed))


def _require_enough(least: int, of: Releasing | None) -> None:
    """Of a federation whose sums would never open, nothing is trained."""
    if of is None or of.clients is None:
        return
    asked = of.protocol.asked_together(of.clients) if isinstance(of.protocol, Trainer) else of.clients
    require(
        least <= asked,
        "least",
        least,
        f"must be at most {asked}: so many clients are asked in a round, and with fewer than least no sum opens",
    )


# -- parties that hold columns -------------------------------------------------------------------------------------

Mechanism = Literal["gap_rr", "generalised", "ordered", "piecewise", "square_wave", "laplace"]


def randomised_response(
    mechanism: Mechanism = "piecewise",
    epsilon: float = 1.0,
    levels: int = LEVELS,
    ratio: float = 0.5,
    bound: float | None = None,
    memoised: bool = False,
) -> RandomisedResponse:
    """``epsilon`` is one answer's, and a record has none (``perturb_once`` has); ``ratio`` is Gap-RR's alone."""
    return RandomisedResponse(_channel(mechanism, epsilon, levels, ratio), bound, memoised)


def perturb_once(
    mechanism: Mechanism = "piecewise",
    epsilon: float = 1.0,
    levels: int = LEVELS,
    ratio: float = 0.5,
    low: float = 0.0,
    high: float = 1.0,
    marked: list[list[int]] | None = None,
) -> PerturbOnce:
    """``epsilon`` is a value's, and ``low`` and ``high`` are public; ``marked``: only these of each party's columns."""
    chosen = None if marked is None else tuple(map(tuple, marked))
    return PerturbOnce(_channel(mechanism, epsilon, levels, ratio), low, high, chosen)


def _channel(mechanism: Mechanism, epsilon: float, levels: int, ratio: float) -> Channel:
    if mechanism == "gap_rr":
        return gap_rr(epsilon, levels, ratio)
    require_used(f"mechanism={mechanism!r}", ratio=(ratio, 0.5))
    return MECHANISMS[mechanism](epsilon, levels)


def blinded_sums(spread: float = 4.0, permute: bool = True, signed: bool = False) -> Stack:
    """Masked sums of numbers that are blinded by what the parties share; ``signed`` as of masked sums."""
    return Stack(Blinding(spread, permute), SecureSums(PairwiseMasks(signed=signed)))


def ckks_sums(members: int = 16) -> CkksSums:
    """Sums under the parties' key, of which the server is told where the least are; ``members``: parties at most."""
    return CkksSums(members)


def proven_sums(
    bound: float = 1.0, bits: int = 8, sampled: int = 16, width: int = 8, signed: bool = False
) -> ProvenSums:
    """Masked sums on 2^``bits`` levels up to the public ``bound``; ``sampled`` numbers of each request are proven."""
    return ProvenSums(PairwiseMasks(width=width, signed=signed), bound, bits, sampled)


def robust(
    rule: Literal["median", "trimmed_mean", "krum", "mean"] = "median",
    bound: float | None = None,
    share: float = 0.2,
    bad: int = 1,
    keep: int | None = None,
) -> Defence:
    """How models are averaged, and by how much a client may move one: ``bound``, in L2; as far as it likes if left out.

    ``share`` is the trimmed mean's; ``bad`` and ``keep`` are Krum's.
    """
    if rule != "trimmed_mean":
        require_used(f"rule={rule!r}", share=(share, 0.2))
    if rule != "krum":
        require_used(f"rule={rule!r}", bad=(bad, 1), keep=(keep, None))
    rules: dict[str, Defence] = {
        "median": Median(),
        "trimmed_mean": TrimmedMean(share),
        "krum": Krum(bad, keep),
        "mean": TrimmedMean(0.0),
    }
    return rules[rule] if bound is None else Stack(NormClip(bound), rules[rule])


# -- clusterings, which start from something public ----------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """What is known before the first request, and to everybody: the points of ``[public]``, if there are any."""

    points: Tensor | None  # (points, features)
    features: int
    rng: Rng


def federated_lloyd(
    known: Known,
    clusters: int = 10,
    level: Level | None = None,
    steps: int = 20,
    bound: float | None = None,
    share: float | None = None,
) -> FederatedLloyd:
    """From k-means on the public points."""
    if known.points is None:
        raise InvalidInput(
            "trainer 'federated_lloyd' starts from public points; add [public] with rows = 200 or a file"
        )
    require(
        len(known.points) >= clusters,
        "public rows",
        len(known.points),
        f"must be at least {clusters}, one a cluster; set more aside in [public]",
    )
    weights = torch.ones(len(known.points))
    centres = weighted_kmeans(known.points, weights, clusters, known.rng.child("centres")).centres[0]
    return FederatedLloyd(clusters, level, steps=steps, bound=bound, share=share, centres=centres)


def feddp_kmeans(
    known: Known,
    clusters: int = 10,
    level: Level | None = Level.RECORD,
    steps: int = 1,
    bound: float | None = None,
    share: float | None = None,
    least: float = 3.0,
) -> FedDPKMeans:
    """From the public points; without any, it looks about from the origin."""
    middle = torch.zeros(known.features) if known.points is None else None
    return FedDPKMeans(
        clusters, level, steps=steps, bound=bound, share=share, server_data=known.points, middle=middle, least=least
    )


# -- noise that is planned for the sums of one protocol ------------------------------------------------------------

Place = Literal["server", "shared", "client"]


@dataclass(frozen=True)
class Releasing:
    """What is run, by how many clients, and at which delta it is to be accounted for."""

    protocol: AnyProtocol
    clients: int | None = None  # None: not known yet
    delta: float = DELTA


def noisy_sums(
    of: Releasing | None,
    epsilon: float = 1.0,
    added_by: Place = "server",
    colluders: int | None = None,
    dropouts: int = 0,
    masks: bool = False,
    signed: bool = False,
) -> NoisySums:
    """Noise for each sum that the protocol releases, which together cost ``epsilon``; who adds it must be trusted.

    ``colluders``, ``dropouts``, ``masks`` and whether these are ``signed`` are for noise that clients share. Where a
    protocol bounds nothing there is nothing to plan: the defence then says that it does not fit.
    """
    kind: type[NoisySums] = {"server": CentralNoise, "shared": DistributedNoise, "client": LocalNoise}[added_by]
    settings: dict[str, Any] = {}
    if kind is DistributedNoise:
        clients = of.clients if of is not None and of.clients is not None else (colluders or 0) + dropouts + 1
        settings = {
            "clients": clients,
            "colluders": colluders,
            "dropouts": dropouts,
            "masks": PairwiseMasks(signed=signed) if masks else None,
        }
    else:
        shared = {"colluders": colluders, "dropouts": dropouts, "masks": masks, "signed": signed}
        require(not any(shared.values()), f"added_by={added_by!r} with", shared, "is for added_by = 'shared' alone")
    if of is None or not isinstance(of.protocol, Clusterer) or not of.protocol.level or not of.protocol.releases():
        return kind({}, **settings)
    return kind.within(epsilon, of.delta, of.protocol.releases(), of.protocol.level, **settings)


def private_grid(of: Releasing | None, epsilon: float = 8.0) -> PrivateGrid:
    """Noise and phantoms for all that the parties of a weighted grid tell, which together cost ``epsilon``.

    The grid's own bounds hold for it. Elsewhere there is nothing to plan: the defence then says that it does not fit.
    """
    if of is None or not isinstance(of.protocol, WeightedGrid):
        return PrivateGrid()
    grid = of.protocol
    return PrivateGrid.planned(epsilon, of.delta, grid.run_of(of.clients or 1, of.delta), grid.low, grid.high)


def aware_of(protocol: AnyProtocol, defence: Defence) -> AnyProtocol:
    """A protocol that goes by how noisy its sums will be is told so: everybody knows the plan."""
    noise = member_of(defence, NoisySums)
    return protocol if noise is None or not isinstance(protocol, Stepping) else replace(protocol, planned=noise.noise)
