"""Reconstruction inside a cluster and adaptive local noise (paper 004, Shi et al.): Table I and Figures 10 to 14.

``published`` has the paper's values, ``setups`` its federations, ``runs`` what the jobs do, ``tables`` and ``counted``
which runs stand where, and ``claims`` what is said of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from coterie.measure.exhibits import Chart, Gallery
from coterie.recipes.base import Recipe
from coterie.recipes.client_reconstruction import counted, tables
from coterie.recipes.client_reconstruction.claims import defence_claims, table_one_claims
from coterie.recipes.settings import Settings
from coterie.run.jobs import Job, Result

PAPER = "client_reconstruction"
DIFFERS = (
    "the x of Equations 2 to 4 is the attacker's own samples; the discriminator learns nothing but its class for fakes "
    "and is moved past what was tapped; the generator is also told to explain how the victim's model moved and to look "
    "like the attacker's own samples patch by patch; plain SGD; pixels in -1..1. Quick: 5,000 embedded digits of 14 by "
    "14 pixels, 400 a client, 40 rounds, clusters as the paper has them and not searched for; Figure 10 with twice as "
    "many steps of the generator, of twice as many pictures, and told to look like the attacker's own samples, turned "
    "by the angle at which they explain best how the victim's model moved"
)
EMBEDDED = "embedded digits; Chinese MNIST for the rows of CMNIST (with --data)"


def _one(settings: Settings, results: Mapping[str, Result]) -> list[Chart | Gallery]:
    cells = [one for one in tables.table_one(settings) if one.key.has(data="MNIST")]
    return [
        *tables.gallery(cells, "By how much is tapped", settings, results),
        *tables.by_share(settings, results),
        *tables.losses(settings, results),
        tables.loss_functions(),
    ]


def _ten(settings: Settings, results: Mapping[str, Result]) -> list[Chart | Gallery]:
    cells = tables.figure_ten(settings)
    return [
        *tables.gallery(cells, "Client by client", settings, results),
        *tables.over_rounds(cells, settings, results),
    ]


def _twelve_jobs(settings: Settings) -> list[Job]:
    return [*tables.jobs(tables.figure_twelve(settings), settings), *counted.cost_jobs(settings)]


def _twelve(settings: Settings, results: Mapping[str, Result]) -> list[Chart | Gallery]:
    shown = [one for one in tables.figure_twelve(settings) if tables.is_shown(one.key)]
    return [
        *tables.radar(settings, results, counted.costs(settings, results)),
        *tables.gallery(shown, "Under each defence", settings, results),
    ]


RECIPES = (
    Recipe(
        PAPER,
        "I",
        "Similarity by how much of the victim is tapped, beside what else would score",
        lambda settings: tables.jobs(tables.table_one(settings), settings),
        lambda settings, results: tables.rows(tables.table_one(settings), settings, results),
        table_one_claims,
        EMBEDDED,
        DIFFERS,
        "similarity",
        "attacks",
        _one,
    ),
    Recipe(
        PAPER,
        "Fig 10",
        "Each client of the cluster in turn, and the passive phase alone",
        lambda settings: tables.jobs(tables.figure_ten(settings), settings),
        lambda settings, results: tables.rows(tables.figure_ten(settings), settings, results),
        needs=EMBEDDED,
        differs=DIFFERS,
        unit="similarity",
        charts=_ten,
        shares="attacks",
    ),
    Recipe(
        PAPER,
        "Fig 12",
        "Three defences and one with a guarantee: similarity, accuracy and what they cost (Figures 12 and 13)",
        _twelve_jobs,
        lambda settings, results: tables.rows(tables.figure_twelve(settings), settings, results),
        defence_claims,
        EMBEDDED,
        DIFFERS,
        "similarity",
        "attacks",
        _twelve,
    ),
    Recipe(
        PAPER,
        "Fig 14",
        "What a round of one client costs, the local generator counted",
        counted.cost_jobs,
        counted.cost_rows,
        counted.cost_claims,
        EMBEDDED,
        "the paper leaves the local generator out, which its Algorithm 3 needs",
        shares="attacks",
    ),
    Recipe(
        PAPER,
        "inversion",
        "Gradient inversion by batch, local steps and training: a baseline of the paper's related work",
        counted.inversion_jobs,
        counted.inversion_rows,
        counted.inversion_claims,
        EMBEDDED,
        "28 by 28 pixels, plain SGD, everybody has as many pictures as its update is of",
        "SSIM",
        "inversion",
        counted.inversion_gallery,
    ),
)
