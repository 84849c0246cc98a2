"""How a table of tables/ is set: in a terminal, in Markdown, on the page."""
