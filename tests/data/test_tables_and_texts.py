from __future__ import annotations

import gzip
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from tests.data import published

from coterie.data.catalogue import SOURCES, check, find, rows
from coterie.data.sources.acs_income import COLUMNS, AcsIncome
from coterie.data.sources.base import Readiness
from coterie.data.sources.binary_features import Location30, Purchase100, Texas100
from coterie.data.sources.own import Arrays, ImageFolder, Table
from coterie.data.sources.reviews import Critics, Yelp
from coterie.data.sources.text import Vocabulary, tokens
from coterie.errors import DataMissing, InvalidInput


def test_purchase_and_texas_from_their_text_files(tmp_path: Path) -> None:
    bought, stays = published.write_purchase(tmp_path), published.write_texas(tmp_path)
    purchase, texas = Purchase100().load(tmp_path), Texas100().load(tmp_path)
    assert torch.equal(purchase.x, torch.from_numpy(bought.astype(np.float32)))
    assert purchase.y.tolist() == [0, 15, 30, 45, 60, 75, 90]
    assert torch.equal(texas.x, torch.from_numpy(stays.astype(np.float32)))
    assert texas.y.tolist() == [99, 98, 97, 96, 95]


def test_location_has_its_labels_in_quotation_marks(tmp_path: Path) -> None:
    visited = published.write_location(tmp_path)
    location = Location30().load(tmp_path)
    assert torch.equal(location.x, torch.from_numpy(visited.astype(np.float32)))
    assert location.y.tolist() == [0, 5, 10, 15, 20, 25]
    assert location.classes == 30


def test_location_is_read_from_its_archive(tmp_path: Path) -> None:
    visited = published.write_location(tmp_path)
    with tarfile.open(tmp_path / "location30.tgz", "w:gz") as archive:
        archive.add(tmp_path / "bangkok", "bangkok")
    (tmp_path / "bangkok").unlink()
    assert torch.equal(Location30().load(tmp_path).x, torch.from_numpy(visited.astype(np.float32)))
    with tarfile.open(tmp_path / "location30.tgz", "w:gz"):
        pass
    with pytest.raises(InvalidInput, match="holds 0 files"):
        Location30().load(tmp_path)
    (tmp_path / "location30.tgz").write_bytes(b"no archive")
    with pytest.raises(InvalidInput, match="fetch it again"):
        Location30().load(tmp_path)


def test_carriage_returns_do_no_harm(tmp_path: Path) -> None:
    bought = published.write_purchase(tmp_path)
    path = tmp_path / "dataset_purchase"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert torch.equal(Purchase100().load(tmp_path).x, torch.from_numpy(bought.astype(np.float32)))


@pytest.mark.parametrize("one_hot", [True, False])
def test_purchase_from_npz(tmp_path: Path, one_hot: bool) -> None:
    labels = np.array([99, 0, 50])
    features = published.bits(3, 600)
    np.savez(tmp_path / "purchase100.npz", features=features, labels=np.eye(100)[labels] if one_hot else labels)
    examples = Purchase100().load(tmp_path)
    assert examples.y.tolist() == [99, 0, 50]
    assert torch.equal(examples.x, torch.from_numpy(features.astype(np.float32)))


def test_wrong_bits_are_named_by_line(tmp_path: Path) -> None:
    published.write_purchase(tmp_path)
    path = tmp_path / "dataset_purchase"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:4], lines[4][:-1] + "7", *lines[5:]]))
    with pytest.raises(InvalidInput, match="line 5 is not 600 zeros and ones"):
        Purchase100().load(tmp_path)
    path.write_text("\n".join([*lines[:2], "1,0,1"]))
    with pytest.raises(InvalidInput, match="line 3 is shorter"):
        Purchase100().load(tmp_path)
    np.savez(tmp_path / "texas100.npz", features=published.bits(3, 600), labels=[1, 2, 3])
    with pytest.raises(InvalidInput, match=r"\(n, 6169\)"):
        Texas100().load(tmp_path)


