"""The reference run is the federation as it is configured: it ends when that would end."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coterie.audit import gate, reference
from coterie.audit.case import parse
from coterie.audit.engine import audit
from coterie.audit.family import built_in
from coterie.audit.objects import Handed
from coterie.config.schema import Choice
from coterie.data.federation import Shards
from coterie.errors import InvalidInput
from coterie.flow.guard import Defence
from coterie.protocols.fedavg import FedAvg

SUBJECT = {
    "evaluate_every": 2,
    "stop": {"measurements": 2},
    "data": {"kind": "digits"},
    "partition": {"kind": "iid", "clients": 3},
    "model": {"kind": "dense", "sizes": [64, 10]},
    "trainer": {"kind": "fedavg", "rounds": 40, "local": {"steps": 1, "lr": 1e-9}},
}


def test_it_stops_where_the_configured_run_would() -> None:
    """At a rate of almost nothing the third measurement in a row is enough; the report says who uses which model."""
    with reference.run(parse(SUBJECT, "subject"), Choice(kind="none"), 0) as run:
        assert run.done.state.round == 6
        assert run.evidence().clusters.startswith("clients a model: 3 (")


def test_rules_for_stopping_are_other_settings() -> None:
    said = parse(SUBJECT, "subject").fingerprint
    assert said != parse(SUBJECT | {"stop": {"measurements": 3}}, "subject").fingerprint
    assert said != parse(SUBJECT | {"evaluate_every": 3}, "subject").fingerprint


def test_one_client_and_one_class_are_no_federation(tmp_path: Path) -> None:
    alone = parse(SUBJECT | {"partition": {"kind": "iid", "clients": 1}}, "subject")
    with pytest.raises(InvalidInput, match="clients with data=1 must be 2 at least"):
        alone.rehearse()
    (tmp_path / "rows.csv").write_text("a,b\n" + "\n".join(f"{row},yes" for row in range(20)))
    data = {"kind": "table", "path": str(tmp_path / "rows.csv"), "label": "b"}
    constant = parse(SUBJECT | {"data": data, "model": {"kind": "fcnn", "hidden": 2}}, "subject")
    with pytest.raises(InvalidInput, match="classes that any row has=1 must be 2 at least: there is nothing to learn"):
        constant.rehearse()


def test_a_property_that_is_not_what_it_says_is_refused(tmp_path: Path) -> None:
    rows = [f"{row},{row % 2 + 1},yes,{row % 2}" for row in range(20)]
    (tmp_path / "rows.csv").write_text("a,sex,all,b\n" + "\n".join(rows))
    data = {"kind": "table", "path": str(tmp_path / "rows.csv"), "label": "b", "tags": ["sex", "all"]}
    asked = {"data": data, "model": {"kind": "fcnn", "hidden": 2}}

    def rehearse(tag: str, value: int | str) -> None:
        parse(SUBJECT | asked | {"audit": {"property": {"tag": tag, "value": value}}}, "subject").rehearse()

    rehearse("sex", "1")
    with pytest.raises(InvalidInput, match=r"sex=1: number 1 stands for '2' there; write value = \"1\""):
        rehearse("sex", 1)
    with pytest.raises(InvalidInput, match=r"audit\.property: rows with all=yes=20 are all there are"):
        rehearse("all", "yes")
    with pytest.raises(InvalidInput, match=r"audit\.property: value of tag 'all'='yess' is unknown"):
        rehearse("all", "yess")
    with pytest.raises(InvalidInput, match=r"audit\.property: tag of rows='al' is unknown"):
        rehearse("al", "yes")


def test_a_limit_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidInput, match="limit max_epsilon=nan is no number"):
        gate.require_sound({"max_epsilon": math.nan}, built_in())


@pytest.mark.parametrize("name", ["max_property_auc", "stress.max_property_auc", "max_replaced_accuracy"])
def test_a_limit_that_a_guess_would_break_is_refused(tmp_path: Path, name: str) -> None:
    for bound in (0.4, 0.5):
        with pytest.raises(InvalidInput, match=rf"limit {name}={bound} must be above 0.5, which guessing scores; 0.6 "):
            audit(parse(SUBJECT | {"limits": {name: bound}}, "subject"), tmp_path)
    gate.require_sound({name: 0.51}, built_in())
    assert not list(tmp_path.iterdir())


def test_chance_is_declared_as_it_is_found() -> None:
    assert {name: chance for name, chance in gate.chances(built_in()).items() if not name.startswith("stress.")} == {
        "max_replaced_accuracy": 0.5,
        "max_canary_auc": 0.5,
        "max_membership_auc": 0.5,
        "max_model_membership_auc": 0.5,
        "max_property_auc": 0.5,
    }


@pytest.mark.parametrize("kind", ["ifca", "cosine_kmeans"])
def test_more_clusters_than_clients_are_refused(kind: str) -> None:
    data = {"data": {"kind": "digits"}, "partition": {"kind": "iid", "clients": 4}, "model": {"kind": "fcnn"}}

    def rehearse(clusters: int) -> None:
        parse(SUBJECT | data | {"trainer": {"kind": kind, "clusters": clusters}}, "subject").rehearse()

    rehearse(4)
    with pytest.raises(InvalidInput, match=r"clusters=5 is more than the 4 clients with data.*use fewer clusters"):
        rehearse(5)
    points = {"trainer": {"kind": "kfed", "clusters": 10}}
    parse(SUBJECT | data | points, "subject").rehearse()  # clusters of points


def test_a_limit_that_anything_would_meet_is_refused(tmp_path: Path) -> None:
    for name, bound in (("max_model_membership_auc", 60.0), ("stress.max_property_auc", 1.5), ("min_accuracy", 90.0)):
        with pytest.raises(InvalidInput, match=rf"limit {name}={bound} must lie in 0..1"):
            audit(parse(SUBJECT | {"limits": {name: bound}}, "subject"), tmp_path)


@pytest.mark.parametrize(
    ("name", "bound", "tighter"),
    [
        ("max_property_auc", 1, 0.99),
        ("stress.max_property_auc", 1.0, 0.99),
        ("max_reconstruction_cosine", 1.0, 0.99),
        ("min_accuracy", 0.0, 0.01),
        ("max_cost", math.inf, 1e9),
    ],
)
def test_a_limit_that_nothing_could_break_is_refused(name: str, bound: float, tighter: float) -> None:
    """The end of the score's scale: it was accepted, and met by whatever was found."""
    with pytest.raises(InvalidInput, match=rf"limit {name}={bound} is broken by nothing, .*; tighten it"):
        gate.require_sound({name: bound}, built_in())
    gate.require_sound({name: tighter}, built_in())


