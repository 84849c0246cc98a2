"""Errors, units, redaction, vocabulary and processes, for every part."""
