"""Every option of every kind with values that nobody means: an object, or an error of ours, in little time and memory.

What breaks only when it is run is in ``tests/test_hostile_doors.py``.
"""

from __future__ import annotations

import inspect
import json
import math
import random
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from functools import partial
from typing import Any

import pytest
import torch
from tests.ring import blobs
from tests.test_fuzz_doors import survives

from coterie.audit.case import parse as parse_subject
from coterie.config import registry
from coterie.config.schema import Choice, build_model, parse
from coterie.data.catalogue import SOURCES
from coterie.errors import InvalidInput
from coterie.rng import Rng

ODD: list[Any] = [-1, 0, 1, 10**9, 10**18, 10**40, 0.5, -0.5, 1e308, 5e-324, math.nan, math.inf, -math.inf]
ODD += ["x", "", "\u202e\u0007", "os:system", "../../x", "y" * 10_000, date(1979, 5, 27), True, False]
ODD += [
    [],
    {},
    [1, 2],
    [[1]],
    ["x"],
    [-1] * 3,
    {"kind": "x"},
    {"a": {"b": {}}},
    {"steps": 10**18},
    {"kind": "adam", "lr": math.nan},
]
EXAMPLES = blobs([20] * 4).examples
PICTURES = replace(EXAMPLES, x=torch.zeros(len(EXAMPLES), 3, 32, 32))
TEXTS = replace(EXAMPLES, x=torch.ones(len(EXAMPLES), 6, dtype=torch.int64), vocabulary=("", "a"))
KINDS = {
    "trainer": registry.TRAINERS,
    "model": registry.MODELS,
    "partition": registry.PARTITIONS,
    "defence": registry.DEFENCES,
}
OWN = ("table", "arrays", "images")  # whose files are tried elsewhere


def options_of(target: registry.Target) -> list[str]:
    return [name for name in inspect.signature(target).parameters if name not in ("self", "known", "of")]


def every_option() -> Iterator[tuple[str, str, str]]:
    for table, names in KINDS.items():
        for kind in names:
            for option in options_of(registry.look_up(kind, names, table)):
                yield table, kind, option
    for kind, source in SOURCES.items():
        for option in options_of(source) if kind not in OWN else ():
            yield "data", kind, option


def built(table: str, kind: str, options: dict[str, Any]) -> object:
    """As a run would build it, of a few examples."""
    choice = Choice.model_validate({"kind": kind, **options})
    if table == "data":
        source = registry.build(SOURCES[kind], options, f"data {kind!r}")
        return getattr(source, "numbers", 0) <= 10_000 and source.load(None, rng=Rng.seeded(0))
    if table == "model":
        return build_model(choice, TEXTS if kind == "gru" else PICTURES)
    if table == "partition":
        return registry.build(registry.look_up(kind, KINDS[table], table), options, kind).split(EXAMPLES, Rng.seeded(0))
    config = parse({"data": {"kind": "forge"}, "public": {"rows": 20}, table: choice.model_dump()}, "made up")
    protocol = config.protocol(config.trainers[0])
    return protocol if table == "trainer" else config.built_defence(config.defence, protocol, 4)


@pytest.mark.parametrize("table", [*KINDS, "data"])
def test_every_option(table: str) -> None:
    draws, refused, tried = random.Random(table), 0, 0
    for _, kind, option in (one for one in every_option() if one[0] == table):
        needed = {"clients": 4} if table == "partition" and kind != "vertical" else {}
        for odd in draws.sample(ODD, 12):
            tried += 1
            refused += not survives(partial(built, table, kind, {**needed, option: odd}))
    assert refused > tried / 2