def test_tokens_by_hand() -> None:
    assert tokens("It's GOOD, no: 10/10!", 99) == ["it's", "good", ",", "no", "10", "10", "!"]
    assert tokens("one two three", 2) == ["one", "two"]


def test_vocabulary_ranks_caps_and_pads_before_the_text() -> None:
    texts = [["b", "a", "b"], ["a", "c"], []]
    vocabulary = Vocabulary.of(texts, size=4)
    assert vocabulary.words == ("<padding>", "<unknown>", "a", "b")  # a and b tie at two; c is beyond the cap
    assert vocabulary.encode(texts, 4).tolist() == [[0, 3, 2, 3], [0, 0, 2, 1], [0, 0, 0, 0]]


YELP = (("ann", 5, "Lovely food, lovely people"), ("bob", 1, 'Bad "soup",\nbad mood'), ("ann", 3, "Fine"))


def yelp_csv() -> str:
    frame = pd.DataFrame(YELP, columns=["user_id", "stars", "text"])
    return frame.assign(cool=0).to_csv(index=False)


@pytest.mark.parametrize("kind", ["csv", "zip", "json"])
def test_yelp_in_each_of_its_forms(tmp_path: Path, kind: str) -> None:
    if kind == "csv":
        (tmp_path / "yelp.csv").write_text(yelp_csv())
    elif kind == "zip":
        with zipfile.ZipFile(tmp_path / "yelp_3_reviews.csv.zip", "w") as packed:
            packed.writestr("yelp.csv", yelp_csv())
    else:
        lines = [json.dumps({"user_id": user, "stars": float(stars), "text": text}) for user, stars, text in YELP]
        (tmp_path / "yelp_academic_dataset_review.json").write_text("\n".join(lines))
    examples = Yelp(length=6).load(tmp_path)
    assert examples.y.tolist() == [4, 0, 2]
    assert examples.tags["author"].tolist() == [0, 1, 0]
    words = [[examples.vocabulary[token] for token in row if token] for row in examples.x.tolist()]
    assert words == [["lovely", "food", ",", "lovely", "people"], ["bad", "soup", ",", "bad", "mood"], ["fine"]]
    assert len(Yelp(authors=1).load(tmp_path)) == 2
    assert Yelp(vocabulary=4).load(tmp_path).x.max() == 3
    assert "the vocabulary, whose words and their numbers follow from all texts" in examples.elsewhere


def test_yelp_errors(tmp_path: Path) -> None:
    (tmp_path / "yelp.csv").write_text("user_id,stars,text\nann,6,hello\n")
    with pytest.raises(InvalidInput, match="review 1: stars='6' must be 1 to 5"):
        Yelp().load(tmp_path)
    (tmp_path / "yelp.csv").write_text("user,stars,text\nann,5,hello\n")
    with pytest.raises(InvalidInput, match="has no user_id"):
        Yelp().load(tmp_path)
    (tmp_path / "yelp.csv").write_text("user_id,stars,text\n")
    with pytest.raises(InvalidInput, match="no review"):
        Yelp().load(tmp_path)


CRITICS = (("Ann+Archer", 0, 1, "dull ."), ("Ann+Archer", 2, 3, "a marvel"), ("Bob+Best", 1, 2, "fair enough"))


def test_critics_from_lines_and_from_folders(tmp_path: Path) -> None:
    lines = [dict(zip(("author", "label3", "label4", "text"), critic, strict=True)) for critic in CRITICS]
    with gzip.open(tmp_path / "movie_reviews_4authors.jsonl.gz", "wt") as file:
        file.write("\n".join(map(json.dumps, lines)))
    for name in ("Ann+Archer", "Bob+Best"):
        home = tmp_path / "folders" / "scaledata" / name
        home.mkdir(parents=True)
        mine = [critic for critic in CRITICS if critic[0] == name]
        (home / f"subj.{name}").write_text("\n".join(critic[3] for critic in mine) + "\n")
        (home / f"label.3class.{name}").write_text("".join(f"{critic[1]}\n" for critic in mine))
        (home / f"label.4class.{name}").write_text("".join(f"{critic[2]}\n" for critic in mine))
    one, other = Critics().load(tmp_path), Critics().load(tmp_path / "folders")
    assert one.y.tolist() == [1, 3, 2]
    assert one.tags["author"].tolist() == [0, 0, 1]
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.y, other.y)
    assert Critics(score_classes=3).load(tmp_path / "folders").y.tolist() == [0, 2, 1]
    with pytest.raises(InvalidInput, match="score_classes=5"):
        Critics(score_classes=5)


