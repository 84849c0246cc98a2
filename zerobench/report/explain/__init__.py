"""Explain in sentences: a trial's memory and time, a difference, a recommendation."""
