"""Users' own training: a command watched from outside, an engine tracked from inside.

`watch` starts a command and needs no torch; `track` and the Trainer's callback run in the user's processes. Each leaves
an ordinary run folder, and together they leave one.
"""
