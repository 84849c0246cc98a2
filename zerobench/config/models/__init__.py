"""Models: presets, architectures, parameters."""
