"""Property inference on clustered federations (Kim et al., RAID 2023): its tables and figures."""

from coterie.recipes.property_inference import acquisition, recipes

RECIPES = (*recipes.RECIPES, *acquisition.RECIPES)
