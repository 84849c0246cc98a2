"""What is asked: model, trial, sweep, hardware. Frozen values that refuse nonsense; no torch here."""
