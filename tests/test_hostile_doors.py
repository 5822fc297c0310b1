"""Inputs that somebody made on purpose, at the command line: exit code 2 and a line that says what is wrong.

A pipe would be waited for, a device never ends, a huge empty file takes memory, and names that command a terminal are
other people's too. Damage at random is in ``test_fuzz_doors.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from coterie.audit.starter import fitted
from coterie.commands.cli import main
from coterie.config.schema import parse
from coterie.data.sources.own import read_frame
from coterie.deploy.keys import ClientKeys, ServerKeys
from coterie.errors import CoterieError, InvalidInput

TABLE = "a;label\n" + "".join(f"{row % 9};{row % 2}\n" for row in range(60))
CLIENT = """server = "server/card.json"
keys = "keys"
cards = "cards"
home = "home"
[data]
kind = "table"
path = "d.csv"
label = "label"
[policy]
trainers = ["fedavg"]
"""
RECORD = json.dumps({"config": {"name": "r"}})


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    """What it says."""
    with pytest.raises(SystemExit) as end:
        main(list(words))
    told = capfd.readouterr().err
    assert end.value.code == 2, told
    assert told.startswith("coterie: "), told
    assert "Traceback" not in told
    assert "\x1b" not in told
    assert len(told) < 2000
    return told


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


def empty(path: Path) -> None:
    """Eight gigabytes on paper."""
    with path.open("wb") as file:
        file.truncate(1 << 33)


ODD = [pipe, device, folder, empty]
DOORS = {
    "c.toml": ("train", "c.toml"),
    "b.toml": ("audit", "b.toml"),
    "d.csv": ("init", "f.toml", "--data", "d.csv"),
    "runs/x/run.json": ("resume", "runs/x"),
    "client.toml": ("deploy", "client", "client.toml"),
    "run.toml": ("deploy", "run", "run.toml"),
}


@pytest.mark.parametrize("make", ODD)
@pytest.mark.parametrize("place", DOORS)
def test_what_is_no_plain_file(
    place: str, make: Callable[[Path], None], here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if (place, make) == ("d.csv", folder):
        return  # a folder may hold pictures
    (here / place).parent.mkdir(parents=True, exist_ok=True)
    make(here / place)
    assert Path(place).name in refused(capfd, *DOORS[place])


def test_odd_runs_do_not_hide_the_others(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for number, make in enumerate(ODD):
        (here / f"runs/{number}").mkdir(parents=True)
        make(here / f"runs/{number}/run.json")
    (here / "runs/whole").mkdir()
    (here / "runs/whole/run.json").write_text(RECORD)
    pipe(here / "runs/whole/metrics.jsonl")
    with pytest.raises(SystemExit) as end:
        main(["runs"])
    assert not end.value.code
    assert "whole" in capfd.readouterr().out


@pytest.mark.parametrize(
    "text",
    ["\ufeff", "a,label\n" + "x" * 3_000_000 + ",1\n", "a,label\n" + "1," * 500 + "\n", "a,label\n" + "1,1\n" * 60],
    ids=["a mark alone", "a long value", "a long line", "one class"],
)
def test_tables_that_are_none(text: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "d.csv").write_text(text)
    refused(capfd, "init", "f.toml", "--data", "d.csv")


def test_a_separator_at_the_end_of_lines_moves_no_column(here: Path) -> None:
    """Pandas would take the first column for an index, and every name for its neighbour's."""
    (here / "d.csv").write_text("a;b;label\n" + "".join(f"{row % 9};{row % 5};{row % 2};\n" for row in range(60)))
    frame: pd.DataFrame = read_frame(here / "d.csv")
    assert frame.iloc[13].tolist() == [4, 3, 1]
    (here / "d.csv").write_text("a;b;label\n" + "".join(f"7;{row % 9};{row % 5};{row % 2}\n" for row in range(60)))
    with pytest.raises(InvalidInput, match="as many values as the first has names"):
        read_frame(here / "d.csv")
    (here / "d.csv").write_text(TABLE)
    assert dict(fitted(here / "d.csv").chosen)["learn 'label'"].startswith("by its name")


