"""MingledPie (Zhang et al., NDSS 2025): its tables and figures, ours beside the published values."""

from coterie.recipes.mingledpie import cost, privacy, utility

RECIPES = (*privacy.RECIPES, *utility.RECIPES, *cost.RECIPES)
