"""A thread that looks into run folders and says what it finds there."""

import sys
import threading
from abc import ABC, abstractmethod
from typing import Self, TextIO

from sts_methods import painted


class FolderWatcher(ABC):
    """Says on `stream` what `_watch`, in a thread of its own, finds; a context manager."""

    def __init__(self, *, stream: TextIO | None, every_seconds: float) -> None:
        self.stream = stream if stream is not None else sys.stderr
        self.every_seconds = every_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=type(self).__name__, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    @abstractmethod
    def _watch(self) -> None:
        """Look every `every_seconds`, and once more when `_stop` is set."""

    def say(self, line: str) -> None:
        """Print a line."""
        self.stream.write(f"{line}\n")
        self.stream.flush()

    def warn(self, text: str) -> None:
        self.say(f"{painted('warning:', 'yellow', self.stream)} {text}")
