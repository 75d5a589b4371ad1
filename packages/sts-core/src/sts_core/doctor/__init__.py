"""What a checkpoint says about its averages: `python -m sts_core.doctor CHECKPOINT [LATER]`."""

from sts_core.doctor.examination import Finding, examine

__all__ = ["Finding", "examine"]