def test_what_commands_a_terminal_is_shown_and_not_sent(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "d.csv").write_text(TABLE)
    told = refused(capfd, "init", "f.toml", "--data", "d.csv", "--label", "\x1b[2J")
    assert "\\x1b[2J" in told
    (here / "c.toml").write_text('"\\u001b]0;x\\u0007" = 1')
    refused(capfd, "train", "c.toml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed = " + "9" * 5000, "is not valid TOML"),
        ("trainer = 3", "trainer"),
        ('[model]\nkind = "fcnn"\nhidden = true', "hidden=True must be a number"),
        ('[model]\nkind = "fcnn"\nhidden = 1000000000000000', "must be at most 268435456"),
    ],
)
def test_configurations(text: str, words: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "c.toml").write_text(f'{text}\n[partition]\nkind = "iid"\nclients = 4\n')
    assert words in refused(capfd, "train", "c.toml")


def test_a_table_that_is_a_number_is_named() -> None:
    with pytest.raises(CoterieError, match=r"made up='3' must be a table"):
        parse(3, "made up")  # type: ignore[arg-type]


# -- keys and cards ----------------------------------------------------------------------------------------------------


def damaged(path: Path, **changed: Any) -> None:
    said = json.loads(path.read_text()) | changed
    path.write_text(json.dumps({name: value for name, value in said.items() if value != "gone"}))


HARMED: dict[str, dict[str, Any]] = {
    "keys/keys.json": {"name": 1, "node": "x", "letters": "!!", "signs": "AAAA", "root": None},
    "server/card.json": {"address": 5, "authority": [], "letters": "AAAA"},
    "cards/b.json": {"name": "a b", "node": "gone", "letters": 5, "signs": "AAAA", "version": []},
}


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("parties")
    ServerKeys.make(place / "server", "localhost:9092", 9093)
    ClientKeys.make(place / "keys", "anna")
    ClientKeys.make(place / "others", "bert")
    (place / "cards").mkdir()
    shutil.copy(place / "others/card.json", place / "cards/b.json")
    (place / "d.csv").write_text(TABLE)
    (place / "client.toml").write_text(CLIENT)
    return place


