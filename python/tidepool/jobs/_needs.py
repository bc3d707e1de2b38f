"""Packages that not everybody needs, and what to install where one is missing."""

from __future__ import annotations

import importlib
from typing import Any


class MissingError(ImportError):
    """A package is not installed; says which extra brings it."""


def need(module: str, extra: str, what: str) -> Any:
    """Imports a module, or says what it is needed for and how it is had."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingError(f"{what} takes pip install 'tidepool[{extra}]' ({error})") from error
