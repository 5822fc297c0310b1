"""The report as one HTML file: no network, no build step, the same bytes for the same result.

The page's content security policy admits this package's own script by its hash and nothing else, so that a name taken
from a data set could not run even if it escaped the escaping.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files

from coterie.measure.exhibits import Chart
from coterie.measure.findings import UNDEFENDED, AuditResult, Defended, Finding
from coterie.measure.reproduced import Reproduction as Reproduction
from coterie.report import colophon, figures, findings, overview, promises
from coterie.report.looks import slots_of
from coterie.report.markup import Html, element, join, trusted


def render(result: AuditResult, tables: Sequence[Reproduction] = ()) -> str:
    """The report of an audit, with tables of papers as a further part."""
    used = [(one.family, one.defence) for one in result.findings]
    slots = slots_of(used + [(one.family, one.defence) for one in (*result.defended, *result.as_configured)])
    parts = {
        "Verdict": overview.verdict(result, slots),
        "Leaks": join([_filters(result), findings.leaks(result)]),
        "Suspected": findings.suspected(result),
        "Costs": None if result.recorded else promises.defences(result),
        "Claims": None if result.recorded else promises.claims(result),
        "Frontier": figures.frontiers(result, slots),
        "ROC": figures.rocs(result, slots),
        "Curves": figures.plots(result, slots),
        "Gallery": figures.galleries(result),
        "Method": colophon.methods(result),
        "Left out": colophon.left_out(result.left_out, result.warned),
        "Papers": colophon.reproductions(tables),
        "Reproduce": colophon.reproduce(result.reproduce),
    }
    return _page(result.title, "Privacy audit of a federation", parts)


def render_reproductions(title: str, tables: Sequence[Reproduction], reproduce: Mapping[str, str] | None = None) -> str:
    """A page of reproduced tables alone."""
    parts = {"Papers": colophon.reproductions(tables), "Reproduce": colophon.reproduce(reproduce or {})}
    return _page(title, "Reproduction of published tables", parts)


def render_charts(title: str, charts: Sequence[Chart]) -> str:
    """A page of figures alone."""
    return _page(title, "Measurements on the way", {"Curves": figures.curves(charts, {})})


ANCHORS = {"Costs": "defences", "Curves": "curves", "Left out": "left-out"}


def _page(title: str, kind: str, parts: Mapping[str, Html | None]) -> str:
    style, script = (files("coterie.report").joinpath(f"report.{end}").read_text("utf-8") for end in ("css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    links = [
        element("a", name, href=f"#{ANCHORS.get(name, name.lower())}")
        for name, part in parts.items()
        if part is not None
    ]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("link", rel="icon", href="data:,"),
        element("style", trusted(style)),
    )
    body = element(
        "body",
        element("a", "Skip to the verdict", href="#main", class_="skip"),
        element("header", element("p", kind, class_="kicker"), element("h1", title)),
        element(
            "nav",
            element("div", *links, class_="links"),
            element("button", "Dark", type="button", id="theme", class_="js"),
            aria_label="Parts of the report",
        ),
        element("main", *[part for part in parts.values() if part is not None], id="main"),
        element(
            "footer",
            element("p", "Made by Coterie. This file holds everything it shows and asks the network for nothing."),
        ),
        element("div", id="tip", role="status", hidden=True),
        element("script", trusted(script)),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en-GB')}\n"


def _filters(result: AuditResult) -> Html:
    """Chosen values stay visible; without scripts everything does."""
    shown: list[Finding | Defended] = [*result.findings, *result.defended, *result.as_configured]
    families, defences = dict.fromkeys(one.family for one in shown), dict.fromkeys(one.defence for one in shown)
    adversaries = dict.fromkeys(one.adversary for one in result.findings)
    choices = {
        "family": ("Kind of attack", families),
        "defence": ("Defence", defences),
        "adversary": ("Adversary", adversaries),
    }
    fields = [
        element(
            "label",
            element("span", label),
            element(
                "select",
                element("option", "all", value=""),
                *[element("option", "none (undefended)" if one == UNDEFENDED else one, value=one) for one in names],
                data_filter=key,
            ),
        )
        for key, (label, names) in choices.items()
    ]
    controls = element(
        "label",
        element("input", type="checkbox", id="controls", checked=True),
        element("span", "Show controls"),
        class_="check",
    )
    return element(
        "form",
        *fields,
        controls,
        element("button", "Clear", type="reset"),
        element("output", "", id="shown"),
        id="filters",
        class_="js",
        aria_label="Filter the report",
        autocomplete="off",
    )
