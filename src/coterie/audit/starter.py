"""`coterie init` for a user's own data: a configuration that fits the file, with what had to be guessed said beside."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coterie.audit import toml
from coterie.audit.columns import (
    BOOKKEEPING,
    CLIENT,
    LABEL,
    MOST_CLASSES,
    SENSITIVE,
    may_be_learnt,
    may_name_clients,
    names_clients,
    numbers_rows,
    useless,
)
from coterie.audit.launching import (
    Fitted,
    Spread,
    Written,
    configuration,
    guessed_scale,
    one_line,
    require_epsilon,
    template,
)
from coterie.config.registry import Words
from coterie.data.federation import Examples
from coterie.data.sources.base import describe
from coterie.data.sources.delimited import dialect_of
from coterie.data.sources.own import Arrays, ImageFolder, Table, read_frame, sorted_values
from coterie.errors import DataMissing, InvalidInput, nearest, require
from coterie.files import meant

if TYPE_CHECKING:
    import pandas as pd

    from coterie.data.sources.own import Column


MOST_SETS, ROWS_A_CLIENT = 5, 40
FEW_VALUES = 10  # a column with no more than these is taken as it is; one of more numbers is cut
SHARES = (0.1, 0.5)  # how common a property should be
CUT = 0.7  # the quantile above which a number counts as having the property
LARGE = 10  # a number in an array beyond which gradients are as large; standardised ones hardly ever are
LEAST_OF_A_SITE = 10  # rows: with fewer it has nothing to be tested on
LEAST_OF_A_CLASS = 6  # rows with the property, and as many without, so that their label mixes can be matched


@dataclass(frozen=True)
class Property:
    """Something about a row that nobody trains for: how it is asked for, and who has it."""

    tag: str
    value: int | str
    says: str  # in words
    option: Words  # what the data must be told for it
    has: NDArray[np.bool_]
    why: str = ""


@dataclass(frozen=True)
class Wishes:
    """What the user said of a table; the rest is seen from it."""

    label: str | None = None
    clients: str | None = None  # the column that says who holds a row
    sensitive: str | None = None  # COLUMN=VALUE, or COLUMN>NUMBER
    epsilon: float | None = None  # which shall be proven; None: no defence is proposed

    @property
    def said(self) -> dict[str, str]:
        options = {"--label": self.label, "--clients": self.clients, "--property": self.sensitive}
        return {option: value for option, value in options.items() if value is not None}


def fitted(path: Path, wishes: Wishes | None = None) -> Fitted:
    """A configuration for this table, these arrays or these pictures."""
    wishes = wishes or Wishes()
    require_epsilon(wishes.epsilon)
    if not path.exists():
        raise DataMissing(
            f"data={path} does not exist; {meant(path)}name a .csv, .parquet or .npz file, or a folder of pictures"
        )
    if path.is_dir() or path.suffix == ".npz":
        require(not wishes.said, "options", list(wishes.said), f"are about the columns of a table, and {path} is none")
        kind, source = ("images", ImageFolder(path)) if path.is_dir() else ("arrays", Arrays(path))
        examples = source.load()
        found = None if path.is_dir() else _best(_of_tags(examples), examples)
        chosen = [("data", _as_read(examples, path.is_dir()))]
        spread = _by_array(examples, chosen)
        return _fitted(
            Written(path, {"kind": kind, "path": str(path)}, wishes.epsilon), examples, found, spread, chosen
        )
    return _of_table(path, wishes)


def _as_read(examples: Examples, pictures: bool) -> str:
    """What was made of a folder or of arrays, where it may not be what the user thinks of."""
    if pictures:
        rows, columns = examples.x.shape[-2:]
        return f"{describe(examples)}, scaled to {rows}x{columns} in colour; other rows, columns and grey in [data]"
    largest = float(examples.x.abs().max())
    raw = f", up to {largest:,.4g} in size and not standardised: smaller numbers are learnt from better"
    return f"{describe(examples)}{raw if largest > LARGE else ''}"


def _of_table(path: Path, wishes: Wishes) -> Fitted:
    frame = read_frame(path)
    frame.columns = [str(name) for name in frame.columns]
    written = "" if path.suffix in (".parquet", ".pq") else f", {dialect_of(path)}"
    chosen = [("rows", f"{len(frame):,} of {len(frame.columns)} columns{written}")]
    asked = _named_by(path, wishes.sensitive, frame)
    label = _label(path, frame, wishes, asked, chosen)
    clients = _clients(path, frame.drop(columns=label), wishes, asked, chosen)
    for name, what in ((label, "what is learnt"), (clients, "who holds a row")):
        require(name not in asked, "property", wishes.sensitive, f"is of the column that says {what}; name another")
    classes = frame[label].nunique()
    require(classes >= 2, f"values of the label {label!r}", classes, "must be at least 2, or there is nothing to learn")
    spared = [label, *([clients] if clients else []), *asked]
    aside = [name for name in asked if useless(frame[name])]  # a fact to ask about, and nothing to learn from
    reasons = {name: why for name in frame.columns if name not in spared and (why := useless(frame[name]))}
    chosen += [(f"left out {name!r}", why) for name, why in reasons.items()]
    table = Table(path, label, tags=(*([clients] if clients else []), *aside), drop=tuple(reasons))
    kept = frame.drop(columns=list(reasons))
    gaps = int(kept.isna().any(axis=1).sum())
    if gaps:
        table = replace(table, drop_gaps=True)
        most = kept.isna().sum()
        where = f"{most.max()} of them for {most.idxmax()!r}; name it in drop to leave out that column instead"
        chosen.append(("rows with gaps", f"{gaps} are left out, {where}"))
    examples = table.load()
    others = kept.dropna().drop(columns=[label, *([clients] if clients else [])])
    found = _asked(path, wishes.sensitive, others) if wishes.sensitive else _best(_of_columns(others), examples)
    data: Words = {"kind": "table", "path": str(path), "label": label}
    data |= {"drop": list(table.drop)} if table.drop else {}
    data |= {"tags": list(table.tags)} if table.tags else {}
    data |= {"drop_gaps": True} if gaps else {}
    if found is not None and aside:
        why = f"{found.why}; nothing is learnt from that column, which {useless(frame[found.tag])}"
        found = replace(found, option={"tags": aside}, why=why)
    features = [name for name in kept.columns if name != label and name not in table.tags]
    data |= _scaled(guessed_scale(kept.dropna(), features), chosen)
    spread = _by_site(kept.dropna(), clients) if clients else None
    return _fitted(Written(path, data, wishes.epsilon), examples, found, spread, chosen)


def _scaled(scale: dict[str, list[float]], chosen: list[tuple[str, str]]) -> Words:
    if not scale:
        return {}
    how = "put numbers there that are known without these rows, and delete scale_guessed"
    chosen.append((f"scale of {len(scale)} columns", f"guessed from all rows, so no epsilon can be stated: {how}"))
    return {"scale_guessed": True, "scale": scale}


def _label(path: Path, frame: pd.DataFrame, wishes: Wishes, asked: Sequence[str], chosen: list[tuple[str, str]]) -> str:
    """What the user named for something else is no guess."""
    label = wishes.label
    if label is None:
        label, why = _likely_label(
            path, frame.drop(columns=[*asked, *([wishes.clients] if wishes.clients in frame else [])])
        )
        chosen.append((f"learn {label!r}", f"{why}; --label COLUMN for another"))
        return label
    require(label in frame.columns, f"{path.name}: --label", label, nearest(label, frame.columns))
    classes = frame[label].nunique()
    many = ", each a class of its own; a column with a few bands of it would be learnt better"
    chosen.append((f"learn {label!r}", f"as you said: {classes} values{many if classes > MOST_CLASSES else ''}"))
    return label


def _likely_label(path: Path, frame: pd.DataFrame) -> tuple[str, str]:
    """The column that is called so, or the last one, where such a column usually stands; and why."""
    named = [name for name in frame.columns if LABEL.search(name)]
    if len(named) == 1:
        return named[0], "by its name"
    fitting = [name for name in named or frame.columns if may_be_learnt(frame[name]) and not names_clients(frame[name])]
    if not named and fitting and fitting[-1] == frame.columns[-1]:
        return fitting[-1], f"the last column, {frame[fitting[-1]].nunique()} values"
    of = " or ".join(map(repr, fitting)) if fitting else "COLUMN (none has 2 to 20 values that come often enough)"
    raise InvalidInput(f"say which column of {path.name} is to be learnt: --label {of}")


def _by_site(frame: pd.DataFrame, site: str) -> Spread:
    """A client is a site, with the rows that it really holds."""
    sizes = frame[site].value_counts()
    clients = int((sizes >= LEAST_OF_A_SITE).sum())
    require(
        clients >= 2,
        f"sites with {LEAST_OF_A_SITE} rows or more",
        clients,
        f"must be 2 at least; is {site!r} the column?",
    )
    words = f"# A client is a value of {one_line(site)}: {clients} of them have {LEAST_OF_A_SITE} rows or more."
    table = {"kind": "by_tag", "tag": site, "minimum": LEAST_OF_A_SITE}
    return Spread(f"{words}\n[partition]\n{toml.entries(table)}", clients, min(MOST_SETS, max(2, clients // 4)))


def _by_array(examples: Examples, chosen: list[tuple[str, str]]) -> Spread | None:
    """By the array beside the examples that is called as those who hold them are."""
    import pandas as pd

    frame = pd.DataFrame({name: values.numpy() for name, values in examples.tags.items()})
    named = [name for name in frame.columns if names_clients(frame[name])]
    if not named:
        return None
    chosen.append((f"clients by {named[0]!r}", f"an array, by its name: {frame[named[0]].nunique()} values"))
    return _by_site(frame, named[0])


def _by_labels(examples: Examples) -> Spread:
    sets = min(examples.classes, MOST_SETS)
    clients = sets * min(4, max(2, len(examples) // (ROWS_A_CLIENT * sets)))
    return Spread(template("label_sets.toml").substitute(sets=sets, clients=clients), clients, sets)


def _clients(
    path: Path, frame: pd.DataFrame, wishes: Wishes, asked: Sequence[str], chosen: list[tuple[str, str]]
) -> str | None:
    if wishes.clients is not None:
        name = wishes.clients
        require(name in frame.columns, f"{path.name}: --clients", name, nearest(name, frame.columns))
        values = frame[name].nunique()
        require(values >= 2, f"values of {name!r}", values, "must be at least 2, one a client")
        chosen.append((f"clients by {name!r}", f"as you said: {values} values, one a client"))
        return name
    frame = frame.drop(columns=[name for name in asked if name in frame.columns])
    named = [name for name in frame.columns if names_clients(frame[name])]
    if not named:
        texts = frame.select_dtypes(exclude=["number", "bool"])
        likely = [name for name in texts.columns if may_name_clients(texts[name])]
        if likely:
            chosen.append(("clients", f"--clients {' or '.join(map(repr, likely[:4]))}, if it says who holds a row"))
        return None
    chosen.append(
        (f"clients by {named[0]!r}", f"by its name: {frame[named[0]].nunique()} values; --clients COLUMN for another")
    )
    return named[0]


def _named_by(path: Path, asked: str | None, frame: pd.DataFrame) -> list[str]:
    """The column of COLUMN=VALUE or COLUMN>NUMBER."""
    if asked is None:
        return []
    name = re.split(r"[=>]", asked, maxsplit=1)[0].strip()
    require(bool(re.search(r"[=>]", asked)), "property", asked, "must be COLUMN=VALUE, or COLUMN>NUMBER")
    require(name in frame.columns, f"{path.name}: --property", name, nearest(name, frame.columns))
    return [name]


def _asked(path: Path, asked: str, frame: pd.DataFrame) -> Property:
    (name,) = _named_by(path, asked, frame)
    value = asked[len(name) :].lstrip()[1:].strip()
    if asked[len(name) :].lstrip().startswith(">"):
        found = _above(frame[name], _number(value, asked))
    else:
        codes, names = sorted_values(frame[name])
        require(value in names, f"value of {name!r}", value, nearest(value, names))
        has = (codes == names.index(value)).numpy()
        found = Property(name, value, f"{name} is {value}", _kept(name), has)
    require(bool(found.has.any()) and not found.has.all(), "property", asked, "must hold for some rows and not for all")
    return replace(found, why="as you said")


def _number(text: str, asked: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InvalidInput(f"property={asked!r} must end in a number after '>'") from error


def _fitted(
    written: Written,
    examples: Examples,
    found: Property | None,
    spread: Spread | None,
    chosen: list[tuple[str, str]],
) -> Fitted:
    data = written.data
    columns = data["kind"] == "table"
    if spread is None:
        spread = _by_labels(examples)
        how = ": no column says who holds a row; --clients COLUMN" if columns else "; other ways in [partition]"
        chosen.append((f"{spread.clients} clients", f"made up, with classes dealt to them{how}"))
    asked = "# property = { tag = ..., value = ... }   # no column was found that would do; see docs/audit.md"
    if found is not None:
        tags = list(dict.fromkeys([*data.get("tags", []), *found.option.get("tags", [])]))
        data = {**data, **found.option, **({"tags": tags} if tags else {})}
        learnt = " The column is learnt from, too." if {"keep", "above"} & found.option.keys() else ""
        words = f"# What a curious client would like to know of another's rows: {one_line(found.says)}.{learnt}"
        asked = f"{words}\nproperty = {toml.value_of({'tag': found.tag, 'value': found.value})}"
        chosen.append((f"property {found.says!r}", found.why))
    else:
        common = f"{SHARES[0]:.0%} to {SHARES[1]:.0%} of rows share, in every class"
        option = "; --property COLUMN=VALUE for what you care about" if columns else ""
        rest = f"no {'column' if columns else 'further array'} has a value that {common}{option}"
        nothing = "nothing is known of an example but its class"
        chosen.append(("no property", rest if columns or examples.tags else nothing))
    return configuration(replace(written, data=data), examples, spread, asked, chosen)


def _best(candidates: Iterator[Property], examples: Examples) -> Property | None:
    """What is sensitive by its name before what is not; of these, the one that has least to do with the label.

    Recognising labels must not pass for recognising the property.
    """
    classes = np.eye(examples.classes, dtype=bool)[examples.y.numpy()]  # (rows, classes)
    best, least = None, (True, np.inf)
    for found in candidates:
        with_it = (classes & found.has[:, None]).sum(0)
        without = classes.sum(0) - with_it
        if min(with_it.min(), without.min()) < LEAST_OF_A_CLASS:
            continue
        rates = with_it / classes.sum(0)
        rank = (SENSITIVE.search(found.tag) is None, float(rates.max() - rates.min()))
        if rank < least:
            why = "least to do with the label" if rank[0] else "sensitive by its name"
            best, least = replace(found, why=f"{why}, {found.has.mean():.0%} of rows; --property for another"), rank
    return best


def _common(has: NDArray[np.bool_]) -> bool:
    return bool(SHARES[0] <= has.mean() <= SHARES[1])


def _of_tags(examples: Examples) -> Iterator[Property]:
    for name, values in examples.tags.items():
        if CLIENT.search(name):
            continue
        words = examples.tag_names.get(name, ())
        for number in values.unique().tolist()[:FEW_VALUES]:
            has, value = (values == number).numpy(), words[number] if words else number
            if _common(has):
                yield Property(name, value, f"{name} is {value}", {}, has)


def _of_columns(frame: pd.DataFrame) -> Iterator[Property]:
    """A value of a column with few, or the upper end of one with many numbers; of nothing that is mere bookkeeping."""
    from pandas.api import types

    for name in map(str, frame.columns):
        column = frame[name]
        if BOOKKEEPING.search(name) or numbers_rows(column):
            continue
        if column.nunique() <= FEW_VALUES:
            codes, known = sorted_values(column)
            for number, value in enumerate(known):
                has = (codes == number).numpy()
                if _common(has):
                    yield Property(name, value, f"{name} is {value}", _kept(name), has)
        elif types.is_numeric_dtype(column):
            found = _above(column, float(f"{column.quantile(CUT):.3g}"))
            if _common(found.has):
                yield found


def _kept(name: str) -> Words:
    """A tag of this column, which is learnt from as before: an attack must not change what is attacked."""
    return {"tags": [name], "keep": [name]}


def _above(column: Column, cut: float) -> Property:
    from pandas.api import types

    name = str(column.name)
    require(types.is_numeric_dtype(column), f"column {name!r}", str(column.dtype), "holds no numbers; use COLUMN=VALUE")
    return Property(name, 1, f"{name} above {cut:g}", {"above": {name: cut}}, column.to_numpy(np.float64) > cut)
