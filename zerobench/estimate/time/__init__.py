"""Closed form of a step's time, from a model's sizes and an engine's settings. Frozen."""
