"""Markup that texts cannot break out of: whatever is not ``Html`` already is escaped on its way in."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

VOID = frozenset({"br", "img", "input", "link", "meta"})
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Html(str):
    """Finished markup. Only ``element``, ``join`` and ``trusted`` make it."""

    __slots__ = ()


def printable(text: str) -> str:
    """Control characters and lone surrogates, which neither HTML nor XML may hold, become a visible stand-in."""
    return _UNPRINTABLE.sub("\ufffd", text)


def escape(text: str) -> Html:
    return text if isinstance(text, Html) else Html(html.escape(printable(text)))


def trusted(text: str) -> Html:
    """For this package's own style sheet, script and number-only attributes; never for anything from outside."""
    return Html(text)


def join(parts: Iterable[str | None]) -> Html:
    return Html("".join(escape(part) for part in parts if part is not None))


def element(name: str, /, *content: str | None, **attributes: str | float | bool | None) -> Html:
    """``element("td", "a < b", class_="cell", data_family=family)``; None and False leave an attribute out."""
    opening = name + "".join(_attribute(key, value) for key, value in attributes.items())
    return Html(f"<{opening}>") if name in VOID else Html(f"<{opening}>{join(content)}</{name}>")


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
