"""Pieces that several parts of the report use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coterie.measure.claims import Outcome
from coterie.measure.findings import Finding
from coterie.measure.intervals import Interval
from coterie.measure.verdicts import Decision
from coterie.report.markup import Html, element, join
from coterie.report.values import capital, ends, more_needed, number

OUTCOMES = {Outcome.HOLDS: ("good", "✓"), Outcome.NOT_REFUTED: ("open", "○"), Outcome.VIOLATED: ("bad", "✕")}


def section(name: str, title: str, lead: str, *content: str | None, needs: str | None = None) -> Html:
    """``needs`` selects what a filter must leave visible for the part to have anything to say."""
    nothing = element("p", "Nothing here matches the filter.", class_="nothing") if needs else None
    return element(
        "section",
        element("h2", title, id=f"{name}-title"),
        element("p", lead, class_="lead") if lead else None,
        *content,
        nothing,
        id=name,
        aria_labelledby=f"{name}-title",
        data_section=needs,
    )


def badge(kind: str, glyph: str, text: str) -> Html:
    """Said by colour, by glyph and by word."""
    return element("span", element("span", glyph, aria_hidden="true"), " ", text, class_=f"badge {kind}")


def told(one: Finding) -> str:
    """The verdict in few letters; of what is undecided what would decide, or why no more of the same would."""
    why = _hindrance(one.decision)
    return f"{one.verdict.value}: {why}" if why else f"{one.verdict.value} {more_needed(one)}".strip()


def _hindrance(said: Decision) -> str:
    """What keeps it undecided, where that is not the width of its interval."""
    reasons = (
        (said.fooled, "not above its control"),
        (said.trivial, "nothing to tell apart"),
        (said.silent, "the same of all"),
        (said.turned, "wrong more often than a guess"),
        (said.beneath, "below chance, and above its control"),
    )
    return next((why for holds, why in reasons if holds), "")


def outcome_badge(outcome: Outcome) -> Html:
    kind, glyph = OUTCOMES[outcome]
    return badge(kind, glyph, outcome.value)


def measured(value: Interval) -> Html:
    return join([element("strong", number(value.estimate)), " ", element("small", ends(value), class_="interval")])


def table(caption: str, head: Sequence[str], rows: Sequence[Html], *, stacked: bool = True) -> Html:
    return grouped(caption, head, [element("tbody", *rows)], stacked=stacked)


def grouped(caption: str, head: Sequence[str], bodies: Sequence[Html], *, stacked: bool = True) -> Html:
    """Scrolls sideways where it must; ``stacked`` tables turn rows into cards on a phone."""
    return element(
        "div",
        element(
            "table",
            element("caption", capital(caption)),
            element("thead", element("tr", *[element("th", title, scope="col") for title in head])),
            *bodies,
            class_="stack" if stacked else None,
        ),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=caption,
    )


def row(head: Sequence[str], cells: Sequence[str], **attributes: str | bool | None) -> Html:
    """A table row whose first cell is its heading; each cell knows its column's name, for phones."""
    first, *rest = cells
    return element(
        "tr",
        element("th", first, scope="row"),
        *[element("td", cell, data_label=label) for label, cell in zip(head[1:], rest, strict=True)],
        **attributes,
    )


def details(summary: str, *content: str, **attributes: str | None) -> Html:
    return element("details", element("summary", capital(summary)), *content, **attributes)


def definitions(pairs: Iterable[tuple[str, str]], class_: str = "facts") -> Html:
    return element(
        "dl",
        *[element("div", element("dt", capital(key)), element("dd", value)) for key, value in pairs],
        class_=class_,
    )
