"""Cluster the records of several files whose columns different parties hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.errors import DataMissing, require

if TYPE_CHECKING:
    import pandas as pd


def cluster(
    files: list[Path],
    clusters: int,
    ids: str | None,
    defence: str,
    options: Mapping[str, object],
    out: Path,
    seed: int | None,
    private_ids: bool = False,
) -> None:
    """One CSV a party; the labels of the records that all of them have are written to a file."""
    import pandas as pd

    from coterie.config.registry import build_defence
    from coterie.config.schema import Choice
    from coterie.estimators import VerticalKMeans

    require(len({path.stem for path in files}) == len(files), "files", list(map(str, files)), "must differ in name")
    require(not out.exists(), "out", str(out), "is there already; name another file")
    require(ids is not None or not private_ids, "private-ids", True, "needs --id: the column that names records")
    for name, value in options.items():
        require(defence != "none", name, value, "is a defence's; name one by --defence")
    tables = {path.stem: _read(path) for path in files}
    guard = build_defence(Choice.of(defence, **options))
    start = "records" if defence == "blinded_sums" else "k-means++"  # blinded totals are nothing to draw records by
    model = VerticalKMeans(clusters, init=start, defence=guard, private_ids=private_ids, random_state=seed)
    found = model.fit(tables, ids=ids)
    pd.DataFrame({ids or "record": found.record_ids_, "cluster": found.labels_}).to_csv(out, index=False)
    kept = len(found.labels_)
    for name, table in tables.items():
        left = f"; {len(table) - kept} that others lack were left out" if len(table) > kept else ""
        print(f"{name}: {table.shape[1] - (ids is not None)} columns of {len(table)} records{left}")
    print(f"{kept} records in {clusters} clusters after {found.n_iter_} steps, mean cost {found.inertia_ / kept:.4g}")
    print(f"privacy: {found.privacy_spent_}")
    print(f"labels: {out}")


def _read(path: Path) -> pd.DataFrame:
    """Whatever `coterie init` reads."""
    from coterie.data.sources.own import read_frame

    if not path.exists():
        raise DataMissing(f"file {path} does not exist; name one table for each party")
    return read_frame(path)
