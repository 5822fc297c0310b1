"""A newcomer with data of their own: `coterie init` reads it, and what it writes can be audited as it is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_wine
from tests.audit.test_families import coterie

from coterie.audit import toml
from coterie.audit.case import Subject, parse, read
from coterie.audit.starter import Wishes, fitted
from coterie.config.schema import read as read_for_training
from coterie.data.partition.dealing import value_of
from coterie.errors import CoterieError

DOCUMENT = Path(__file__).parents[2] / "docs" / "audit.md"


def wine(folder: Path) -> Path:
    frame: Any = load_wine(as_frame=True).frame
    frame = frame.rename(columns={"target": "kind"})
    frame["kind"] = frame["kind"].map({0: "barolo", 1: "grignolino", 2: "barbera"})
    frame.to_csv(folder / "wine.csv", index=False)
    return folder / "wine.csv"


def written(path: Path, label: str | None = None) -> Subject:
    return parse(tomllib.loads(fitted(path, Wishes(label)).text), "written")


def people(count: int = 400) -> pd.DataFrame:
    draws = np.random.default_rng(0)
    wealth = draws.normal(size=count)
    return pd.DataFrame(
        {
            "number": np.arange(count) + 7,
            "name": [f"person {index}" for index in range(count)],
            "born": pd.date_range("1950-01-01", periods=count).astype(str),
            "planet": "earth",
            "height (cm)": draws.normal(170, 10, count).round(1),
            "wealth": wealth,
            "hand": draws.choice(["left", "right"], count, p=[0.2, 0.8]),
            "comment": [None] * (count - 5) + ["x"] * 5,
            "income": np.where(wealth + draws.normal(scale=0.3, size=count) > 0, "high", "low"),
        }
    )


def test_the_documented_commands_give_a_report(tmp_path: Path) -> None:
    """As documented, with one seed instead of three, and one property inference instead of two."""
    wine(tmp_path)
    (block,) = re.findall(r"^```sh\n(.*?)^```", DOCUMENT.read_text(), re.S | re.M)
    first, second = [line.split()[1:] for line in block.splitlines()]
    done = coterie(tmp_path, *first)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "federation.toml"
    shorter = path.read_text().replace("seeds = 3", "seeds = 1")
    path.write_text(f'{shorter}\n[audit.property_inference]\nattacks = ["passive"]\n')
    done = coterie(tmp_path, *second)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr  # those of defences are in the report
    page = (tmp_path / "runs/audit/wine/report.html").read_text()
    for family in ("Property inference", "Model acquisition", "Preference profiling", "Membership", "Reconstruction"):
        assert family in page


def test_a_table_is_read_as_a_person_would(tmp_path: Path) -> None:
    people().to_csv(tmp_path / "people.csv", index=False)
    subject = written(tmp_path / "people.csv", "income")
    assert subject.data.options["drop"] == ["number", "name", "born", "planet", "comment"]
    assert subject.partition.options["sets"] == 2
    assert subject.partition.options["clients"] == 8  # four of each set
    examples = subject.examples()
    assert examples.classes == 2
    assert subject.audit.property is not None
    tag = subject.audit.property.tag
    assert tag in ("hand", "height (cm)")  # wealth makes the income, so it would only tell the label
    share = float((examples.tags[tag] == value_of(examples, tag, subject.audit.property.value)).float().mean())
    assert 0.1 <= share <= 0.5


def test_a_survey_weight_or_a_key_is_no_property_and_what_is_sensitive_comes_first(tmp_path: Path) -> None:
    """As in the census data called Adult: a weight has least to do with income, and is nobody's secret."""
    frame = people().drop(columns=["number", "name", "born", "comment", "hand", "wealth"])
    draws = np.random.default_rng(1)
    frame["fnlwgt"] = draws.integers(10_000, 900_000, len(frame))
    frame["record_id"] = draws.permutation(len(frame))
    women = np.where(frame["income"] == "high", 0.25, 0.45)
    frame["sex"] = np.where(draws.random(len(frame)) < women, "Female", "Male")
    frame.to_csv(tmp_path / "adult.csv", index=False)
    subject = written(tmp_path / "adult.csv", "income")
    assert subject.audit.property is not None
    assert subject.audit.property.tag == "sex"
    frame.drop(columns="sex").to_csv(tmp_path / "adult.csv", index=False)
    subject = written(tmp_path / "adult.csv", "income")
    assert subject.audit.property is not None
    assert subject.audit.property.tag == "height (cm)"


