"""The public names: all there, sorted, and free until they are used."""

from __future__ import annotations

import subprocess
import sys

import coterie


def test_every_public_name_exists() -> None:
    assert coterie.__all__ == sorted(coterie.__all__)
    for name in coterie.__all__:
        assert getattr(coterie, name).__name__ == name
    assert set(coterie.__all__) < set(dir(coterie))


def test_importing_the_package_and_asking_for_help_do_not_import_torch() -> None:
    code = "import sys, coterie, coterie.commands.cli; assert not {'torch', 'numpy', 'sklearn'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(coterie, "Nonsense")