def write_acs(folder: Path) -> None:
    folder.mkdir()
    draw = np.random.default_rng(1)
    for state, count in (("co", 6), ("ne", 4)):
        frame = pd.DataFrame(draw.integers(1, 4, (count, 10)).astype(float), columns=list(COLUMNS))
        frame["AGEP"] = np.arange(20.0, 20.0 + count)
        frame.to_csv(folder / f"acsincome_{state}_allfeaturesTP2.csv", index=False)
        pd.DataFrame({"PINCP": np.arange(count) % 2}).to_csv(folder / f"acsincome_{state}_labelTP2.csv", index=False)


def test_acs_income_states_tags_and_encodings(tmp_path: Path) -> None:
    write_acs(tmp_path / "acs_income")
    examples = AcsIncome().load(tmp_path)
    assert examples.x.shape == (10, 10)
    assert torch.allclose(examples.x.mean(0), torch.zeros(10), atol=1e-6)
    assert examples.tags["state"].tolist() == [0] * 6 + [1] * 4
    assert examples.y.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]
    nebraska = AcsIncome(states=("ne",), columns=("SEX", "AGEP"), one_hot=True).load(tmp_path)
    sexes = nebraska.tags["SEX"]
    assert torch.equal(nebraska.x[:, :-1].argmax(1), torch.unique(sexes, return_inverse=True)[1])
    assert torch.equal(nebraska.x[:, :-1].sum(1), torch.ones(4))
    with pytest.raises(InvalidInput, match="state='nv'"):
        AcsIncome(states=("nv",)).load(tmp_path)
    with pytest.raises(InvalidInput, match="did you mean 'AGEP'"):
        AcsIncome(columns=("AGE",))


def test_acs_income_is_measured_by_public_numbers_where_they_are_given(tmp_path: Path) -> None:
    """A published table was taken for public: a record moved all rows, and an epsilon was stated for it."""
    write_acs(tmp_path / "acs_income")
    scale = {"AGEP": (50.0, 25.0), "WKHP": (40.0, 20.0)}
    one_hot = AcsIncome(one_hot=True, scale=scale).load(tmp_path)
    assert one_hot.x[:6, 0].tolist() == pytest.approx([(age - 50) / 25 for age in range(20, 26)])
    codes = tuple(name for name in COLUMNS if name not in scale)
    for public in (AcsIncome(raw=True), AcsIncome(columns=codes, one_hot=True), AcsIncome(one_hot=True, scale=scale)):
        assert public.load(tmp_path).elsewhere == ""
    for own in (AcsIncome(), AcsIncome(one_hot=True), AcsIncome(scale=scale), AcsIncome(one_hot=True, scale={})):
        assert "mean and deviation of its columns" in own.load(tmp_path).elsewhere
    with pytest.raises(InvalidInput, match="scale='SEX'"):  # it is one-hot
        AcsIncome(one_hot=True, scale={"SEX": (0.0, 1.0)})
    with pytest.raises(InvalidInput, match="scale='AGEP'"):  # nothing is scaled
        AcsIncome(raw=True, scale=scale)
    with pytest.raises(InvalidInput, match=r"scale of 'AGEP'=\(50.0, 0.0\) must be finite numbers, the second above 0"):
        AcsIncome(scale={"AGEP": (50.0, 0.0)})