def test_a_column_that_says_who_holds_a_row_makes_the_clients(tmp_path: Path) -> None:
    frame = people()
    frame["clinic"] = [f"clinic {index % 9}" for index in range(len(frame) - 3)] + ["tiny"] * 3
    frame.to_csv(tmp_path / "people.csv", index=False)
    asked = parse(tomllib.loads(fitted(tmp_path / "people.csv", Wishes("income", "clinic")).text), "written")
    federation = asked.federation()
    assert federation.clients == 9  # three rows are no client
    assert asked.partition.options["tag"] == "clinic"
    held = torch.cat([federation.train.rows, federation.test.rows])
    assert len(held.unique()) == len(held) == len(frame) - 3
    clinic = federation.examples.tags["clinic"]
    assert all(len(clinic[federation.train[client]].unique()) == 1 for client in range(9))
    assert asked.audit.property is not None
    assert asked.audit.property.tag != "clinic"
    asked.rehearse()
    with pytest.raises(CoterieError, match=r"people.csv: --clients='clinc' .*clinic"):
        fitted(tmp_path / "people.csv", Wishes("income", "clinc"))


def survey(count: int = 400) -> pd.DataFrame:
    """As a spreadsheet would write it where commas are decimal."""
    draws = np.random.default_rng(2)
    return pd.DataFrame(
        {
            "Fallnummer": draws.permutation(count) + 500_000,
            "Standort": draws.choice(["Köln", "München", "Düren", "Füssen"], count),
            "Stunden": [f"{hours:.1f}".replace(".", ",") for hours in draws.normal(38, 6, count)],
            "Geschlecht": draws.choice(["männlich", "weiblich"], count, p=[0.6, 0.4]),
            "Einkommen": draws.choice(["über 50000", "bis 50000"], count),
        }
    )


def test_a_spreadsheet_of_another_language_needs_no_option(tmp_path: Path) -> None:
    path = tmp_path / "Erhebung.csv"
    survey().to_csv(path, sep=";", index=False, encoding="latin-1")
    subject = parse(tomllib.loads(fitted(path).text), "written")
    assert subject.data.options["label"] == "Einkommen"  # the last column
    assert subject.data.options["drop"] == ["Fallnummer"]
    assert subject.partition.options["tag"] == "Standort"
    assert subject.audit.property is not None
    assert (subject.audit.property.tag, subject.audit.property.value) == ("Geschlecht", "weiblich")
    subject.rehearse()


def test_what_cannot_be_guessed_is_asked_for_by_name(tmp_path: Path) -> None:
    path = tmp_path / "odd.csv"
    frame = survey().rename(columns={"Standort": "Ort"})
    frame[["Einkommen", "Ort", "Geschlecht", "Stunden"]].to_csv(path, sep=";", index=False)
    with pytest.raises(CoterieError, match=r"to be learnt: --label 'Einkommen' or 'Ort' or 'Geschlecht'$"):
        fitted(path)
    chosen = dict(fitted(path, Wishes("Einkommen")).chosen)
    assert chosen["clients"] == "--clients 'Ort' or 'Geschlecht', if it says who holds a row"


def test_gaps_are_left_out_and_it_says_so(tmp_path: Path) -> None:
    frame = people()
    frame.loc[3, "wealth"] = np.nan
    frame.to_csv(tmp_path / "people.csv", index=False)
    subject = written(tmp_path / "people.csv", "income")
    assert subject.data.options["drop_gaps"] is True
    assert len(subject.examples()) == 399
    chosen = dict(fitted(tmp_path / "people.csv", Wishes("income")).chosen)
    assert chosen["rows with gaps"].startswith("1 are left out, 1 of them for 'wealth'; name it in drop")


