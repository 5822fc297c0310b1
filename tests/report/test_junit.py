"""JUnit XML that a pipeline can read."""

from __future__ import annotations

import math
from dataclasses import replace
from xml.etree import ElementTree

from tests.report.sample import sample

from coterie.measure.findings import Check
from coterie.report.junit import junit_xml


def test_one_case_for_each_limit_and_failures_with_their_reason() -> None:
    checks = sample().checks
    suite = ElementTree.fromstring(junit_xml(sample()).encode()).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "0")
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == [check.limit for check in checks]
    failures = [case.find("failure") for case in cases]
    assert [failure is None for failure in failures] == [check.passed for check in checks]
    broken = failures[2]
    assert broken is not None
    assert broken.get("message") == checks[2].reason
    assert "0.912" in (broken.text or "")


def test_no_limits_are_an_empty_suite() -> None:
    root = ElementTree.fromstring(junit_xml(replace(sample(), checks=[])).encode())
    assert root.get("tests") == "0"
    assert root.findall(".//testcase") == []


def test_hostile_texts_and_missing_values_stay_well_formed() -> None:
    reason = "</failure><script> & \" ' ]]> \x00 \x1b \ud800"
    check = Check("<max> = 1", math.nan, False, reason)
    root = ElementTree.fromstring(
        junit_xml(replace(sample(), checks=[check, Check("b", math.inf, True, "fine")])).encode()
    )
    failure = root.find(".//failure")
    assert failure is not None
    assert "</failure><script> & \" ' ]]>" in (failure.get("message") or "")
    assert [case.get("name") for case in root.iter("testcase")] == ["<max> = 1", "b"]


def test_the_same_checks_give_the_same_bytes() -> None:
    assert junit_xml(sample()) == junit_xml(sample())
