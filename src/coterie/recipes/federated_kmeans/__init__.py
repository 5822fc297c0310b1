"""FedDP-KMeans against k-FED (Scott et al.): its figures, ours beside the published values."""

from coterie.recipes.federated_kmeans.recipes import RECIPES as RECIPES
