"""Axes of a sweep, one entry each."""
