"""What the columns of a user's table are, by their names and shapes: keys, dates, clients, what is sensitive."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.data.sources.own import Column

from coterie.data.sources.own import MOST_VALUES


def _any_of(*words: str) -> str:
    return "|".join(words)


SENSITIVE = re.compile(
    r"(^|[^a-zà-ÿ])("
    + _any_of(
        r"sex|gender|rac[ei]|ethnic|religio|marital|married|relationship|nativ|national|country|birth|age|disab|health",
        r"diseas|diagnos|pregnan|orient|politic|party|union|immigr|citizen|language|criminal|smok|hiv|income|salary",
        r"geschlecht|familienstand|staatsang|herkunft|konfession|behinder|krank(?!en(kasse|haus|versich))|schwanger|alter\b|geburt|einkommen|gehalt",
        r"genre\b|[eé]tat.civil|sant[eé]\b|maladie|handicap|naissance|[aâ]ge\b|revenu|salaire|enceinte",
        r"g[eé]nero|edad\b|estado.civil|enfermedad|discapac|embaraz|nacimiento|ingresos|salario",
        r"sesso|genere\b|et[aà]\b|stato.civile|malatt|disabil|nascita|reddito|geslacht|leeftijd|ziekte|inkomen",
    )
    + ")",
    re.IGNORECASE,
)
"""How columns are called that say something of a person which a federation should not give away; in the languages whose
spreadsheets write semicolons, too."""

BOOKKEEPING = re.compile(
    r"(weight|wgt|wt|gewicht)$|^(index|unnamed.*|row.*|key|number|no|nr)\.?$|(^|_)id$", re.IGNORECASE
)
"""How columns are called that serve whoever made the table: survey weights, row numbers, keys."""

KEY = re.compile(
    r"^(id|index|key|uuid|guid|unnamed.*|row.?(id|no|nr|number))$|[_ -]id$|(nummer|num[eé]ro|[a-z_ -]nr\.?)$",
    re.IGNORECASE,
)
CLIENT = re.compile(
    "^("
    + _any_of(
        "client|site|hospital|clinic|centre|center|branch|bank|store|shop|device|user|customer|household|school|station",
        "institution|facility|organi[sz]ation|party|writer|author|subject|patient|location|practice",
        "standort|klinik|krankenhaus|praxis|zentrum|filiale|einrichtung|schule|kunde|ger[aä]t",
        "h[oô]pital|clinique|agence|magasin|[eé]cole|[eé]tablissement|cl[ií]nica|centro|sede|sucursal|tienda|escuela",
        "ospedale|negozio|scuola|ziekenhuis|locatie|vestiging",
    )
    + ")([_ -]?(id|no|nr|name|number|code|nummer))?$",
    re.IGNORECASE,
)
"""How columns are called that say who holds a row."""

LABEL = re.compile(
    "^(label|target|class|outcome|response|y|klasse|zielgr[oö](ß|ss)e|zielvariable|ergebnis|cible|classe|r[eé]sultat|"
    "clase|objetivo|resultado|esito)$",
    re.IGNORECASE,
)
MOST_CLASSES = 20  # that the last column of a table may have, to be taken for what is to be learnt
DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}([T ].*)?")
MOST_GAPS = 0.3  # the share of gaps from which on a column is left out
ROWS_A_CLIENT, MOST_CLIENTS = 8, 200  # on average, and at all: what a column that names clients leaves each with


def numbers_rows(column: Column) -> bool:
    """Whole numbers, hardly one of which comes twice: a key, in whatever order."""
    from pandas.api import types

    return bool(types.is_integer_dtype(column) and column.nunique() > 0.95 * len(column))


def useless(column: Column) -> str:
    """Why nothing can be learnt from a column as it is; empty: something may be."""
    from pandas.api import types

    name, values, rows = str(column.name), column.nunique(), len(column)
    if values < 2:
        return "has one value only"
    if column.isna().mean() > MOST_GAPS:
        return f"is {column.isna().mean():.0%} gaps"
    if types.is_datetime64_any_dtype(column):
        return "holds dates"
    if types.is_integer_dtype(column) and values == rows:
        whole = column.to_numpy()
        if bool(column.is_monotonic_increasing) or int(whole.max()) - int(whole.min()) + 1 == rows or KEY.search(name):
            return "numbers the rows, no two alike"
    if not types.is_numeric_dtype(column):
        texts = column.dropna().astype(str)
        if texts.head(200).str.fullmatch(DATE.pattern).all():
            return "holds dates"
        if values == rows or KEY.search(name):
            return "names the rows"
        if values > MOST_VALUES:
            return f"holds free text, {values} different ones"
    return ""


def may_name_clients(column: Column) -> bool:
    """By its shape: values that leave each client with rows."""
    return bool(2 <= column.nunique() <= min(MOST_CLIENTS, len(column) // ROWS_A_CLIENT))


def names_clients(column: Column) -> bool:
    return may_name_clients(column) and bool(CLIENT.search(str(column.name)))


def may_be_learnt(column: Column) -> bool:
    """By its shape: classes, of which every one comes more than a few times."""
    return bool(2 <= column.nunique() <= min(MOST_CLASSES, len(column) // ROWS_A_CLIENT) and not useless(column))
