"""The report as a file: complete, well formed, alone, harmless, and the same every time."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.report.sample import BROKEN, CLIENT, DPSGD, MINGLED, PROFILING, SERVER, reproduction, sample

from coterie.errors import InvalidInput
from coterie.measure.claims import Outcome, Promise
from coterie.measure.exhibits import Chart, Gallery, Series, Suspected
from coterie.measure.findings import AuditResult, Finding, Frontier
from coterie.measure.headline import by_defence
from coterie.measure.intervals import Interval, Sample
from coterie.privacy.guarantee import Guarantee, Level, Trust
from coterie.report.decision import next_steps
from coterie.report.html import render, render_reproductions
from coterie.report.markup import VOID, element
from coterie.report.values import capital, with_interval

EMPTY = AuditResult("nothing", {}, [], [])


class Page(HTMLParser):
    """Checks nesting, and collects tags, texts and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} repeats an attribute"
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def of(self, tag: str, **wanted: str) -> list[dict[str, str]]:
        return [attrs for name, attrs in self.tags if name == tag and wanted.items() <= attrs.items()]


@pytest.fixture(scope="module")
def text() -> str:
    return render(sample(), [reproduction()])


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_the_verdict_comes_first(page: Page) -> None:
    sections = [attrs["id"] for attrs in page.of("section")]
    assert sections[0] == "verdict"
    assert page.text.index(sample().headline) < page.text.index("What leaks")
    assert "gate failed" in " ".join(page.texts)


def test_every_link_of_the_navigation_leads_to_a_part(page: Page) -> None:
    names = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    links = [attrs["href"] for attrs in page.of("a")]
    assert len(links) > 10
    assert all(link.startswith("#") and link[1:] in names for link in links)


def test_ids_are_unique(page: Page) -> None:
    names = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(names) == len(set(names))


def test_every_finding_is_there_as_a_cell_and_in_words(page: Page) -> None:
    found = sample().findings
    cells = [attrs for _, attrs in page.tags if "cell" in attrs.get("class", "").split()]
    assert len(cells) == len(found)
    for one in found:
        assert one.sentence in " ".join(page.texts)
        assert one.knew in " ".join(page.texts)
        if one.interval.is_known:
            assert f"[{one.interval.low:.3f}, {one.interval.high:.3f}]" in " ".join(page.texts)


def test_controls_are_marked(page: Page) -> None:
    controls = {(one.family, one.attack) for one in sample().findings if one.control}
    rows = [attrs for attrs in page.of("tr", **{"data-control": "yes"}) if "data-needs" in attrs]
    assert len(rows) == len(controls)


def test_every_claim_is_there_with_its_verdict_and_evidence(page: Page) -> None:
    for one in sample().defended:
        if one.promise is not None:
            assert one.promise.guarantee.trust.value in " ".join(page.texts)
            assert all(ground in page.text for ground in one.promise.evidence)
    for word in ("holds", "not refuted", "violated", "nothing is claimed", "not audited", "ε ≥ 2.410", "δ = 10⁻⁵"):
        assert word in " ".join(page.texts)


def test_figures_galleries_methods_and_the_rest_are_there(page: Page) -> None:
    result = sample()
    charts = [attrs for attrs in page.of("svg") if attrs.get("class") == "chart"]
    curves = {(one.family, one.attack, one.adversary, one.control) for one in result.findings if one.roc}
    assert len(charts) == len(result.charts) + len(result.frontiers) + len(curves)
    assert len(page.of("img")) == sum(len(pictures) for gallery in result.galleries for _, pictures in gallery.rows)
    for method in result.methods:
        assert {method.paper, method.question, method.threat, method.method} <= set(page.texts)
    for why in [*[one.reason for one in result.left_out], *result.reproduce.values(), *result.subject.values()]:
        assert why in " ".join(page.texts)
    for word in ("The federation as configured", "ledger: ε = 2.861 spent", "not as configured: 4 clients"):
        assert word in " ".join(page.texts)
    assert result.frontiers[0].recommendation in " ".join(page.texts)
    assert "does not hold" in " ".join(page.texts)


