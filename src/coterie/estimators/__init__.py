"""Federated clustering in the manner of scikit-learn: of clients that hold rows, and of parties that hold columns."""

from coterie.estimators.clustering import federate, run_clustering
from coterie.estimators.columns import VerticalKMeans
from coterie.estimators.private import TRUSTS
from coterie.estimators.rows import FedDPKMeans, FederatedLloyd, KFed

__all__ = ["TRUSTS", "FedDPKMeans", "FederatedLloyd", "KFed", "VerticalKMeans", "federate", "run_clustering"]
