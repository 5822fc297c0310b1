"""JUnit XML that a pipeline can read."""

from __future__ import annotations

import math
from dataclasses import replace
from xml.etree import ElementTree

from tests.report.sample import sample

from coterie.measure.findings import Check, Limit
from coterie.measure.intervals import Interval
from coterie.report.junit import junit_xml


def test_one_case_for_each_limit_and_failures_with_their_reason() -> None:
    checks = sample().checks
    suite = ElementTree.fromstring(junit_xml(sample()).encode()).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "0")
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == [str(check.limit) for check in checks]
    failures = [case.find("failure") for case in cases]
    assert [failure is None for failure in failures] == [check.passed for check in checks]
    broken = failures[2]
    assert broken is not None
    assert broken.get("message") == checks[2].reason
    assert "0.912" in (broken.text or "")


def test_every_measure_of_an_attack_has_a_name_of_its_own() -> None:
    first = next(one for one in sample().findings if not one.control)
    twice = [first, replace(first, measure="TPR at 1% FPR")]
    root = ElementTree.fromstring(junit_xml(replace(sample(), findings=twice, defended=[], as_configured=[])).encode())
    names = [one.get("name") for one in root.iter("property")]
    assert len(names) == len(set(names)) == 2


def test_no_limits_are_an_empty_suite() -> None:
    root = ElementTree.fromstring(junit_xml(replace(sample(), checks=[])).encode())
    assert root.get("tests") == "0"
    assert root.findall(".//testcase") == []


def test_hostile_texts_and_missing_values_stay_well_formed() -> None:
    reason = "</failure><script> & \" ' ]]> \x00 \x1b \ud800"
    check = Check(Limit("<max>", 1), Interval.unknown(math.nan), False, reason)
    endless = Check(Limit("b", 2), Interval(math.inf, math.inf, math.inf), True, "fine")
    root = ElementTree.fromstring(junit_xml(replace(sample(), checks=[check, endless])).encode())
    failure = root.find(".//failure")
    assert failure is not None
    assert "</failure><script> & \" ' ]]>" in (failure.get("message") or "")
    assert [case.get("name") for case in root.iter("testcase")] == ["<max> = 1", "b = 2"]


def test_every_verdict_is_a_property() -> None:
    root = ElementTree.fromstring(junit_xml(sample()).encode())
    said = [one.get("value") for one in root.iter("property")]
    claims = [str(one.promise) for one in (*sample().as_configured, *sample().defended) if one.promise]
    assert said == [*(one.decision.in_words(one.unit) for one in sample().findings), *claims]


def test_the_same_checks_give_the_same_bytes() -> None:
    assert junit_xml(sample()) == junit_xml(sample())
