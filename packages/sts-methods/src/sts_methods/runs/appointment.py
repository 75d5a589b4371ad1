"""A step that all ranks keep without an exchange in every step: rank 0 leaves its number where the others look."""

import uuid

import torch.distributed as dist

from sts_core.distributed import broadcast_object, world_size

STEPS_AHEAD = 2
"""What rank 0 writes after step n is there when any rank has ended step n+2: the gradients of step n+1 took all ranks,
and before the end of step n+2 the host has read a flag that came of them (`FailureChecks.outcome`)."""


class Appointment:
    """Steps that rank 0 chooses; every rank asks after each of its steps whether that was one. Made by all together.

    Ranks look into the store where the process group met, which takes 14 microseconds on one machine.
    """

    def __init__(self) -> None:
        self._alone: set[int] = set()
        self._store = dist.distributed_c10d._get_default_store() if world_size() > 1 else None
        self._name = broadcast_object(uuid.uuid4().hex)  # a group may train several runs, one after the other

    def make(self, step: int, *, last: int) -> None:
        """Called by rank 0 after `step`: a step as soon as all can know of it, at most the last."""
        if self._store is None:
            self._alone.add(step)
            return
        key = self._key(min(step + STEPS_AHEAD, last))
        self._store.set(key, "")
        self._store.check([key])  # nobody answers a `set`: now it has arrived

    def is_now(self, step: int) -> bool:
        """Whether `step` is one of those."""
        return step in self._alone if self._store is None else bool(self._store.check([self._key(step)]))

    def _key(self, step: int) -> str:
        return f"sts-appointment/{self._name}/{step}"
