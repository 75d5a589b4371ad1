"""The sections of a report, each from runs to blocks."""
