"""Read a run back: tidy tables (frame) and terminal tables (terminal). Derives, never measures. No torch here."""
