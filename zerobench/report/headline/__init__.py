"""What a run comes to in a few sentences: what fits, what is fastest, what to choose."""