NAMED: list[tuple[dict[str, Any], str]] = [
    ({"data": {"kind": "forge", "count": 10**9}}, "are more than the 268435456 that are drawn at most"),
    ({"data": {"kind": "faces", "count": 10**40}}, "are more than the 268435456"),
    ({"data": {"kind": "faces", "rows": 3}}, r"^data 'faces': rows, columns=\(3, 47\) must be at least 12"),
    ({"partition": {"kind": "dirichlet", "clients": 4, "alpha": math.inf}}, "alpha=inf must be positive and at most"),
    (
        {"partition": {"kind": "rotation", "clients": 4, "mixing": 1e308}},
        "mixing=1e[+]308 must be positive and at most",
    ),
    ({"model": {"kind": "fcnn", "hidden": 10**40}}, "cannot be built"),
    ({"model": {"kind": "fcnn", "hidden": 0}}, "parameters of a layer=0 must be 1 at least"),
    ({"model": {"kind": "fcnn", "hidden": 10**9}}, "must be at most 268435456"),
    ({"trainer": {"kind": "ifca", "candidates": 10**9}}, "candidates=1000000000 must be at most 10000"),
    ({"trainer": {"kind": "fedem", "components": 10**9}}, "components=1000000000 must be at most 10000"),
    ({"trainer": {"kind": "fedavg", "rounds": 10**18}}, "rounds=10+ must be at most 10+"),
    ({"trainer": {"kind": "fedavg", "local": {"steps": 10**18}}}, "steps=10+ must be at most"),
    ({"trainer": {"kind": "fedavg", "local": {"lr": True}}}, "option local lr=True must be a number"),
    ({"trainer": []}, r"trainer=\[\] must be a table, or several"),
    ({"trainer": [{"kind": 3}]}, "trainer.0.kind=3 must be a word in quotes"),
    ({"defence": {"kind": "mingling", "group_tags": 10**9}}, r"must lie in 2\.\.4096"),
    ({"defence": {"kind": "adaptive_ldp", "width": 10**9}}, "width=1000000000 must be at most 1024"),
    ({"defence": {"kind": "robust", "share": math.nan}}, "share=nan is no number; say one"),
    ({"trainer": {"kind": "fedavg", "local": {"lr": math.nan}}}, "option local lr=nan is no number"),
    ({"defence": {"kind": "robust", "share": 0.3}}, "share=0.3 has no effect with rule='median'"),
    ({"defence": {"kind": "robust", "rule": "trimmed_mean", "bad": 2}}, "bad=2 has no effect with rule='trimmed_mean'"),
    ({"defence": {"kind": "mingling", "cipher": "ckks", "least": 3}}, "least=3 has no effect with cipher='ckks'"),
    ({"defence": {"kind": "secure_sums", "least": 5}}, "least=5 must be at most 4: so many clients are asked"),
    ({"defence": {"kind": "mingling", "least": 5}}, "least=5 must be at most 4"),
    (
        {"defence": {"kind": "secure_sums", "least": 3}, "trainer": {"kind": "fedavg", "participation": 0.5}},
        "least=3 must be at most 2",
    ),
    ({"defence": {"kind": "mingling", "members": 9}}, "members=9 has no effect with cipher='secure_sums'"),
    ({"defence": {"kind": "perturb_once", "ratio": 0.4}}, "ratio=0.4 has no effect with mechanism='piecewise'"),
    ({"partition": {"kind": "iid", "clients": 4, "minimum": 9}}, "minimum=9 has no effect with alpha=None"),
    ({"seed": True}, "seed=True must be a number"),
    ({"name": "../x"}, "must begin with a letter or digit"),
    ({"data": {}}, r"data\.kind is missing; say it"),
    ({"stop": 3}, "stop=3 must be a table of names and values"),
    ({"data": tomllib.loads("x = " + "[" * 60 + "]" * 60)}, "has tables 20 deep; write it flat"),
]


@pytest.mark.parametrize(("words", "told"), NAMED, ids=[str(words)[:50] for words, _ in NAMED])
def test_what_is_wrong_is_named(words: dict[str, Any], told: str) -> None:
    said = {"data": {"kind": "digits"}, "partition": {"kind": "iid", "clients": 4}, **words}
    with pytest.raises(InvalidInput, match=told):
        parse(said, "c.toml").case(parse(said, "c.toml").trainers[0])


def test_as_many_as_are_asked_may_be_needed() -> None:
    said = {"data": {"kind": "digits"}, "partition": {"kind": "iid", "clients": 4}}
    found = parse({**said, "defence": {"kind": "secure_sums", "least": 4}}, "c.toml")
    assert found.case(found.trainers[0]).defence.seals


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"limits": {"max_epsilon": True}}, "limit max_epsilon=True must be a number"),
        ({"limits": {"stress": {"max_canary_auc": False}}}, "limit stress.max_canary_auc=False must be a number"),
        ({"audit": {"property": {"tag": "a", "value": True}}}, "audit property value=True must be a number"),
        ({"audit": {"seeds": math.inf}}, "audit.seeds=inf must be a finite number"),
        ({"audit": {"canaries": {"count": "many"}}}, "audit.canaries.count='many' must be a valid integer"),
        ({"audit": {"canaries": {"count": 10**9}}}, "count=1000000000 must be less than or equal to 1000000"),
        ({"audit": {"property_inference": {"scored": 10**18}}}, "scored=10+ must be less than or equal to 1000000"),
        ({"audit": {"seeds": 10**9}}, "seeds=1000000000 must be less than or equal to 1000"),
        ({"audit": {"model_membership": {"share": math.nan}}}, "model_membership share=nan is no number"),
        ({"audit": {"compare": [{"clip": 1}]}}, r"audit\.compare\.0\.kind is missing"),
    ],
)
def test_an_audits_tables(words: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        parse_subject(words, "c.toml")


def test_infinity_is_kept_and_not_taken_for_nothing() -> None:
    """JSON has no word for it: a run that was begun with it would be resumed with none, and two settings be one."""
    config = parse(
        {"defence": {"kind": "noisy_sums", "epsilon": math.inf}, "trainer": {"kind": "x", "y": [math.inf]}}, ""
    )
    for again in (config.model_dump(mode="json"), json.loads(config.model_dump_json())):
        assert parse(json.loads(json.dumps(again)), "run.json") == config
