"""What F22 and F23 share."""

from __future__ import annotations

PHASES = ("create", "stat", "remove")
# As tidepool bench names its cases.
CASES = {"one shared directory": "one directory", "a directory per process": "a directory each"}
