"""The names of render/layout.py, for tables that are not views yet."""

from __future__ import annotations

from zerobench.report.notes import listed
from zerobench.report.render.layout import WIDE, Column, Section, Shown, T, bullets, label_text, mark, table

__all__ = ["WIDE", "Column", "Section", "Shown", "T", "bullets", "label_text", "listed", "mark", "table"]
