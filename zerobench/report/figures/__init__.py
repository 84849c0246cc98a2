"""Figures of trials: frozen dataclasses computed from records, of which tables, charts and documents are made."""
