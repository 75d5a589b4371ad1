"""Measures finished runs."""

from sts_pipelines.evaluation import records as records  # with them, all evaluations are known
