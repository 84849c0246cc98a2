"""Describe the machine that a run starts on: processors, GPUs, installed packages."""