def test_a_limit_of_infinity_on_epsilon_asks_for_a_proof() -> None:
    gate.require_sound({"max_epsilon": math.inf}, built_in())


def test_clients_that_are_there_twice_are_refused(tmp_path: Path) -> None:
    """They would count as two that agree."""
    rows = [f"{row / 60},{site},{row % 2}" for site in range(2) for row in range(30)]
    (tmp_path / "rows.csv").write_text("a,site,b\n" + "\n".join(rows))
    data = {"kind": "table", "path": str(tmp_path / "rows.csv"), "label": "b", "tags": ["site"]}
    sites = {"data": data, "partition": {"kind": "by_tag", "tag": "site"}, "model": {"kind": "fcnn", "hidden": 2}}
    asked = parse(SUBJECT | sites, "subject")
    federation = asked.federation()
    twice = replace(federation, train=Shards.of([torch.arange(20), torch.arange(30, 50)]))
    with pytest.raises(InvalidInput, match="clients 0 and 1 hold the very same 20 rows"):
        Handed.of(FedAvg(rounds=1), twice, asked.built_model(twice.examples), [Defence()]).rehearse()


def test_clients_by_a_column_are_the_same_in_every_seed(tmp_path: Path) -> None:
    """Dealt rows are other clients with every seed; sites are not, and three seeds are no three times as many."""
    rows = [f"{row / 60},{row % 3},{row % 2}" for row in range(60)]
    (tmp_path / "rows.csv").write_text("a,site,b\n" + "\n".join(rows))
    data = {"kind": "table", "path": str(tmp_path / "rows.csv"), "label": "b", "tags": ["site"]}
    sites = {"data": data, "partition": {"kind": "by_tag", "tag": "site"}, "model": {"kind": "fcnn", "hidden": 2}}
    assert parse(SUBJECT | sites, "subject").repeated_units == {"clients"}
    assert parse(SUBJECT | sites | {"audit": {"seeds": 1}}, "subject").repeated_units == {"clients"}
    assert parse(SUBJECT | {"data": data}, "subject").repeated_units == frozenset()
    assert parse(SUBJECT, "subject").repeated_units == frozenset()


def test_numbers_are_not_audited(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n" + "\n".join(f"{row},{row * 0.5}" for row in range(20)))
    data = {"kind": "table", "path": str(tmp_path / "rows.csv"), "label": "b", "predicts": "numbers"}
    subject = parse(SUBJECT | {"data": data, "model": {"kind": "dense", "sizes": [1, 1]}}, "subject")
    with pytest.raises(InvalidInput, match="the audit's attacks go by classes; `coterie train` takes them"):
        subject.rehearse()
