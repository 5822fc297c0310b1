"""ACSIncome of Folktables: census answers, and whether the income is above the threshold."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.federation import Examples
from coterie.data.sources.base import READ_OFF, Scale, Source, by_scale, integers, require_scale, standardised
from coterie.errors import InvalidInput, nearest, require

COLUMNS = ("AGEP", "COW", "SCHL", "MAR", "OCCP", "POBP", "RELP", "WKHP", "SEX", "RAC1P")
NUMBERS = ("AGEP", "WKHP")  # age and hours a week; all others are codes
TAGS = ("COW", "SEX", "RAC1P")


@dataclass(frozen=True)
class AcsIncome(Source):
    """Ten columns a person. Tags: ``state`` (in the files' order), ``COW``, ``SEX`` and ``RAC1P`` as coded.

    ``one_hot`` turns each code into columns of zeros and ones, over the values that occur, as if these were public;
    numbers are standardised over all rows. Without it every column is a standardised number, which orders codes that
    have no order. Nothing can be claimed of a record that is standardised by all: ``scale`` has public numbers in their
    place, (middle, width) of each column. ``columns`` chooses: Scott et al. (paper 002) leave out age and hours, filter
    by COW and cluster the rest one-hot, of which nothing is standardised.
    """

    states: tuple[str, ...] | None = None
    columns: tuple[str, ...] = COLUMNS
    one_hot: bool = False
    raw: bool = False  # every column as it stands in the file
    scale: Scale = field(default_factory=dict)

    name: ClassVar[str] = "acs_income"
    about: ClassVar[str] = "census answers of ten columns, income above a threshold"
    published_at: ClassVar[str] = "https://github.com/socialfoundations/folktables"
    layout: ClassVar[str] = "acsincome_{state}_allfeatures*.csv (ten columns, header) and acsincome_{state}_label*.csv"

    def __post_init__(self) -> None:
        require(not (self.raw and self.one_hot), "raw", self.raw, "leaves codes as they are; drop one_hot")
        require(len(self.columns) > 0, "columns", self.columns, "must name at least one")
        for column in self.columns:
            require(column in COLUMNS, "columns", column, nearest(column, COLUMNS))
        require_scale(self.scale, self.measured)

    @property
    def measured(self) -> tuple[str, ...]:
        """The columns that are measured by something: by all rows, or by ``scale``."""
        return () if self.raw else tuple(name for name in self.columns if name in NUMBERS or not self.one_hot)

    def read(self, folder: Path) -> Examples:
        first = self.need(folder, "acsincome_*_allfeatures*.csv")
        files = {path.name.split("_")[1]: path for path in sorted(first.parent.glob("acsincome_*_allfeatures*.csv"))}
        for state in self.states or ():
            require(state in files, "state", state, nearest(state, files))
        chosen = self.states or tuple(files)
        tables, labels = zip(*(self.one_state(files[state]) for state in chosen), strict=True)
        table = np.concatenate(tables)
        tags = {name: integers(table[:, COLUMNS.index(name)]) for name in TAGS}
        tags["state"] = integers(np.repeat(np.arange(len(chosen)), [len(part) for part in tables]))
        x = np.concatenate([self.encoded(name, table[:, COLUMNS.index(name)]) for name in self.columns], 1)
        return Examples(
            x=torch.from_numpy(x),
            y=integers(np.concatenate(labels)),
            classes=2,
            name=self.name,
            tags=tags,
            label_names=("below", "above"),
            elsewhere=READ_OFF if set(self.measured) - set(self.scale) else "",
        )

    def one_state(self, path: Path) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        import pandas as pd

        frame = pd.read_csv(path)
        absent = [name for name in COLUMNS if name not in frame.columns]
        if absent:
            raise InvalidInput(f"{path} has no column {', '.join(absent)}; it has {list(frame.columns)}")
        beside = self.need(path.parent, path.name.replace("allfeatures", "label"))
        labels = pd.read_csv(beside).iloc[:, 0].to_numpy()
        if len(labels) != len(frame):
            raise InvalidInput(f"{beside} has {len(labels)} labels for {len(frame)} rows of {path.name}")
        return frame[list(COLUMNS)].to_numpy(float), labels.astype(np.int64)

    def encoded(self, name: str, values: NDArray[np.float64]) -> NDArray[np.float32]:
        """(rows, columns)"""
        if self.raw:
            return values[:, None].astype(np.float32)
        if name not in self.measured:
            codes, which = np.unique(values, return_inverse=True)
            return np.eye(len(codes), dtype=np.float32)[which]
        return (by_scale(values, self.scale[name]) if name in self.scale else standardised(values))[:, None]
