"""Consoles that were installed before the command line moved start `zerobench.cli:main`: the name stays."""

from zerobench.app.terminal.app import main

__all__ = ["main"]
