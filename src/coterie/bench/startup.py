"""How long a user waits before anything happens: each figure is that of a fresh process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

from coterie.bench.ratio import Ratio, interleaved
from coterie.bench.registry import Options

MOST_SECONDS = 1.0


def startup(options: Options) -> Iterator[Ratio]:
    timings = interleaved(
        {
            "nothing": _python("pass"),
            "import coterie": _python("import coterie"),
            "coterie --help": _python("from coterie.commands.cli import main; main(['--help'])"),
        },
        options.repeats,
    )
    for name in ("import coterie", "coterie --help"):
        yield Ratio(
            name,
            timings[name].best,
            "s",
            timings["nothing"].best,
            MOST_SECONDS,
            bound_on_ratio=False,
            setup="a fresh Python that runs nothing",
        )


def _python(code: str) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
