"""Model torch's caching allocators and their settings."""
