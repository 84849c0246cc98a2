"""Runs and plans as documents: terminal, Markdown, page, notebook."""
