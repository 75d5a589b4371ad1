"""The exceptions of sts-eval.

    sts_core.StsError
    ├── DataError         (ValueError)   a dataset that cannot be evaluated as it is
    └── CheckpointError   (ValueError)   weights that do not fit the network they are meant for

Each message is one sentence that gives the rule, the value that breaks it and the remedy.
"""

from sts_core.errors import StsError


class DataError(StsError, ValueError):
    """A dataset lacks classes, has an unreadable image, or is not what the evaluation needs."""


class CheckpointError(StsError, ValueError):
    """A checkpoint is damaged, or its tensors fit the network only in part."""
