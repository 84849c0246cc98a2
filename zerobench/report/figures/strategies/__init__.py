"""Ways of distributed training held against one process that trains the same global batch, and what is claimed of them.

rows = compare(figures)      # of all measured trials; rows.py
claims(rows)                 # sentences with the numbers that bear them out, or do not; claims.py
"""
