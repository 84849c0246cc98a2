"""`zerobench report --html`: one file that opens at once, prints, works offline and runs nothing that a run wrote.

Charts come as finished SVG (zerobench.report.charts), so the page carries no library; dark and light are CSS.
"""

from zerobench.report.documents.page.assemble import page_html, page_pieces

__all__ = ["page_html", "page_pieces"]
