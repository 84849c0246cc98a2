"""One rank of a user's own command on an emulated GPU: the launcher read, the other ranks answered for, the end kind.

Runs in the user's process, started by `zerobench emulate` as `python -m zerobench.launch.emulate.inside`.
"""
