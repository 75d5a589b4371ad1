"""Processes that tests start can import from the tests, as the tests themselves can."""

import os
from pathlib import Path

from hypothesis import settings

settings.register_profile("any machine", deadline=None)  # which a machine with other work passes now and then
settings.load_profile("any machine")

os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
