"""Whether a model and the data belong together, tried on a few examples before anything long begins."""

from __future__ import annotations

from coterie.data.federation import Examples
from coterie.errors import CoterieError, InvalidInput, require
from coterie.learn.models.model import Model

FEW = 4  # examples


def require_fit(model: Model, examples: Examples, name: str, seed: int = 0) -> None:
    """Raise where a layer is of another size than the data, or the outputs are not one a class."""
    few, what = examples.x[:FEW], f"model {name!r}"
    try:
        logits = model.logits(model.init(seed), few)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, CoterieError):
            raise
        raise InvalidInput(
            f"{what} fails on examples of shape {tuple(few.shape[1:])}: {type(error).__name__}: {error}; "
            "give it the data's shape"
        ) from error
    expected = (len(few), examples.classes)
    require(
        tuple(logits.shape) == expected,
        f"outputs of {what}",
        tuple(logits.shape),
        f"must be (examples, classes) = {expected}",
    )
    if not bool(logits.isfinite().all()):
        raise InvalidInput(f"{what} gives NaN or infinity for examples that are finite; mend its forward pass")
