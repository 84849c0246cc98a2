"""Read runs back as figures, tables, charts and documents. Derive, never measure; without torch."""
