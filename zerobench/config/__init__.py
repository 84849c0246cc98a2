"""Describe trials: frozen values that reject invalid input. Without torch."""
