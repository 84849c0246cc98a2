"""What trials come to: frozen dataclasses computed from records, of which tables, charts and documents are made."""
