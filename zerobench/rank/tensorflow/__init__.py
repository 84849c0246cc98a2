"""One rank of a TensorFlow trial, in an environment without torch; it writes the same records as other ranks."""
