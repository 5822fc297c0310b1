"""The gate's checks as JUnit XML, which pipelines read."""

from __future__ import annotations

from xml.etree import ElementTree

from coterie.measure.findings import AuditResult
from coterie.measure.headline import broken
from coterie.report.markup import printable
from coterie.report.values import attack_name

SUITE = "coterie gate"


def junit_xml(result: AuditResult) -> str:
    """One test case for each limit; a broken limit is a failure with its reason, and an attack that broke an error.
    Every verdict is a property, and so is what became of every claim."""
    checks = result.checks
    failed = sum(not check.passed for check in checks)
    broke = broken(result)
    numbers = {"tests": len(checks) + len(broke), "failures": failed, "errors": len(broke), "skipped": 0}
    counts = {name: str(number) for name, number in numbers.items()}
    root = ElementTree.Element("testsuites", {"name": SUITE, **counts})
    group = ElementTree.SubElement(root, "testsuite", {"name": SUITE, **counts})
    verdicts = ElementTree.SubElement(group, "properties")
    for one in result.findings:
        name = f"{one.family}: {attack_name(one)}, {one.measure}, {one.defence}"
        said = {"name": printable(name), "value": printable(one.decision.in_words(one.unit))}
        ElementTree.SubElement(verdicts, "property", said)
    for row in (*result.as_configured, *result.defended):
        if row.promise is not None:
            said = {"name": printable(f"claim of {row.defence}: {row.family}"), "value": printable(str(row.promise))}
            ElementTree.SubElement(verdicts, "property", said)
    for check in checks:
        limit, found = printable(str(check.limit)), str(check.measured)
        named = {"classname": SUITE, "name": limit}
        case = ElementTree.SubElement(group, "testcase", named)
        reason = printable(check.reason)
        if not check.passed:
            failure = ElementTree.SubElement(case, "failure", {"message": reason, "type": "limit broken"})
            failure.text = f"{limit}, measured {found}: {reason}"
        output = ElementTree.SubElement(case, "system-out")
        output.text = f"measured {found}; {reason}"
    for attack in broke:
        case = ElementTree.SubElement(group, "testcase", {"classname": SUITE, "name": printable(str(attack))})
        ElementTree.SubElement(case, "error", {"message": printable(attack.reason), "type": "attack broke"})
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"
