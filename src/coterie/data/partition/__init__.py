"""How examples are spread over clients. Each partition is a frozen value with ``split(examples, rng)``."""

from coterie.data.federation import VerticalFederation
from coterie.data.partition.arrivals import late, waves
from coterie.data.partition.dealing import Partition
from coterie.data.partition.features import ByTag, Vertical
from coterie.data.partition.gaussians import GaussianClients
from coterie.data.partition.groups import LabelPermutations, Rotation
from coterie.data.partition.labels import Dirichlet, Iid, LabelSets
from coterie.data.partition.property import Control, PropertySplit

__all__ = [
    "ByTag",
    "Control",
    "Dirichlet",
    "GaussianClients",
    "Iid",
    "LabelPermutations",
    "LabelSets",
    "Partition",
    "PropertySplit",
    "Rotation",
    "Vertical",
    "VerticalFederation",
    "late",
    "waves",
]
