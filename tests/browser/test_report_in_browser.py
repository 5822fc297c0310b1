"""The report in a real browser. Run by ``make browser-test``; needs chromium, its driver and selenium."""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from tests.report.sample import BROKEN, DPSGD, MEMBERSHIP, MINGLED, PROPERTY, reproduction, sample

from coterie.measure.exhibits import Suspected
from coterie.report.html import render, render_reproductions

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-prefers-reduced-motion",
    "--window-size=1280,900",
)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    found = shutil.which("chromedriver")
    assert found, "chromedriver is not installed; run make browser-test, which installs it"
    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(executable_path=found))
    yield chrome
    chrome.quit()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(sample(), [reproduction()]), encoding="utf-8")
    return path


@pytest.fixture
def page(driver: Any, report: Path) -> Iterator[Any]:
    """Freshly opened; whatever a test does with it, the console must stay silent."""
    driver.get(report.as_uri())
    yield driver
    assert driver.get_log("browser") == []


def shown(page: Any, selector: str) -> list[Any]:
    return [item for item in page.find_elements(By.CSS_SELECTOR, selector) if item.is_displayed()]


def choose(page: Any, key: str, value: str) -> None:
    options = page.find_elements(By.CSS_SELECTOR, f"[data-filter={key}] option")
    next(option for option in options if option.get_attribute("value") == value).click()


def hover(page: Any, item: Any) -> None:
    """Scrolling hides tooltips, so it has to be over before the pointer moves."""
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", item)
    page.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    ActionChains(page).move_to_element(item).perform()


def background(page: Any) -> str:
    return str(page.execute_script("return getComputedStyle(document.body).backgroundColor"))


def emulate(page: Any, **features: str) -> None:
    chosen = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": chosen})


def test_it_renders(page: Any) -> None:
    assert page.title == sample().title
    said = [page.find_element(By.CLASS_NAME, "headline"), *page.find_elements(By.CSS_SELECTOR, ".further li")]
    assert " ".join(one.text for one in said) == sample().headline
    assert len(shown(page, "table.heat .cell")) == len(sample().findings)
    for chart in shown(page, "svg.chart"):
        assert chart.rect["width"] > 300
    widths = "return [...document.images].map(i => i.naturalWidth)"
    assert set(page.execute_script(widths)) == {16}


def test_nothing_but_the_file_is_loaded(page: Any) -> None:
    names = page.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert [name for name in names if not name.startswith("data:")] == []


def test_the_theme_follows_the_system_and_the_button(page: Any) -> None:
    emulate(page, prefers_color_scheme="light")
    light = background(page)
    emulate(page, prefers_color_scheme="dark")
    dark = background(page)
    assert light != dark
    button = page.find_element(By.ID, "theme")
    assert button.text == "Light"
    button.click()
    assert background(page) == light
    assert button.text == "Dark"
    button.click()
    assert background(page) == dark
    emulate(page, prefers_color_scheme="light")
    assert background(page) == dark  # what the reader chose stays


def test_headings_that_links_lead_to_are_not_covered(page: Any) -> None:
    for link in page.find_elements(By.CSS_SELECTOR, "nav a"):
        link.click()
        title = page.find_element(By.ID, link.get_attribute("href").split("#")[1] + "-title")
        there = (
            "const b = arguments[0].getBoundingClientRect(); return document.elementFromPoint(b.left + 5, b.top + 5)"
        )
        assert page.execute_script(there, title) == title


def test_filter_by_kind_of_attack(page: Any) -> None:
    choose(page, "family", PROPERTY)
    expected = sum(one.family == PROPERTY for one in sample().findings)
    assert len(shown(page, "table.heat .cell")) == expected
    assert page.find_element(By.ID, "shown").text == f"{expected} of {len(sample().findings)} findings shown"
    assert {item.get_attribute("data-family") for item in shown(page, "figure[data-family]")} == {PROPERTY}
    assert [item.text for item in shown(page, "#method h3")] == ["Property inference"]
    assert shown(page, "#gallery .nothing")
    assert MEMBERSHIP not in " ".join(item.text.lower() for item in shown(page, "#defences tr.group"))


def test_filter_by_defence_and_clear(page: Any) -> None:
    everything = len(shown(page, "table.heat .cell"))
    choose(page, "defence", MINGLED)
    cells = shown(page, "table.heat .cell")
    assert {cell.get_attribute("data-defence") for cell in cells} == {MINGLED}
    assert len(cells) == sum(one.defence == MINGLED for one in sample().findings)
    assert {item.get_attribute("data-series") for item in shown(page, "#roc .series")} == {MINGLED}
    page.find_element(By.CSS_SELECTOR, "#filters button[type=reset]").click()
    assert len(shown(page, "table.heat .cell")) == everything


def test_filter_by_adversary_and_both(page: Any) -> None:
    choose(page, "adversary", "eavesdropper")
    assert len(shown(page, "table.heat .cell")) == 2
    choose(page, "defence", BROKEN)
    assert shown(page, "table.heat .cell") == []
    assert shown(page, "#leaks .nothing")


def test_claims_shared_by_families_survive_the_filter_of_each(page: Any) -> None:
    choose(page, "family", MEMBERSHIP)
    names = [item.get_attribute("data-defence") for item in shown(page, "#claims tbody tr")]
    assert DPSGD in names
    assert BROKEN in names
    assert MINGLED not in names


