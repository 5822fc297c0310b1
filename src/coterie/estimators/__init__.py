"""Federated clustering in the manner of scikit-learn: of clients that hold rows, and of parties that hold columns."""

from coterie.estimators.columns import VerticalKMeans
from coterie.estimators.rows import TRUSTS, FedDPKMeans, FederatedLloyd, KFed, federate, run_clustering

__all__ = ["TRUSTS", "FedDPKMeans", "FederatedLloyd", "KFed", "VerticalKMeans", "federate", "run_clustering"]
