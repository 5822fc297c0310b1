"""One package a paper, one recipe a table or figure. A new package with a tuple ``RECIPES`` is found by itself."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from coterie.recipes.base import Recipe


def all_recipes() -> list[Recipe]:
    found: list[Recipe] = []
    for module in pkgutil.iter_modules(__path__):
        if module.ispkg:
            found += import_module(f"{__name__}.{module.name}").RECIPES
    return sorted(found, key=lambda recipe: (recipe.paper, recipe.table))
