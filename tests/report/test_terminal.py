"""The terminal says what the report says."""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console
from tests.report.sample import sample

from coterie.measure.claims import Outcome, Promise
from coterie.measure.findings import AuditResult, Check, Finding, Limit, over_seeds
from coterie.measure.headline import brief_of, judged
from coterie.measure.intervals import Interval, Sample
from coterie.measure.verdicts import Verdict
from coterie.privacy.guarantee import Attainable, Guarantee, Level, Trust
from coterie.report.decision import next_steps
from coterie.report.html import render
from coterie.report.junit import junit_xml
from coterie.report.terminal import HEAT, LINES, leak_lines, picture, show
from coterie.report.values import capital


def printed(result: AuditResult, width: int = 160, colour: bool = False, terminal: bool = True) -> str:
    out = io.StringIO()
    show(result, Console(file=out, width=width, force_terminal=terminal, color_system="truecolor" if colour else None))
    return out.getvalue()


def test_what_each_kind_is_judged_by_is_printed() -> None:
    text = printed(sample(), width=250)
    for family, one in judged(sample()):
        (line,) = [line for line in text.splitlines() if f" {capital(family)}" in line and " by " in line]
        assert ("not scored" if math.isnan(one.score) else f"{one.score:.3f}") in line
        assert one.verdict.value in line
        assert (one.unscored_for in line) == (one.verdict is Verdict.NOT_SCORED)
    for words in ("undecided", "✓ holds", "claims nothing", "✕ broken", "Gate: failed", "(stress)",
                  "Left out: 3, such as vertical",
                  "ledger: ε = 2.861 spent", "a constant answer 0.400"):  # fmt: skip
        assert words in text


def test_seeds_of_the_same_clients_are_recommended_nowhere() -> None:
    """Terminal, badges, cells, JUnit and JSON: more clients, as the finding's own sentence says."""
    runs = [Finding.of("a", "AUC", Sample.share(14, 20), 0.5, "clients", "") for _ in range(3)]
    named = {"family": "profiling", "adversary": "server", "defence": "none"}
    result = AuditResult("t", {}, [replace(over_seeds(runs, repeated=True), **named)], [])  # type: ignore[arg-type]
    (one,) = result.findings
    more = f"≈ {one.decision.more_units:.0f} more clients"
    assert f"{more} to decide" in printed(result, width=250)
    assert render(result).count(more) >= 2
    for text in (printed(result, width=250), render(result), junit_xml(result), result.to_json()):
        assert not re.search(r"\d more seed", text)
    assert json.loads(result.to_json())["findings"][0]["decision"]["more_seeds"] is None


def test_the_picture_has_the_words_and_asks_nobody_for_a_font() -> None:
    drawn = picture(sample())
    words = re.sub(r"<[^>]*>|&#160;", " ", drawn[drawn.index("</style>") :])
    assert all(word in words.split() for word in brief_of(sample()).split()[:4])
    assert not re.search(r"url\((?!#)|@font-face|https?://(?!www\.w3\.org/2000/svg)", drawn)


def test_the_headline_is_the_last_word() -> None:
    lines = printed(sample(), width=2000).strip().splitlines()
    assert lines[-1].strip() == brief_of(sample())


@pytest.mark.parametrize("times", [1, 5])
def test_it_ends_in_at_most_forty_lines(times: int) -> None:
    """Of eighty columns; however many kinds of attack, defences and limits there are."""
    result = sample()
    many = [replace(one, family=f"{one.family} {copy}") for copy in range(times) for one in result.findings]
    served = [replace(one, defence=f"{one.defence} {copy}") for copy in range(times) for one in result.as_configured]
    result = replace(result, findings=many, as_configured=served, checks=[*result.checks] * times)
    text = printed(result, width=80)
    assert len(text.splitlines()) <= LINES
    assert ("in the report" in text) == (times > 1)


