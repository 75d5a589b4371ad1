"""Processes that tests start can import from the tests, as the tests themselves can."""

import os
from pathlib import Path

os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
