"""The exceptions of sts-core.

    StsError
    ├── ConfigError         (ValueError)            a setting outside its domain
    ├── PairingError        (ValueError)            student and teacher do not belong together
    ├── StateError          (ValueError)            a saved state that belongs to another configuration
    ├── SwapError           (RuntimeError)          a student in use that has its teacher's weights for a while
    ├── CheckpointError     (OSError, ValueError)   weights that cannot be written, read or loaded
    └── RankMismatchError   (RuntimeError)          ranks that hold different weights

Each message is one sentence that gives the rule, the value that breaks it and the remedy.
"""


class StsError(Exception):
    """Base of all errors that sts packages raise on purpose."""


class ConfigError(StsError, ValueError):
    """A setting is outside its domain; `fields` are the names of the config's fields that the message is about."""

    def __init__(self, message: str, *, fields: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields


class PairingError(StsError, ValueError):
    """Student and teacher do not belong together."""


class StateError(StsError, ValueError):
    """A saved state does not fit what it is loaded into."""


class SwapError(StsError, RuntimeError):
    """Something happens to a student inside `swapped()` that must not happen there."""


class CheckpointError(StsError, OSError, ValueError):
    """A checkpoint cannot be written, is damaged, or holds weights that do not fit the network they are meant for."""


class RankMismatchError(StsError, RuntimeError):
    """Two ranks hold different weights."""
