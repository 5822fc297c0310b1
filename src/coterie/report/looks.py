"""How series look: a colour, a shape and a dash each, so that none of the three is needed alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from coterie.measure.findings import UNDEFENDED
from coterie.report.markup import Html, element

COLOURS, SHAPES = 8, 7

Slots = Mapping[str, int]


def slots_of(used: Iterable[tuple[str, str]]) -> dict[str, int]:
    """One look for each defence in all figures, from (family, defence); the first is for the undefended federation.

    No two defences look alike, and those of one family, which share figures, differ in colour too.
    """
    families: dict[str, set[str]] = {}
    for family, defence in used:
        families.setdefault(defence, set()).add(family)
    slots = {UNDEFENDED: 0}
    for defence, mine in families.items():
        beside = {slots[name] % COLOURS for name, theirs in families.items() if name in slots and mine & theirs}
        free = (slot for slot in range(1, COLOURS * SHAPES) if slot not in slots.values() and slot % COLOURS)
        chosen = next((slot for slot in free if slot % COLOURS not in beside), len(slots))
        slots.setdefault(defence, chosen)
    return slots


def slots_in(names: Sequence[str], slots: Slots) -> list[int]:
    """The looks of a figure's series: those of defences if all are, else in turn."""
    return [slots[name] for name in names] if all(name in slots for name in names) else list(range(len(names)))


def shape(slot: int, x: float, y: float, r: float) -> str:
    """Circle, square, triangle, diamond, triangle downward, cross, plus: alike in area, told apart without colour."""
    draw: Sequence[Callable[[float, float, float], str]] = (
        lambda x, y, r: (
            f"M{x - r:.1f} {y:.1f}a{r:.1f} {r:.1f} 0 1 0 {2 * r:.1f} 0a{r:.1f} {r:.1f} 0 1 0 {-2 * r:.1f} 0Z"
        ),
        lambda x, y, r: _polygon(x, y, r * 0.9, [(-1, -1), (1, -1), (1, 1), (-1, 1)]),
        lambda x, y, r: _polygon(x, y, r * 1.2, [(0, -1), (0.95, 0.75), (-0.95, 0.75)]),
        lambda x, y, r: _polygon(x, y, r * 1.25, [(0, -1), (1, 0), (0, 1), (-1, 0)]),
        lambda x, y, r: _polygon(x, y, r * 1.2, [(0, 1), (0.95, -0.75), (-0.95, -0.75)]),
        lambda x, y, r: _polygon(x, y, r, _CROSS),
        lambda x, y, r: _polygon(x, y, r * 1.1, _PLUS),
    )
    return draw[slot % SHAPES](x, y, r)


_PLUS = [
    (-0.35, -1),
    (0.35, -1),
    (0.35, -0.35),
    (1, -0.35),
    (1, 0.35),
    (0.35, 0.35),
    (0.35, 1),
    (-0.35, 1),
    (-0.35, 0.35),
    (-1, 0.35),
    (-1, -0.35),
    (-0.35, -0.35),
]
_CROSS = [((a - b) * 0.75, (a + b) * 0.75) for a, b in _PLUS]


def _polygon(x: float, y: float, r: float, corners: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x + a * r:.1f} {y + b * r:.1f}" for a, b in corners) + "Z"


def swatch(slot: int) -> Html:
    """A series' look, for legends."""
    return element(
        "svg",
        element("path", class_=f"line c{slot % COLOURS}", d="M1 7L27 7"),
        element("path", class_=f"mark c{slot % COLOURS}", d=shape(slot, 14, 7, 4)),
        class_="swatch",
        viewBox="0 0 28 14",
        aria_hidden="true",
    )


def reference_swatch() -> Html:
    return element(
        "svg",
        element("path", class_="reference", d="M1 7L27 7"),
        class_="swatch",
        viewBox="0 0 28 14",
        aria_hidden="true",
    )
