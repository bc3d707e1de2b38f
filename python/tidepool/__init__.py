"""Tidepool for Python: asynchronous, verified data staging (`tidepool.stage`)."""

from tidepool.errors import TidepoolError

__all__ = ["TidepoolError"]
