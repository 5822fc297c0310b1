"""Privacy in clustered federated learning and federated clustering.

The public names, each imported when it is first used: ``import coterie`` alone costs nothing.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Threads that wait for each other by spinning collapse on a machine that does something else too (a FedAvg round takes
# six times as long), and win a tenth on an idle one. Read when torch is loaded (``learn/threads.py`` is for the case
# that it already was); whoever set it otherwise keeps that.
TORCH_CAME_FIRST = "torch" in sys.modules and "OMP_WAIT_POLICY" not in os.environ
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

_HOMES = {
    "coterie.attacks.acquisition": ("ModelAcquisition",),
    "coterie.attacks.distance_geometry": ("DistanceGeometry",),
    "coterie.attacks.placing": ("Placing",),
    "coterie.attacks.profiling": ("IdentityProfiling",),
    "coterie.attacks.profiling_by_model": ("SensitivityProfiling",),
    "coterie.attacks.property": ("PassiveProperty",),
    "coterie.attacks.property_active": ("ActiveProperty",),
    "coterie.attacks.updates": ("Imitation",),
    "coterie.audits": ("Audit",),
    "coterie.estimators": ("FedDPKMeans", "FederatedLloyd", "KFed", "VerticalKMeans"),
    "coterie.data.federation": ("Examples", "Federation", "Schedule", "Shards", "VerticalFederation"),
    "coterie.data.lazy": ("LazyFederation",),
    "coterie.data.provenance": ("Public",),
    "coterie.data.partition": (
        "ByTag",
        "Dirichlet",
        "Iid",
        "LabelPermutations",
        "LabelSets",
        "PropertySplit",
        "Rotation",
        "Vertical",
    ),
    "coterie.defences.authenticated": ("Authenticated",),
    "coterie.defences.blinding": ("Blinding",),
    "coterie.defences.noisy_sums.central": ("CentralNoise",),
    "coterie.seal.ckks": ("Ckks",),
    "coterie.defences.noisy_sums.distributed": ("DistributedNoise",),
    "coterie.defences.dpsgd": ("DpSgd",),
    "coterie.defences.noisy_sums.local": ("LocalNoise",),
    "coterie.defences.secure_sums": ("PairwiseMasks", "SecureSums", "Smallest"),
    "coterie.defences.randomised_response.defence": ("PerturbOnce", "RandomisedResponse"),
    "coterie.defences.mingling.defence": ("Mingling",),
    "coterie.seal.mock": ("MockCipher",),
    "coterie.defences.regularise": ("L2", "Dropout"),
    "coterie.defences.robust": ("Krum", "Median", "NormClip", "TrimmedMean"),
    "coterie.errors": ("BudgetSpent", "CoterieError", "InvalidInput", "NoiseDrowned", "NotPermitted"),
    "coterie.privacy.guarantee": ("Guarantee", "Level", "Neighbours", "Trust"),
    "coterie.flow.ask": ("Ask", "Replies", "Sums"),
    "coterie.flow.cohort": ("Cohort",),
    "coterie.flow.guard": ("ClientGuard", "Defence", "ServerGuard"),
    "coterie.flow.protocol": ("Protocol", "Server"),
    "coterie.flow.ring": ("Ring",),
    "coterie.flow.stack": ("Stack",),
    "coterie.flow.turn": ("Roots", "Turn"),
    "coterie.rng": ("Rng",),
    "coterie.learn.models.dense": ("Dense",),
    "coterie.learn.models.model": ("Model", "as_model"),
    "coterie.learn.models.bundled": ("Cnn", "FaceCnn", "Gru", "ResNet18", "fcnn"),
    "coterie.learn.optimisers": ("Decay",),
    "coterie.learn.sgd": ("Local",),
    "coterie.measure.groups": ("Clusters",),
    "coterie.measure.judge": ("judge",),
    "coterie.measure.numerics.audit": ("NumericsAudit", "audit_numerics"),
    "coterie.measure.numerics.mechanism": ("Mechanism",),
    "coterie.measure.numerics.ours": ("audit_defence",),
    "coterie.protocols.cosine_kmeans": ("CosineKMeans",),
    "coterie.protocols.fedavg": ("FedAvg",),
    "coterie.protocols.fedem": ("FedEM",),
    "coterie.protocols.fedprox": ("FedProx",),
    "coterie.protocols.ifca": ("Ifca",),
    "coterie.protocols.local_only": ("LocalOnly",),
    "coterie.protocols.sattler": ("Sattler",),
    "coterie.protocols.server_steps": ("ServerStep",),
    "coterie.protocols.starts": ("Given", "Pretrained", "Start"),
    "coterie.run.folder": ("RunFolder",),
    "coterie.measure.stopping": ("Patience",),
    "coterie.run.training": ("Outcome", "train"),
    "coterie.privacy.ledger": ("Ledger", "Spend"),
    "coterie.wire.messages": ("Contributions", "Down", "Kind", "Published", "Up"),
    "coterie.wire.tape": ("Tape",),
    "coterie.wire.view": ("ThreatModel", "View"),
}
_home = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_home)


def __getattr__(name: str) -> Any:
    if name == "audit":
        return import_module("coterie.audit")  # a package that can be called
    if name not in _home:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    return getattr(import_module(_home[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__", "audit"]
