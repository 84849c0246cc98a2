"""Users' own training: a command that is watched from outside, an engine that is looked into from inside.

`watch` starts a command and needs no torch; `track` and the Trainer's callback run in the user's processes. Both leave
an ordinary run folder, and together they leave one.
"""