def test_arrays_and_pictures_too(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    y, mark = np.arange(120) % 3, np.arange(120) // 3 % 4 == 0
    np.savez(tmp_path / "points.npz", x=draws.normal(size=(120, 5)), y=y, mark=mark.astype(int))
    subject = written(tmp_path / "points.npz")
    assert subject.audit.property is not None
    assert (subject.audit.property.tag, subject.audit.property.value) == ("mark", 1)
    for name in ("cats", "dogs"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(3):
            levels = draws.integers(0, 255, (8, 8, 3)).astype(np.uint8)
            Image.fromarray(levels).save(tmp_path / "pictures" / name / f"{number}.png")
    pictures = written(tmp_path / "pictures")
    assert pictures.examples().classes == 2
    assert pictures.audit.property is None
    said = dict(fitted(tmp_path / "pictures").chosen)
    assert said["data"].startswith("6 examples of 3x32x32, 2 classes, scaled to 32x32 in colour")


def test_what_is_said_of_arrays_can_be_done_with_arrays(tmp_path: Path) -> None:
    """They have no columns, so no option for columns is advised; and nobody standardises them."""
    draws, y = np.random.default_rng(0), np.arange(120) % 3
    for name, scale in (("small", 1.0), ("raw", 500.0)):
        np.savez(tmp_path / f"{name}.npz", x=scale * draws.normal(size=(120, 5)), y=y)
    small, raw = (fitted(tmp_path / f"{name}.npz").chosen for name in ("small", "raw"))
    assert not any("--" in why for _, why in [*small, *raw])
    assert dict(small)["no property"] == "nothing is known of an example but its class"
    np.savez(tmp_path / "rare.npz", x=draws.normal(size=(120, 5)), y=y, ill=np.arange(120) < 3)
    assert dict(fitted(tmp_path / "rare.npz").chosen)["no property"].startswith("no further array has a value that 10%")
    assert dict(small)["data"] == "120 examples of 5 numbers, 3 classes"
    assert "not standardised" in dict(raw)["data"]


def test_an_array_that_says_who_holds_an_example_makes_the_clients(tmp_path: Path) -> None:
    """Of texts or of whole numbers; else the audit would be of a federation that nobody has."""
    draws, y = np.random.default_rng(0), np.arange(120) % 3
    towns = np.array(["Aachen", "Bonn", "Cologne"])[np.arange(120) // 40]
    for number, site in enumerate((towns, np.arange(120) // 40)):
        np.savez(tmp_path / f"{number}.npz", x=draws.normal(size=(120, 5)), y=y, site=site, note=towns)
        subject = written(tmp_path / f"{number}.npz")
        assert subject.partition.model_dump() == {"kind": "by_tag", "tag": "site", "minimum": 10}
        assert subject.federation().clients == 3
        assert subject.examples().tag_names["note"] == ("Aachen", "Bonn", "Cologne")
        assert subject.audit.property is not None  # who holds a row is known; what is asked about is another array
        assert (subject.audit.property.tag, subject.audit.property.value) == ("note", "Aachen")


def test_a_measurement_to_be_learnt_is_known_for_one(tmp_path: Path) -> None:
    frame = people()
    frame["hours"] = np.arange(len(frame)) % 40
    frame.to_csv(tmp_path / "people.csv", index=False)
    told = {label: dict(fitted(tmp_path / "people.csv", Wishes(label)).chosen) for label in ("hours", "income")}
    assert told["hours"]["learn 'hours'"].startswith("as you said: 40 values, each a class of its own")
    assert told["income"]["learn 'income'"] == "as you said: 2 values"


@pytest.mark.parametrize(
    ("name", "label", "message"),
    [
        ("people.csv", "incme", r"'incme' is unknown; did you mean 'income'"),
        ("people.csv", "wealth", r"label column 'wealth' has 400 values in 400 rows; that is a measurement"),
        ("nobody.csv", "income", r"nobody\.csv does not exist; name a \.csv"),
        ("people.xlsx", "income", r"must end in \.csv"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, name: str, label: str | None, message: str) -> None:
    people().to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "people.xlsx").write_bytes(b"PK")
    with pytest.raises(CoterieError, match=message):
        fitted(tmp_path / name, Wishes(label))


def hospital(folder: Path, encoding: str = "latin-1") -> Path:
    """As a hospital's table comes out of a spreadsheet in Europe."""
    draws = np.random.default_rng(2)
    count = 360
    frame = pd.DataFrame(
        {
            "Patient Id": draws.permutation(count) + 1000,
            "Größe": draws.normal(170, 10, count).round(1),
            "Blutdruck": draws.normal(120, 12, count).round(2),
            "site": draws.choice(["Köln", "Aachen", "Düren", "Bonn", "Trier", "Mainz"], count),
            "gender": draws.choice(["männlich", "weiblich"], count, p=[0.6, 0.4]),
            "admitted": pd.date_range("2020-01-01", periods=30).strftime("%d.%m.%Y").to_list() * 12,
        }
    )
    frame["outcome"] = np.where(frame["Blutdruck"] + draws.normal(0, 6, count) > 120, "krank", "gesund")
    frame.to_csv(folder / "Patienten (neu).csv", index=False, sep=";", decimal=",", encoding=encoding)
    return folder / "Patienten (neu).csv"


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8", "utf-8-sig", "utf-16"])
def test_separators_encodings_keys_dates_clients_and_what_is_sensitive_are_seen(tmp_path: Path, encoding: str) -> None:
    found = fitted(hospital(tmp_path, encoding))
    subject = parse(tomllib.loads(found.text), "written")
    assert subject.data.options["label"] == "outcome"
    assert subject.data.options["drop"] == ["Patient Id", "admitted"]
    assert subject.partition.model_dump() == {"kind": "by_tag", "tag": "site", "minimum": 10}
    assert subject.audit.property is not None
    assert (subject.audit.property.tag, subject.audit.property.value) == ("gender", "weiblich")
    federation = subject.federation()
    assert federation.clients == 6
    assert federation.examples.x.shape[1] == 4  # two numbers, and the gender, which is asked about and learnt from
    assert "360 examples of 4 numbers," in found.text
    said = dict(found.chosen)
    assert said["left out 'Patient Id'"] == "numbers the rows, no two alike"
    assert said["left out 'admitted'"] == "holds dates"
    assert "semicolons" in said["rows"]
    assert "decimal commas" in said["rows"]
    assert "by its name" in said["clients by 'site'"]


def test_what_the_user_says_is_done(tmp_path: Path) -> None:
    path = hospital(tmp_path)

    def asked(**wishes: Any) -> Subject:
        return parse(tomllib.loads(fitted(path, Wishes(**wishes)).text), "written")

    by_gender = asked(label="site", clients="gender", sensitive="outcome=krank")
    assert by_gender.partition.options["tag"] == "gender"
    assert by_gender.audit.property is not None
    assert by_gender.audit.property.value == "krank"
    high = asked(sensitive="Blutdruck > 130").data.options["above"]
    assert high == {"Blutdruck": 130.0}
    for wrong, message in {
        "gender=divers": "'divers' is unknown; .*Known: männlich, weiblich",
        "gender": "must be COLUMN=VALUE",
        "gendre=x": "did you mean 'gender'",
        "Blutdruck>viel": "must end in a number",
        "gender>3": "holds no numbers",
    }.items():
        with pytest.raises(CoterieError, match=message):
            asked(sensitive=wrong)
    with pytest.raises(CoterieError, match="'sit' is unknown; did you mean 'site'"):
        asked(clients="sit")


def test_a_property_takes_no_column_from_the_learner(tmp_path: Path) -> None:
    """What is attacked is what would be trained without the question."""
    subject = parse(tomllib.loads(fitted(hospital(tmp_path)).text), "written")
    assert (subject.data.options["tags"], subject.data.options["keep"]) == (["site", "gender"], ["gender"])
    options = {**subject.data.options, "tags": ["site"]}
    said = {name: value for name, value in options.items() if name != "keep"}
    plain = parse({"data": {"kind": "table", **said}}, "plain")
    assert torch.equal(subject.examples().x, plain.examples().x)


def test_a_property_is_no_guess_for_what_is_learnt(tmp_path: Path) -> None:
    path = tmp_path / "coin.csv"
    frame = people()
    frame["coin"] = np.where(np.arange(len(frame)) % 3 == 0, "heads", "tails")
    frame.to_csv(path, index=False)  # the last column
    subject = parse(tomllib.loads(fitted(path, Wishes(sensitive="coin=heads")).text), "written")
    assert subject.data.options["label"] == "income"
    assert subject.audit.property is not None
    assert subject.audit.property.tag == "coin"
    with pytest.raises(CoterieError, match="property='income=low' is of the column that says what is learnt"):
        fitted(path, Wishes("income", sensitive="income=low"))
    with pytest.raises(CoterieError, match="property='hand=left' is of the column that says who holds a row"):
        fitted(path, Wishes("income", "hand", "hand=left"))


def test_what_may_be_asked_and_not_learnt_is_a_tag_alone(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    people().to_csv(path, index=False)
    found = fitted(path, Wishes("income", sensitive="born=1950-01-01"))
    assert (
        "nothing is learnt from that column, which holds dates" in dict(found.chosen)["property 'born is 1950-01-01'"]
    )
    data = tomllib.loads(found.text)["data"]
    assert data["tags"] == ["born"]
    assert "keep" not in data


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds nothing"),
        (b"\n \n", "holds nothing"),
        (b"\x00\x01\x02PNG\xff", "holds binary data"),
        (b"a,b\n", "must be at least 1"),
        (b"1,2,3\n4,5,6\n", "holds numbers"),
        (b'a,b\n"x,1\n2,3\n', "cannot be read as a table|must|say which"),
    ],
)
def test_what_is_no_table_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "odd.csv").write_bytes(content)
    with pytest.raises(CoterieError, match=message):
        fitted(tmp_path / "odd.csv", Wishes("b"))


def test_names_are_written_as_toml(tmp_path: Path) -> None:
    frame = people().rename(columns={"hand": 'ha"nd\nx = 1', "wealth": "we\x7falth"})
    path = tmp_path / 'odd "name"\n[limits]\nx=.csv'
    frame.to_csv(path, index=False)
    subject = parse(tomllib.loads(fitted(path, Wishes("income")).text), "written")
    assert subject.limits == {}
    assert subject.data.options["path"] == str(path)
    assert len(subject.examples()) == 400
    with pytest.raises(CoterieError, match="no Unicode"):
        toml.document({"path": "a\udc80"})


def test_a_data_file_is_found_beside_its_configuration(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    wine(folder)
    (folder / "f.toml").write_text('[data]\nkind = "table"\npath = "wine.csv"\nlabel = "kind"\n')
    assert len(read(folder / "f.toml").examples()) == 178


def test_training_reads_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text(fitted(wine(tmp_path), Wishes("kind")).text + "\n[limits]\nmin_accuracy = 0.9\n")
    assert read_for_training(tmp_path / "f.toml").partition == read(tmp_path / "f.toml").partition


def test_toml_is_read_back_as_it_was() -> None:
    values: dict[str, Any] = {
        "name": 'a "quoted" name\nwith ü and 🙂',
        "number": 1.5,
        "none": None,
        "table": {"height (cm)": 170, "on": True, "list": [1, "two"], "inner": {"x y": 0.1, "far": float("inf")}},
    }
    back = tomllib.loads(toml.document(values))
    assert back == {key: value for key, value in values.items() if value is not None}
