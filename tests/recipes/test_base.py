"""What all recipes share."""

from __future__ import annotations

import pytest

from coterie.errors import InvalidInput
from coterie.recipes.base import parse_seeds


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", (0, 1, 2)), ("5-7", (5, 6, 7)), ("2,4", (2, 4)), ("0-0", (0,)), ("7,", None)]
)
def test_seeds_are_counted_or_named(text: str, seeds: tuple[int, ...] | None) -> None:
    if seeds is None:
        with pytest.raises(InvalidInput, match="how many"):
            parse_seeds(text)
    else:
        assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "0", "x", "7-5", "3,3", "-1", "1-", "1.5"])
def test_seeds_that_name_none_or_one_twice_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="seeds"):
        parse_seeds(text)
