"""A run as Markdown: for a pull request, or to be kept."""
