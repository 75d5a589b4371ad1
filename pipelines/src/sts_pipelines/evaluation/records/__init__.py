"""One file for each evaluation: how it is measured, what it needs and which settings decide its numbers."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
