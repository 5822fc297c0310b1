"""Vertical federated clustering (Fan and Guo 2025): Table 1, Figures 5 and 6, and what its server reads.

``published`` has the paper's values, ``runs`` what the jobs do, ``tables`` which runs stand in each, and ``claims``
what is said of them. F is weighted as in Eq. 11 to 15, with clusters matched to classes one to one.
"""

from coterie.recipes.base import Recipe
from coterie.recipes.vertical_kmeans import tables
from coterie.recipes.vertical_kmeans.claims import (
    noise_claims,
    protection_claims,
    ratio_claims,
    recognition_claims,
    recovery_claims,
    successive_claims,
    total_claims,
)

PAPER = "vertical_kmeans"
EMBEDDED = "nothing: the data are generated, or come with installed libraries"
DIFFERS = (
    "differences are squared (the paper adds roots), centres start on records, columns are put on [0, 1], and Q, which "
    "the paper leaves open, is 50; forge and wave are drawn after their book; iris, wine and breast cancer stand in "
    "for the UCI set that it does not name"
)
MEASURED = (
    "the paper lets experts judge protection and does not say what attacks do to the protocol; here gains are "
    "measured, breast cancer stands for its UCI set, DP is Laplace noise at epsilon 1 a value, HE masked sums, ZKP "
    "proofs of range on 64 values a message"
)

RECIPES = (
    Recipe(
        PAPER, "Table 1", "F under Gap-RR", tables.TABLE_1.jobs, tables.TABLE_1.rows, ratio_claims, EMBEDDED, DIFFERS,
        unit="F", shares="utility-1",
    ),
    Recipe(
        PAPER, "Fig 5", "F over the number of discrete values", tables.FIGURE_5.jobs, tables.FIGURE_5.rows,
        needs=EMBEDDED, differs=DIFFERS, unit="F", shares="utility-5",
    ),
    Recipe(
        PAPER, "Fig 6", "F over epsilon and l_ratio", tables.FIGURE_6.jobs, tables.FIGURE_6.rows, ratio_claims,
        EMBEDDED, DIFFERS, unit="F", shares="utility-6",
    ),
    Recipe(
        PAPER, "Table 2", "What a protection leaves of five attacks (1: nothing)", tables.PROTECTION.jobs,
        tables.PROTECTION.rows, protection_claims, EMBEDDED, MEASURED, unit="1 - gain", shares="tampering",
    ),
    Recipe(
        PAPER, "Table 2, F", "F of recognising the messages that were changed, from mild to strong",
        tables.RECOGNITION.jobs, tables.RECOGNITION.rows, recognition_claims, EMBEDDED, MEASURED, unit="F",
    ),
    Recipe(
        PAPER, "totals", "F, and what the server reads, over the sum of what is told of a record", tables.TOTALS.jobs,
        tables.TOTALS.rows, total_claims, EMBEDDED,
        "not in the paper: five steps, two parties; a total is a record's price with perturb_once and the weighted "
        "grid (at delta 1e-6); of noise on every number it leaves out what others' answers tell of the record, and "
        "Gap-RR has no epsilon a number either; recovery is from the totals with 60 known records", unit="F",
    ),
    Recipe(
        PAPER, "recovery", "What the server reads, by what it sees and how many records it knows", tables.RECOVERY.jobs,
        tables.RECOVERY.rows, recovery_claims, "digits; ACSIncome with --data", "announced in the paper, not spelt out",
        unit="correlation",
    ),
    Recipe(
        PAPER, "successive", "The part of all records that is read exactly because they moved", tables.SUCCESSIVE.jobs,
        tables.SUCCESSIVE.rows, successive_claims, "digits, breast cancer; ACSIncome with --data",
        "not in the paper: Yang, Luo and Li (2025), for sums of federated Lloyd and for centres that parties show",
        unit="part of the records",
    ),
    Recipe(
        PAPER, "noise", "What the server reads under noise, with 60 records known", tables.UNDER_NOISE.jobs,
        tables.UNDER_NOISE.rows, noise_claims, EMBEDDED, "not in the paper; epsilon is a value's", unit="correlation",
    ),
)  # fmt: skip