def test_controls_can_be_hidden(page: Any) -> None:
    page.find_element(By.ID, "controls").click()
    assert len(shown(page, "table.heat .cell")) == sum(not one.control for one in sample().findings)
    assert shown(page, "[data-control=yes]") == []
    page.find_element(By.ID, "controls").click()
    assert len(shown(page, "table.heat .cell")) == len(sample().findings)


def test_hovering_shows_a_value(page: Any) -> None:
    tip = page.find_element(By.ID, "tip")
    assert not tip.is_displayed()
    cell = page.find_element(By.CSS_SELECTOR, "table.heat .cell")
    hover(page, cell)
    assert tip.is_displayed()
    assert sample().findings[0].sentence in tip.text
    mark = page.find_element(By.CSS_SELECTOR, "#curves svg.chart .mark")
    hover(page, mark)
    assert "accuracy: 0." in tip.text
    box = tip.rect
    assert box["width"] > 40
    hover(page, page.find_element(By.CSS_SELECTOR, "#curves h2"))
    assert not tip.is_displayed()


def test_keys_reach_the_values_of_a_chart(page: Any) -> None:
    chart = page.find_element(By.CSS_SELECTOR, "#curves svg.chart")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'}); arguments[0].focus()", chart)
    tip = page.find_element(By.ID, "tip")
    seen = []
    for key in (Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_DOWN):
        ActionChains(page).send_keys(key).perform()
        seen.append(tip.text)
    assert seen[0].startswith("undefended\nround: 0")
    assert seen[1].startswith("undefended\nround: 2")
    assert seen[2].startswith(f"{DPSGD}\nround: 2")
    ActionChains(page).send_keys(Keys.ESCAPE).perform()
    assert not tip.is_displayed()


def test_keys_move_through_the_table(page: Any) -> None:
    cells = page.find_elements(By.CSS_SELECTOR, "table.heat .cell")
    page.execute_script("arguments[0].focus()", cells[0])
    ActionChains(page).send_keys(Keys.ARROW_RIGHT).perform()
    assert page.switch_to.active_element == cells[1]
    ActionChains(page).send_keys(Keys.ARROW_DOWN).perform()
    assert page.switch_to.active_element == cells[5]
    assert sample().findings[5].sentence in page.find_element(By.ID, "tip").text


def test_a_legend_hides_its_series(page: Any) -> None:
    figure = page.find_element(By.CSS_SELECTOR, "#roc figure")
    button = figure.find_element(By.CSS_SELECTOR, "[data-toggles=none]")
    series = figure.find_element(By.CSS_SELECTOR, ".series[data-series=none]")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert not series.is_displayed()
    button.click()
    assert series.is_displayed()


def test_a_phone_never_scrolls_sideways(page: Any) -> None:
    metrics = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        assert page.execute_script("return document.documentElement.scrollWidth") <= 390
        size = "return parseFloat(getComputedStyle(document.querySelector('svg.chart text')).fontSize)"
        scale = "return document.querySelector('svg.chart').getScreenCTM().a"
        assert page.execute_script(size) * page.execute_script(scale) >= 10  # pixels: still legible
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_paper_is_the_decision_with_its_numbers(page: Any) -> None:
    """Without buttons, controls and curves, and in few pages."""
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        for hidden in ("nav", "#filters", "#roc", "#curves", "#gallery", "#method", "#leaks tr[data-control=yes]"):
            assert shown(page, hidden) == []
        for visible in ("#verdict", "#leaks table.heat", "#defences", "#claims", "#reproduce"):
            assert shown(page, visible) != []
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    paper = {"printBackground": True, "paperWidth": 8.27, "paperHeight": 11.69}  # A4, in inches
    pdf = base64.b64decode(page.execute_cdp_cmd("Page.printToPDF", paper)["data"])
    assert 1 <= len(re.findall(rb"/Type\s*/Page[^s]", pdf)) <= 8


def test_hostile_names_do_not_run(driver: Any, tmp_path: Path) -> None:
    script = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
    findings = [replace(one, defence=script, attack=script) for one in sample().findings[:1]]
    path = tmp_path / "hostile.html"
    path.write_text(
        render(replace(sample(), title=f"report {script}", findings=findings, subject={script: script})), "utf-8"
    )
    driver.get(path.as_uri())
    assert driver.title.startswith("report <script>")
    choose(driver, "defence", script)
    assert len(shown(driver, "table.heat .cell")) == 1
    assert driver.get_log("browser") == []


def test_a_recordings_page_works_too(driver: Any, tmp_path: Path) -> None:
    rows = [(f"client {number}", str(number % 3)) for number in range(30)]
    found = Suspected(PROPERTY, "by identity", "curious server", "client", "preference", rows)
    path = tmp_path / "recorded.html"
    path.write_text(render(replace(sample(), recorded=True, suspected=[found], defended=[])), "utf-8")
    driver.get(path.as_uri())
    assert [link.text for link in shown(driver, "nav a")][:3] == ["Verdict", "Leaks", "Suspected"]
    summary = driver.find_element(By.CSS_SELECTOR, "#suspected summary")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", summary)
    summary.click()
    assert len(shown(driver, "#suspected tbody tr")) == 30
    choose(driver, "family", MEMBERSHIP)
    assert shown(driver, "#suspected .nothing")
    assert driver.get_log("browser") == []


def test_a_page_of_reproductions_alone_works_too(driver: Any, tmp_path: Path) -> None:
    path = tmp_path / "tables.html"
    path.write_text(render_reproductions("Tables", [reproduction()]), "utf-8")
    driver.get(path.as_uri())
    driver.find_element(By.ID, "theme").click()
    assert driver.get_log("browser") == []
