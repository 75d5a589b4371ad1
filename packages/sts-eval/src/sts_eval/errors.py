"""The exceptions of sts-eval.

    sts_core.StsError
    └── DataError         (ValueError)   a dataset that cannot be evaluated as it is

Each message is one sentence that gives the rule, the value that breaks it and the remedy.
"""

from sts_core import StsError


class DataError(StsError, ValueError):
    """A dataset lacks classes, has an unreadable image, or is not what the evaluation needs."""
