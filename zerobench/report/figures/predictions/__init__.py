"""What was predicted beside what was measured of the same work."""