def test_it_asks_the_network_for_nothing(text: str, page: Page) -> None:
    for _, attrs in page.tags:
        for name in ("src", "href", "action", "poster", "data", "srcset"):
            assert attrs.get(name, "#").startswith(("#", "data:")), attrs
    assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttp|\bimport\(", text)
    assert len(text.encode()) < 2_000_000


def test_only_its_own_script_may_run(text: str, page: Page) -> None:
    (policy,) = [attrs["content"] for attrs in page.of("meta") if attrs.get("http-equiv") == "Content-Security-Policy"]
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_people_who_do_not_see_it_can_read_it(page: Page) -> None:
    assert page.of("html") == [{"lang": "en-GB"}]
    assert all(attrs.get("aria-label") or attrs.get("aria-hidden") for attrs in page.of("svg"))
    assert all(attrs.get("alt") for attrs in page.of("img"))
    assert all(attrs.get("scope") in ("col", "row", "rowgroup") for attrs in page.of("th"))
    assert len(page.of("table")) == len(page.of("caption"))
    assert len(page.of("h1")) == 1
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert all(deeper - level <= 2 for level, deeper in pairwise(levels))


def test_the_same_result_gives_the_same_bytes(text: str) -> None:
    assert render(sample(), [reproduction()]) == text


HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>\' " & \x00 \ud800 </style> javascript:alert(1)'


def poisoned(value: object) -> object:
    """The sample with every text hostile, except pictures, which must be pictures, and kinds of chart."""
    if isinstance(value, str):
        return value if value.startswith("iVBORw0KGgo") or value in ("", "line", "scatter") else f"{HOSTILE} {value}"
    if isinstance(value, dict):
        return {poisoned(key): poisoned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(poisoned(item) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: poisoned(getattr(value, field.name)) for field in fields(value)})
    return value


def test_no_text_can_become_markup(page: Page) -> None:
    result, table = poisoned(sample()), poisoned(reproduction())
    hostile = render(result, [table])  # type: ignore[arg-type, list-item]
    found = Page(hostile)
    assert len(found.of("script")) == 1
    assert len(found.of("img")) == len(page.of("img"))
    assert {tag for tag, _ in found.tags} <= {tag for tag, _ in page.tags}
    assert not any(name.startswith("on") for _, attrs in found.tags for name in attrs)
    assert hostile.encode("utf-8")


@settings(max_examples=60)
@given(st.text(), st.text())
def test_any_text_survives_as_text(content: str, attribute: str) -> None:
    found = Page(element("p", content, title=attribute))
    assert [tag for tag, _ in found.tags] == ["p"]


def test_missing_values_are_said_and_break_nothing() -> None:
    unknown = Interval.unknown(math.nan)
    lost = [replace(one, interval=unknown, roc=None) for one in sample().findings]
    costs = [
        replace(one, utility=unknown, seconds=math.nan, upload_bytes=math.inf, memory_bytes=math.nan)
        for one in sample().defended
    ]
    gone = Chart("gone", "", "x", "y", [Series("a", [math.nan, 1], [1, math.nan])], reference=("chance", math.nan))
    empty = [gone, Chart("empty", "", "x", "y", []), replace(gone, kind="scatter")]
    points = Frontier("f", "a", "b", math.nan, [], "none meets the limits")
    text = render(replace(sample(), findings=lost, defended=costs, charts=empty, frontiers=[points]))
    found = Page(text)
    assert "not measured" in found.text
    assert "not scored" in found.text
    assert not re.search(r"\bnan\b", text, re.I)


def test_a_score_without_an_interval_is_undecided() -> None:
    first = sample().findings[0]
    finding = replace(first, interval=Interval.unknown(0.9), runs=first.runs[:1])
    found = Page(render(replace(sample(), findings=[finding])))
    assert "no interval" in found.text
    assert "undecided: one run does not say how sure its score is, and more seeds would" in found.text
    assert "40 clients of 1 seed;" in found.text


def test_what_is_above_chance_and_undecided_says_why() -> None:
    """Its interval is narrow enough; what it lacks is a control that finds less."""
    runs = [Sample.share(60, 100)] * 3
    one = replace(sample().findings[0], interval=Interval(0.6, 0.54, 0.66), runs=runs, control_runs=runs)
    assert one.decision.fooled
    text = Page(render(replace(sample(), findings=[one], launched="none"))).text
    assert text.count("not above its control") == 2  # in its cell and in the first table
    assert "So is a score above chance that is not known to lie above its control" in text


def test_what_could_not_be_scored_is_one_row_with_its_reason() -> None:
    one = sample().findings[0]
    few = Finding.unscored(one.attack, "TPR at 0.1% FPR", 0.001, "nothing", "too few")
    lost = [
        replace(few, family=one.family, adversary=who, defence=defence)
        for who in (CLIENT, SERVER)
        for defence in ("none", DPSGD)
    ]
    page = Page(render(replace(sample(), findings=[*sample().findings, *lost])))
    assert page.text.count("not scored: too few") == 1
    assert page.of("tr", **{"data-adversary": f"{CLIENT}\n{SERVER}", "data-defence": f"none\n{DPSGD}"})
    assert sum("and not scored by TPR at 0.1% FPR: too few." in text for text in page.texts) == 4


def test_an_empty_audit_still_says_so() -> None:
    text = Page(render(EMPTY)).text
    for sentence in ("No attack was run.", "no limits set", "Nothing is claimed.", "Nothing was recorded."):
        assert sentence in text


def test_a_gate_that_passes_says_so() -> None:
    result = replace(sample(), checks=sample().checks[:2])
    assert "gate passed" in Page(render(result)).text


def test_it_says_what_to_do_next() -> None:
    steps = next_steps(sample())
    (step,) = [step for step in steps if step.startswith("Preference profiling leaks: ")]
    best = by_defence(sample())["preference profiling"][MINGLED]
    assert "under MingledPie (rate 0.5) it is bounded (cosine of updates by curious server: accuracy 0.108 [" in step
    assert with_interval(best.interval) in step
    assert step.endswith("]).")
    assert any(step.startswith("Membership inference is undecided: about") for step in steps)
    (stressed,) = [step for step in steps if "acquisition" in step]  # a stress test: nothing that is launched
    assert stressed.startswith("Under stress it leaks (model acquisition): Method says what was changed")
    assert not any("take it for possible" in step for step in steps)  # more seeds would decide
    repeated = [replace(one, repeated=True) for one in sample().findings]
    assert any("take it for possible" in step for step in next_steps(replace(sample(), findings=repeated)))
    assert steps[-1] == "Do not launch before min_accuracy = 0.95 is met."
    assert all(step in " ".join(Page(render(sample())).texts) for step in steps)
    (broken,) = [one for one in sample().defended if one.promise and one.promise.outcome is Outcome.VIOLATED]
    assert next_steps(replace(sample(), launched=broken.defence))[0].startswith("Do not launch: ")
    assert "[limits]" in next_steps(replace(sample(), checks=[]))[-1]


def test_a_federation_that_has_learnt_nothing_has_no_price() -> None:
    worth = sample()
    page = Page(render(worth))
    assert "no price:" not in " ".join(page.texts)
    assert "training alone 0.830" in " ".join(page.texts)
    level = {"a constant answer": Interval(0.0, -0.01, 0.01)}
    nothing = replace(worth, as_configured=[replace(one, gains=level) for one in worth.as_configured])
    text = " ".join(Page(render(nothing)).texts)
    assert "no price: undefended, it has learnt nothing" in text
    assert "a constant answer 0.400 (not beaten: gain, client by client, 0.000 [−0.010, 0.010])" in text


def test_no_kind_of_attack_prices_what_the_configured_run_has_not_learnt() -> None:
    """Rows of attacks have no baselines of their own: those of the run that they attack hold for them, too."""

    def unpriced(result: AuditResult) -> int:
        return " ".join(Page(render(result)).texts).count("no price:")

    level = {"a constant answer": Interval(0.0, -0.01, 0.01)}
    worth = sample()
    nothing = replace(worth, as_configured=[replace(one, gains=level) for one in worth.as_configured])
    priced = [one for one in worth.defended if one.utility_measure == "accuracy" and one.defence != "none"]
    assert unpriced(nothing) == len(priced) + len(worth.as_configured) - 1
    assert unpriced(worth) == 0


def test_claims_alike_are_said_once(page: Page) -> None:
    rows = [attrs for attrs in page.of("tr", **{"data-defence": DPSGD}) if "\n" in attrs.get("data-family", "")]
    assert len(rows) == 1
    assert len(page.of("tr", **{"data-defence": BROKEN, "data-family": "membership inference"})) == 4


def test_a_stated_epsilon_without_a_proof_is_no_guarantee() -> None:
    stated = Guarantee.none("the choice leaks", Level.RECORD, Trust.LOCAL_NOISE, stated=12.1)
    promise = Promise(stated, None, Outcome.NOT_REFUTED, ["x"])
    text = Page(render(replace(EMPTY, defended=[replace(sample().defended[0], promise=promise)]))).text
    assert "No formal guarantee the choice leaks (stated: ε = 12.1)" in text
    assert text.count("not refuted") == 2  # what that means, and the verdict
    silent = replace(promise, guarantee=Guarantee.none("it adds no noise", Level.RECORD, Trust.LOCAL_NOISE))
    text = Page(render(replace(EMPTY, defended=[replace(sample().defended[0], promise=silent)]))).text
    assert "no claim to judge" in text  # where no epsilon is stated, none can be refuted
    assert text.count("not refuted") == 1


def test_what_the_attacks_on_a_recording_suspect_is_shown() -> None:
    rows = [(f"client {number}", f"class {number}") for number in range(250)]
    found = Suspected(PROFILING, "by identity", "curious server", "client", "preference", rows)
    page = Page(render(replace(EMPTY, suspected=[found], recorded=True)))
    assert "class 199" in " ".join(page.texts)
    assert "class 200" not in " ".join(page.texts)
    assert "50 further answers in the JSON." in " ".join(page.texts)
    assert page.of("section", id="defences") == []  # a recording says nothing of costs


def test_two_numbers_for_one_cell_are_both_shown() -> None:
    first = sample().findings[0]
    twice = [first, replace(first, interval=Interval(0.777, 0.7, 0.8))]
    text = Page(render(replace(sample(), findings=twice))).text
    assert "0.947" in text
    assert "0.777" in text


def test_a_gallery_takes_pictures_only() -> None:
    bad = Gallery("g", "", [("private", ["PHN2Zz4="])])
    with pytest.raises(InvalidInput, match=r"picture of 'private'.*PNG"):
        render(replace(sample(), galleries=[bad]))


def test_reproductions_have_a_page_of_their_own() -> None:
    found = Page(render_reproductions("Tables", [reproduction()], {"command": "coterie reproduce"}))
    for words in (
        "1 table: of 3 claims, 1 holds, 1 does not, 1 is undecided.",
        "IFCA beats FedAvg",
        "−0.009",
        "coterie reproduce",
        "20 clients instead of 100.",
        "chance 0.100; placebo 0.500 [0.450, 0.550]",
    ):
        assert words in found.text
    assert found.of("form") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [("property inference", "Property inference"), ("t-SNE of updates", "t-SNE of updates"), ("cGAN", "cGAN"),
     ("passive, alone", "Passive, alone"), ("k-means cost", "k-means cost"), ("", "")],
)  # fmt: skip
def test_headings_begin_with_a_capital_unless_it_is_a_name(text: str, expected: str) -> None:
    assert capital(text) == expected
