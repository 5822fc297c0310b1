"""The public code of FedDP-KMeans, timed from outside: its own main(), and how long the parts of it took."""

from __future__ import annotations

import importlib
import importlib.util
import json
import pkgutil
import sys
import time
import types
from collections import defaultdict
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

Given = ParamSpec("Given")
Found = TypeVar("Found")

ROUNDS = (
    "FederatedOuterProduct",
    "FederatedServerPointWeighting",
    "FederatedInitFromProjectedCenters",
    "FederatedLloyds",
)
PARTS = {"make_data": "data", "get_mechanism": "planning", "post_evaluation": "figures"}


def importable() -> Any:
    """Its ``run`` module, with what has moved since it was written, and without a data set that is not used."""
    import pfl.callback  # type: ignore[import-not-found]

    for module in pkgutil.iter_modules(pfl.callback.__path__):
        found = importlib.import_module(f"pfl.callback.{module.name}")
        if hasattr(found, "AggregateMetricsToDisk"):
            pfl.callback.AggregateMetricsToDisk = found.AggregateMetricsToDisk
    if importlib.util.find_spec("folktables") is None:
        unused: Any = types.ModuleType("folktables")
        unused.ACSDataSource = unused.ACSIncome = unused.generate_categories = object
        sys.modules["folktables"] = unused
    return importlib.import_module("run")


def main() -> None:
    """Print the processor seconds of each part; fitting an optimum is none of them."""
    run, seconds = importable(), defaultdict[str, float](float)

    def timed(part: str, function: Callable[Given, Found]) -> Callable[Given, Found]:
        def call(*arguments: Given.args, **named: Given.kwargs) -> Found:
            started = time.process_time()
            try:
                return function(*arguments, **named)
            finally:
                seconds[part] += time.process_time() - started

        return call

    for name in ROUNDS:
        algorithm = getattr(run, name)
        algorithm.run = timed("rounds", algorithm.run)
    for name, part in PARTS.items():
        setattr(run, name, timed(part, getattr(run, name)))
    run.main()
    print(json.dumps(seconds))
