"""The gate's checks as JUnit XML, which pipelines read."""

from __future__ import annotations

from xml.etree import ElementTree

from coterie.measure.findings import AuditResult
from coterie.report.markup import printable

SUITE = "coterie gate"


def junit_xml(result: AuditResult) -> str:
    """One test case for each limit; a broken limit is a failure with its reason."""
    checks = result.checks
    failed = sum(not check.passed for check in checks)
    counts = {"tests": str(len(checks)), "failures": str(failed), "errors": "0", "skipped": "0"}
    root = ElementTree.Element("testsuites", {"name": SUITE, **counts})
    group = ElementTree.SubElement(root, "testsuite", {"name": SUITE, **counts})
    for check in checks:
        named = {"classname": SUITE, "name": printable(check.limit)}
        case = ElementTree.SubElement(group, "testcase", named)
        reason = printable(check.reason)
        if not check.passed:
            failure = ElementTree.SubElement(case, "failure", {"message": reason, "type": "limit broken"})
            failure.text = f"{printable(check.limit)}, measured {check.value:g}: {reason}"
        output = ElementTree.SubElement(case, "system-out")
        output.text = f"measured {check.value:g}; {reason}"
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"
