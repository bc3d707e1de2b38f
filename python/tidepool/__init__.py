"""Tidepool for Python: asynchronous, verified data staging (`tidepool.stage`), a storage simulator (`tidepool.sim`)."""

from tidepool.errors import TidepoolError

__all__ = ["TidepoolError"]
