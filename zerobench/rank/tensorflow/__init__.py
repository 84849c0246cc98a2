"""One rank of a TensorFlow trial, in an environment without torch; it writes the records that every rank writes."""