@pytest.mark.parametrize(("file", "field"), [(file, field) for file, fields in HARMED.items() for field in fields])
def test_keys_and_cards(file: str, field: str, parties: Path, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(parties, here, dirs_exist_ok=True)
    damaged(here / file, **{field: HARMED[file][field]})
    assert file.rpartition("/")[2] in refused(capfd, "deploy", "client", "client.toml")


@pytest.mark.parametrize("field", ["port", "local_port", "secret", "letters", "host"])
def test_the_servers_keys(field: str, parties: Path, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(parties, here, dirs_exist_ok=True)
    damaged(here / "server/keys.json", **{field: "gone" if field == "host" else [1]})
    refused(capfd, "deploy", "status")


@pytest.mark.parametrize("sealed", ["AA==", "\x1b", 5, "gone"])
def test_letters(sealed: object, parties: Path, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(parties, here, dirs_exist_ok=True)
    said = {"kind": "sealed key", "version": 1, "from": "bert", "for": "anna", "sealed": sealed}
    (here / "l.json").write_text(json.dumps({name: value for name, value in said.items() if value != "gone"}))
    refused(capfd, "deploy", "keys", "take", "l.json")


@pytest.mark.parametrize("words", ["policy = 3", "policy = [1]"])
def test_policies(words: str, parties: Path, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(parties, here, dirs_exist_ok=True)
    (here / "client.toml").write_text(CLIENT.split("[policy]")[0].replace("[data]", f"{words}\n[data]"))
    assert "[policy]" in refused(capfd, "deploy", "client", "client.toml")


RUN = """name = "r"
[model]
kind = "dense"
sizes = [1, 2]
[trainer]
kind = "fedavg"
rounds = 1
[deploy]
shape = [1]
classes = 2
wait = 0
"""
PLANS = {
    'kind = "fedavg"': 'kind = "fedavgg"',
    "rounds = 1": "rounds = 1e400",
    "sizes = [1, 2]": "sizes = [1, 1000000000000]",
    'kind = "dense"\nsizes = [1, 2]': 'kind = "os:system"',
    "[trainer]": "[defence]\nkind = 'mingling'\ncipher = 'mock'\n[trainer]",
    "[model]": "[defence]\nkind = 'dpsgd'\nclip = true\n[model]",
    "shape = [1]": "shape = [100000, 100000, 100000]",
    "classes = 2": "classes = 1000000000000",
    "wait = 0": "wait = 1e300",
    "[deploy]": "[deploy]\ntypo = 1",
    'name = "r"': 'name = "../../r"',
}


@pytest.mark.parametrize("place", PLANS)
def test_a_wrong_plan_is_told_before_anybody_is_waited_for(
    place: str, parties: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(parties, here, dirs_exist_ok=True)
    shutil.copy(here / "cards/b.json", here / "server/clients")
    (here / "run.toml").write_text(RUN.replace(place, PLANS[place]))
    assert "link" not in refused(capfd, "deploy", "run", "run.toml")
    assert not (here / "runs").exists()


def test_a_right_plan_waits_for_the_link(parties: Path, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(parties, here, dirs_exist_ok=True)
    shutil.copy(here / "cards/b.json", here / "server/clients")
    (here / "run.toml").write_text(RUN)
    with pytest.raises(SystemExit):
        main(["deploy", "run", "run.toml"])
    said = capfd.readouterr()
    assert "waiting for clients, 0 s at most" in said.out
    assert "`coterie deploy server` runs it" in said.err


OWNERS = {
    'trainers = ["fedavg"]': "trainers = 3",
    "[policy]": "[policy]\nleast_cohort = true",
    "[policy]\n": "[policy]\nepsilon = nan\n",
    '[policy]\ntrainers = ["fedavg"]': "[policy]",
    'keys = "keys"': 'keys = "d.csv"',
    'kind = "table"': 'kind = "tabel"',
    'path = "d.csv"': "path = 3",
    'label = "label"': 'label = "\\u001b[2J"',
    'home = "home"': "",
    'cards = "cards"': "cards = true",
}


@pytest.mark.parametrize("place", OWNERS)
def test_an_owners_file(place: str, parties: Path, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(parties, here, dirs_exist_ok=True)
    (here / "client.toml").write_text(CLIENT.replace(place, OWNERS[place]))
    refused(capfd, "deploy", "client", "client.toml")


@pytest.mark.parametrize("length", [10, 200_000])
def test_an_error_is_as_long_as_a_terminal(length: int, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "c.toml").write_text(f'[trainer]\nkind = "fedavg"\nweighting = "{"y" * length}"\n[data]\nkind="digits"')
    told = refused(capfd, "train", "c.toml", "--set", "partition.kind=iid", "--set", "partition.clients=4")
    assert told.endswith("must be 'samples' or 'equal'\n")


FEW = '[data]\nkind = "digits"\n[partition]\nkind = "iid"\nclients = 4\n[trainer]\nkind = "fedavg"\nrounds = 1\n'
SAID = [
    ("train", "c.toml", "--set", "trainer.rounds=1e400"),
    ("train", "c.toml", "--set", "name=../../x"),
    ("train", "c.toml", "--set", "data.kind.x=1"),
    ("train", "c.toml", "--set", "trainer={"),
    ("train", "c.toml", "--set", "model.kind=os:system"),
    ("train", "c.toml", "--runs", "c.toml"),
    ("train", "c.toml", "--record", "c.toml"),
    ("audit", "c.toml", "--families", "\x1b[2J"),
    ("audit", "c.toml", "--attacks", "os:system"),
    ("audit", "c.toml", "--junit", "nowhere/x.xml"),
    ("audit", "c.toml", "--folder", "c.toml"),
    ("reproduce", "vertical-kmeans", "--table", "noise", "--seeds", "0-1000000000"),
    ("reproduce", "vertical-kmeans", "--table", "noise", "--seeds", "1,,2"),
    ("reproduce", "vertical-kmeans", "--table", "noise", "--row", "nosuch"),
    ("reproduce", "mingeldpie"),
    ("deploy", "client", "c.toml", "c.toml"),
    ("deploy", "scale", "--enrolled", "9" * 30),
    ("deploy", "keys", "server", "host:1", "--local-port", "-1"),
]


@pytest.mark.parametrize("words", SAID, ids=" ".join)
def test_what_a_command_line_says(words: tuple[str, ...], here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "c.toml").write_text(FEW)
    assert "Errno" not in refused(capfd, *words)
    assert not (here / "runs").exists()


OF_ONES_OWN = """
import warnings
import torch

warnings.warn("a thing to know")

class Line(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 10))
"""


def test_a_warning_is_told_in_one_line(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "warns_when_loaded.py").write_text(OF_ONES_OWN)
    (here / "c.toml").write_text(f'{FEW}[model]\nkind = "warns_when_loaded:Line"\n')
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        with pytest.raises(SystemExit) as end:
            main(["train", "c.toml"])
    assert not end.value.code
    assert capfd.readouterr().err.strip() == "coterie: a thing to know"
