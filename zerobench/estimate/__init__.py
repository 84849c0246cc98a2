"""Estimate memory and time without running anything."""
