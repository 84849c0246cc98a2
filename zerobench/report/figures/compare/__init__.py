"""Two runs side by side, and the gate that fails where the new one is worse."""
