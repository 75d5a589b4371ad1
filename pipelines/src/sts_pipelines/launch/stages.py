"""Says what is being evaluated, and for how long: evaluations of large networks are silent for minutes otherwise."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from sts_methods import columns_of, format_seconds
from sts_pipelines.evaluation.stage import stage_of
from sts_pipelines.launch.watching import FolderWatcher


class StageTeller(FolderWatcher):
    """Tells the stages of the runs in `folders`, by label, on `stream`; a context manager.

    On a terminal the line is rewritten with the time that a stage has taken; elsewhere a stage is a line when it
    begins, and another one each `again_seconds`.
    """

    def __init__(
        self,
        folders: Mapping[str, Path],
        *,
        stream: TextIO | None = None,
        every_seconds: float = 0.5,
        again_seconds: float = 60.0,
    ) -> None:
        super().__init__(stream=stream, every_seconds=every_seconds)
        self.folders = dict(folders)
        self._again_seconds = 1.0 if self.stream.isatty() else again_seconds
        self._told, self._since, self._next = "", 0.0, 0.0
        self._writing = threading.Lock()

    def _watch(self) -> None:
        while not self._stop.is_set():
            found = [f"{label}: evaluating {text}" for label, f in self.folders.items() if (text := stage_of(f))]
            self._show(found[0] if found else "")
            self._stop.wait(self.every_seconds)
        self._show("")

    def say(self, line: str) -> None:
        """Print a line of its own, after the one that stays on the terminal until its stage is over."""
        self._show("")
        with self._writing:
            super().say(line)

    def _show(self, line: str) -> None:
        with self._writing:
            now = time.monotonic()
            if line != self._told:
                if self._told and self.stream.isatty():
                    self.stream.write("\n")
                self._told, self._since, self._next = line, now, now
            if line and now >= self._next:
                seconds = now - self._since
                text = line if seconds < 1.0 else f"{line}, {format_seconds(seconds)}"
                # What stands in the line, such as a bar that ends only now, is erased.
                shown = f"\r\x1b[K{text[: columns_of(self.stream)]}" if self.stream.isatty() else f"{text}\n"
                self.stream.write(shown)
                self._next = now + self._again_seconds
            self.stream.flush()