def people() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "income": ["high", "low", "low", "high"],
            "age": [20, 30, 40, 50],
            "town": ["Ulm", "Ulm", "Bonn", "Jena"],
            "member": [True, False, True, True],
            "branch": [7, 9, 7, 8],
            "constant": [5.0, 5.0, 5.0, 5.0],
        }
    )


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".parquet"])
def test_table_encodes_numbers_texts_and_tags(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"people{ending}"
    people().to_parquet(path) if ending == ".parquet" else people().to_csv(path, index=False)
    examples = Table(path, label="income", tags=("branch",)).load()
    assert examples.y.tolist() == [0, 1, 1, 0]
    assert examples.label_names == ("high", "low")
    assert examples.tags["branch"].tolist() == [0, 2, 0, 1]
    # age standardised (mean 35, deviation sqrt(125)); towns Bonn, Jena, Ulm; member False, True; constant 0
    age = (torch.tensor([20.0, 30, 40, 50]) - 35) / 125**0.5
    due = torch.tensor([[0.0, 0, 1, 0, 1, 0], [0, 0, 1, 1, 0, 0], [1, 0, 0, 0, 1, 0], [0, 1, 0, 0, 1, 0]])
    assert torch.allclose(examples.x, torch.cat([age[:, None], due], 1))
    plain = Table(Path(path.name), label="income", drop=("town", "member", "branch"), standardise=False)
    assert plain.load(tmp_path).x.tolist() == [[20, 5], [30, 5], [40, 5], [50, 5]]


def test_a_column_is_measured_by_public_numbers_where_they_are_given(tmp_path: Path) -> None:
    """By its own mean and deviation, one row decides what all others are; then a claim about a row is none."""
    path = tmp_path / "people.csv"
    people().to_csv(path, index=False)
    scale = {"age": (30.0, 10.0), "branch": (8.0, 2.0), "constant": (5.0, 1.0)}
    public = Table(path, label="income", scale=scale).load()
    assert public.x[:, 0].tolist() == [-1, 0, 1, 2]
    for made in (public, Table(path, label="income", standardise=False).load()):
        assert made.elsewhere == ""
    for table in (
        Table(path, label="income"),
        Table(path, label="income", scale={"age": (30.0, 10.0)}),  # the others are standardised
        Table(path, label="branch", predicts="numbers", drop=("constant",), scale={"age": (30.0, 10.0)}),
    ):
        assert "mean and deviation of its columns" in table.load().elsewhere
    guessed = Table(path, label="income", scale=scale, scale_guessed=True).load()  # which whoever guessed it has said
    assert "guessed from all rows" in guessed.elsewhere
    assert torch.equal(guessed.x, public.x)
    assert public.known == "the numbers of [data] scale and which values 'town', 'member', 'income' may have"
    people().assign(age=[20, 30, 40, 50_000]).to_csv(path, index=False)
    assert torch.equal(Table(path, label="income", scale=scale).load().x[:3], public.x[:3])
    for wrong, message in (
        ({"town": (0.0, 1.0)}, "scale='town'"),
        ({"age": (0.0, 0.0)}, r"scale of 'age'=\(0.0, 0.0\) must be finite numbers, the second above 0"),
    ):
        with pytest.raises(InvalidInput, match=message):
            Table(path, label="income", scale=wrong).load()


def test_a_tag_that_is_kept_is_a_feature_too(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    people().to_csv(path, index=False)
    plain = Table(path, label="income").load()
    kept = Table(path, label="income", tags=("town", "branch"), keep=("town", "branch")).load()
    assert torch.equal(kept.x, plain.x)
    assert kept.tags["town"].tolist() == [2, 2, 0, 1]
    with pytest.raises(InvalidInput, match="keep='town' must be one of tags"):
        Table(path, label="income", keep=("town",)).load()


def test_table_errors(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    people().to_csv(path, index=False)
    with pytest.raises(InvalidInput, match="did you mean 'income'"):
        Table(path, label="incme").load()
    with pytest.raises(DataMissing, match=r"nobody\.csv does not exist"):
        Table(tmp_path / "nobody.csv", label="x").load()
    with pytest.raises(InvalidInput, match="not a class"):
        Table(path, label="age").load()
    with pytest.raises(InvalidInput, match="features"):
        Table(path, label="income", drop=("age", "town", "member", "branch", "constant")).load()
    people().assign(age=[20.0, float("nan"), float("nan"), 50.0]).to_csv(path, index=False)
    with pytest.raises(InvalidInput, match=r"'age' of people\.csv has 2 gaps in 4 rows"):
        Table(path, label="income").load()
    with pytest.raises(InvalidInput, match="not a class"):
        Table(path, label="branch", drop_gaps=True).load()
    people().assign(when=pd.Timestamp("2020-01-01")).to_parquet(tmp_path / "dates.parquet")
    with pytest.raises(InvalidInput, match="'when' holds dates"):
        Table(tmp_path / "dates.parquet", label="income").load()
    many = pd.DataFrame({"y": [0, 1] * 150, "key": [f"k{row}" for row in range(300)]})
    many.to_csv(tmp_path / "keys.csv", index=False)
    with pytest.raises(InvalidInput, match="300 different texts"):
        Table(tmp_path / "keys.csv", label="y").load()
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InvalidInput, match=r"broken\.parquet cannot be read"):
        Table(tmp_path / "broken.parquet", label="y").load()
    (tmp_path / "book.xlsx").write_bytes(b"")
    with pytest.raises(InvalidInput, match="must end in"):
        Table(tmp_path / "book.xlsx", label="y").load()


def test_gaps_can_be_left_out(tmp_path: Path) -> None:
    frame = pd.concat([people()] * 2, ignore_index=True)
    frame.loc[2, "age"] = None
    frame.to_csv(tmp_path / "people.csv", index=False)
    assert len(Table(tmp_path / "people.csv", label="income", drop_gaps=True).load()) == 7


def test_arrays_by_usual_and_by_given_names(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    images = published.DRAW.integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
    np.savez(path, images=images, labels=np.eye(3)[[0, 1, 2, 0, 1, 2]], split=[0, 0, 0, 0, 1, 1], note=np.zeros((2, 2)))
    examples = Arrays(path).load()
    assert examples.x.shape == (6, 3, 5, 4)
    assert examples.y.tolist() == [0, 1, 2, 0, 1, 2]
    assert {name: values.tolist() for name, values in examples.tags.items()} == {"split": [0, 0, 0, 0, 1, 1]}
    np.savez(path, a=np.arange(6.0).reshape(3, 2), b=np.array(["x", "y", "x"]))
    named = Arrays(path, x="a", y="b").load()
    assert (named.x.tolist(), named.y.tolist(), named.label_names) == ([[0, 1], [2, 3], [4, 5]], [0, 1, 0], ("x", "y"))
    np.savez(path, x=np.array([[1, 2], [3, 0]]), y=[0, 1])
    assert Arrays(path, tokens=True).load().x.dtype == torch.int64


def test_arrays_errors(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, stuff=np.zeros((3, 2)), y=[0, 1, 2])
    with pytest.raises(InvalidInput, match=r"holds \['stuff', 'y'\]; say which array is x"):
        Arrays(path).load()
    with pytest.raises(InvalidInput, match="did you mean 'stuff'"):
        Arrays(path, x="stuf").load()
    np.savez(path, x=np.zeros((3, 2)), y=[0, 1])
    with pytest.raises(InvalidInput, match="must equal len"):
        Arrays(path).load()
    np.savez(path, x=np.array([[0.0], [np.nan]]), y=[0, 1])
    with pytest.raises(InvalidInput, match=r"x\[1\] has NaN"):
        Arrays(path).load()
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InvalidInput, match="cannot be read"):
        Arrays(path).load()


def test_large_finite_numbers_are_not_taken_for_infinity(tmp_path: Path) -> None:
    np.savez(tmp_path / "big.npz", x=np.full((4, 1), 3e38, np.float32), y=[0, 1, 0, 1])
    assert len(Arrays(tmp_path / "big.npz").load()) == 4


def test_image_folder_has_a_class_a_subfolder(tmp_path: Path) -> None:
    for name, value in (("cats", 10), ("dogs", 200), ("dogs/more", 100)):
        (tmp_path / name).mkdir()
        Image.new("L", (8, 6), value).save(tmp_path / name / "one.png")
    (tmp_path / "cats" / "notes.txt").write_text("not a picture")
    examples = ImageFolder(tmp_path, rows=6, columns=8, grey=True).load()
    assert examples.label_names == ("cats", "dogs")
    assert examples.y.tolist() == [0, 1, 1]
    assert examples.x.amax((1, 2, 3)).mul(255).round().tolist() == [10, 100, 200]
    with pytest.raises(InvalidInput, match="no pictures"):
        ImageFolder(tmp_path / "cats").load()


def test_catalogue_lists_every_source_with_its_state(tmp_path: Path) -> None:
    published.write_mnist(tmp_path / "mnist")
    listed = {row.name: row for row in rows(tmp_path)}
    assert list(listed) == list(SOURCES)
    assert len(SOURCES) == 22
    ready = {name for name, row in listed.items() if row.state.readiness is Readiness.READY}
    embedded = {"mnist5k", "digits", "faces", "gaussians", "forge", "wave"}
    assert ready == embedded | {"mnist", "table", "arrays", "images"}
    assert listed["mnist"].state.reason == "40 examples of 1x28x28, 10 classes"
    assert all(row.published_at and row.layout and row.about for row in listed.values())
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"\x1f\x8b")
    assert check("mnist", tmp_path).state.readiness is Readiness.DAMAGED
    with pytest.raises(InvalidInput, match="did you mean 'fashion_mnist'"):
        find("fashion-mnist")


def test_a_table_s_numbers_and_labels(tmp_path: Path) -> None:
    people().assign(pays=[0, 1, 1, 0]).to_csv(tmp_path / "people.csv", index=False)
    path = tmp_path / "people.csv"
    numbers = Table(path, label="age", predicts="numbers", standardise=False).load()
    assert numbers.y.tolist() == [[20.0], [30.0], [40.0], [50.0]]
    assert numbers.classes == 1
    scaled = Table(path, label=("age", "branch"), predicts="numbers").load()
    assert torch.allclose(scaled.y.mean(0), torch.zeros(2), atol=1e-6)
    assert torch.allclose(scaled.y.square().mean(0), torch.ones(2))
    labels = Table(path, label=("member", "pays"), predicts="labels").load()
    assert labels.y.tolist() == [[True, False], [False, True], [True, True], [True, False]]
    assert labels.label_names == ("member", "pays")
    with pytest.raises(InvalidInput, match="must be one column for classes"):
        Table(path, label=("member", "pays")).load()
    with pytest.raises(InvalidInput, match=r"values of label column 'age'=4 must be two"):
        Table(path, label="age", predicts="labels").load()
    with pytest.raises(InvalidInput, match="column to predict='town' holds no numbers"):
        Table(path, label="town", predicts="numbers").load()


def test_arrays_of_numbers_and_labels(tmp_path: Path) -> None:
    x, y = np.zeros((3, 2), np.float32), np.array([[0, 1], [1, 1], [0, 0]])
    np.savez(tmp_path / "a.npz", x=x, y=y)
    assert Arrays(tmp_path / "a.npz", predicts="labels").load().y.tolist() == (y == 1).tolist()
    assert Arrays(tmp_path / "a.npz", predicts="numbers").load().y.tolist() == y.astype(float).tolist()
    np.savez(tmp_path / "b.npz", x=x, y=2.5 * np.arange(3))
    assert Arrays(tmp_path / "b.npz", predicts="numbers").load().y.tolist() == [[0.0], [2.5], [5.0]]
    with pytest.raises(InvalidInput, match="must be 0 and 1, or truth values"):
        Arrays(tmp_path / "b.npz", predicts="labels").load()
