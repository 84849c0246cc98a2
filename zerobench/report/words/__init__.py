"""Labels, units and colours."""