def test_who_has_learnt_nothing_has_no_price() -> None:
    row = sample().as_configured[0]
    none = replace(row, gains={"a constant answer": Interval(0.01, -0.01, 0.03)})
    text = printed(replace(sample(), as_configured=[none]), width=250)
    assert "learnt nothing: no sure gain over a constant answer" in text
    assert "Undefended, it has learnt nothing that its clients would not have without it." in text


def test_where_no_epsilon_is_claimed_none_is_called_unrefuted() -> None:
    served = sample().as_configured[0]
    for stated, words in ((2.5, "○ not refuted: no formal guarantee"), (math.inf, "no epsilon is claimed")):
        said = Guarantee.none("x", Level.RECORD, Trust.LOCAL_NOISE, stated=stated)
        row = replace(served, promise=Promise(said, None, Outcome.NOT_REFUTED, ["x"]))
        text = printed(replace(sample(), as_configured=[row]), width=250)
        assert words in text
        assert ("not refuted" in text) == (stated < math.inf)


def test_what_could_be_proven_has_a_line_of_its_own_and_is_no_claim() -> None:
    proven = Guarantee(2.5, 1e-5, Level.RECORD, Trust.LOCAL_NOISE).against_onlookers()
    said = Guarantee.none("the choice leaks", Level.RECORD, Trust.LOCAL_NOISE)
    said = replace(said, attainable=(Attainable(("the trainer fedavg",), proven),))
    row = replace(sample().as_configured[0], promise=Promise(said, None, Outcome.NOT_REFUTED, ["x"]))
    result = replace(sample(), as_configured=[row], launched="none")
    text = printed(result, width=250)
    assert "attainable, as Claims in the report says: (2.500, 10⁻⁵)-DP, record level, one unit added or removed" in text
    (step,) = [step for step in next_steps(result) if "It would prove" in step]
    assert "with the trainer fedavg (ε = 2.500)" in step
    page = render(result)
    assert all(words in page for words in ("Attainable: ε = 2.500 at record level", "the trainer fedavg", "No formal"))


def test_the_colour_follows_the_leakage() -> None:
    worst = replace(sample().findings[0], interval=Interval(1.0, 0.9, 1.0))
    least = replace(worst, interval=Interval(0.5, 0.4, 0.6))

    def ground(style: str) -> str:
        red, green, blue = (int(style.split("#")[2][place : place + 2], 16) for place in (0, 2, 4))
        return f"48;2;{red};{green};{blue}"

    assert ground(HEAT[-1]) in printed(replace(sample(), findings=[worst]), colour=True)
    assert ground(HEAT[-1]) not in printed(replace(sample(), findings=[least]), colour=True)
    assert ground(HEAT[0]) in printed(replace(sample(), findings=[least]), colour=True)


def test_names_are_neither_markup_nor_codes() -> None:
    finding = replace(sample().findings[0], adversary="[red]x[/red] \x1b[2J \x9b2J\r")
    text = printed(replace(sample(), findings=[finding]), width=250)
    assert "[red]x[/red]" in text
    assert not re.search("[\x1b\x9b\r]", text)


def test_it_fits_eighty_columns_of_a_terminal_and_is_whole_elsewhere() -> None:
    assert max(len(line) for line in printed(sample(), width=80).splitlines()) <= 80
    whole = printed(sample(), width=80, terminal=False)
    assert "…" not in whole
    assert all(f" by {one.adversary}\n" in whole for _, one in judged(sample()))


def test_an_empty_audit_and_a_passing_gate() -> None:
    empty = AuditResult("nothing", {}, [], [])
    assert "No attack was run." in printed(empty)
    assert "Gate" not in printed(empty)
    passing = replace(
        empty, checks=[Check(Limit("min_accuracy", 0.9, at_least=True), Interval(0.95, 0.93, 0.97), True, "enough")]
    )
    assert "Gate: passed" in printed(passing)


def test_the_colour_of_a_verdict_ends_with_it() -> None:
    """What stands beside it is read on the terminal's own ground."""
    for line in leak_lines(sample())[1:]:
        assert not line.style
        assert line.spans[0].end == 14
