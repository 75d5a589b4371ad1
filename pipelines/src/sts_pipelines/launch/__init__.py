"""Trains pipelines, in this process or by workers on Ray."""
