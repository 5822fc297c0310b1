"""FedDP-KMeans against k-FED (Scott et al.): Figures 1 to 7 and Section 5.3, ours beside the published values.

What privacy costs in federated k-means, and what attacks on it find. Accuracy is the share of points in the majority of
their cluster, as the public code counts it. ``published`` has the paper's values; ``costs``, ``reconstructions`` and
``memberships`` what the jobs do, on the data of ``problems``; ``tables`` which runs stand in each figure; ``claims``
what is said of them.
"""

from collections.abc import Callable, Sequence
from functools import partial

from coterie.measure.reproduced import Claim, Rows
from coterie.recipes.base import Recipe
from coterie.recipes.federated_kmeans import tables
from coterie.recipes.federated_kmeans.claims import (
    crossing_claims,
    excess_claims,
    membership_claims,
    reconstruction_claims,
    reference_claims,
)
from coterie.recipes.federated_kmeans.tables import Figure, Histogram

PAPER = "federated_kmeans"
NORMALISED = (
    "outer products and histograms have norm 1 a unit, all noise is Gaussian, bounds are estimated and paid for, and "
    "what is released is shrunk towards the server's own points"
)
GENERATED = "nothing: the data are generated"
CENSUS = "ACSIncome (with --data)"


def _figure(
    table: str, title: str, figure: Figure, claims: Callable[[Rows], Sequence[Claim]], differs: str = ""
) -> Recipe:
    needs = CENSUS if figure.data == "census" else GENERATED
    departs = "; ".join(filter(None, [NORMALISED, differs]))
    return Recipe(PAPER, table, title, figure.jobs, figure.rows, claims, needs, departs, shares="costs", enough=5)


def _histogram(table: str, title: str, histogram: Histogram) -> Recipe:
    needs = CENSUS if histogram.data == "census" else GENERATED
    differs = (
        "the attack is on the protocol as it ran, under each trust model, and cosines are about the published centre; "
        "small federations, with the bound set by hand"
    )
    return Recipe(
        PAPER, table, title, histogram.jobs, histogram.rows, reconstruction_claims, needs, differs, unit="cosine"
    )


RECIPES = (
    _figure("Fig 1", "Gaussian mixtures, record level", tables.FIGURE_1, partial(crossing_claims, "record")),
    _figure(
        "Fig 2", "Gaussian mixtures, client level", tables.FIGURE_2, partial(crossing_claims, "client", crossing=1.5)
    ),
    _figure(
        "Fig 3",
        "Census data, record level, and client level, at which the paper's runs fail",
        tables.FIGURE_3,
        lambda rows: [*crossing_claims("record", rows), *crossing_claims("client", rows)],
        "two states, dealt to clients at random; the paper has 51 states, a client each",
    ),
    _figure("Fig 4", "What each level costs", tables.FIGURE_4, lambda rows: ()),
    _figure(
        "best",
        "The best at epsilon 0.5, 1 and 3",
        tables.BEST,
        reference_claims,
        "the client level's shares are tuned",
    ),
    Recipe(
        PAPER,
        "excess",
        "What epsilon 1 costs at record level, beside scikit-learn's k-means on all points together",
        tables.excess_jobs,
        tables.excess_rows,
        excess_claims,
        "nothing for mixtures and skewed clusters; " + CENSUS,
        "not in the paper: no public points, and no bound that is set by hand",
        enough=5,
    ),
    _histogram("Fig 5", "Rebuilding a record, Gaussian mixtures", Histogram("gaussians", "record", 20, 100)),
    _histogram("Fig 6", "Rebuilding a client's mean, Gaussian mixtures", Histogram("gaussians", "client", 100, 50)),
    _histogram("Fig 7", "Rebuilding a record, census data", Histogram("census", "record", 51, 0)),
    Recipe(
        PAPER,
        "Sec 5.3",
        "Membership of one record, and the epsilon that it proves",
        tables.membership_jobs,
        tables.membership_rows,
        membership_claims,
        GENERATED,
        "the paper compares two runs of one seed each and has no false positive rate; the record lies far out",
    ),
)
