"""The page of reference is what the classes say."""

from __future__ import annotations

from pathlib import Path

from coterie.commands.reference import page
from coterie.config import registry

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"


def test_the_page_is_complete_and_up_to_date() -> None:
    text = page()
    assert PAGE.read_text() == text, "run `python -m coterie.commands.reference > docs/reference.md`"
    for names in (registry.PARTITIONS, registry.MODELS, registry.TRAINERS, registry.DEFENCES):
        assert all(f"### `{name}`" in text for name in names)
    assert "object at 0x" not in text
