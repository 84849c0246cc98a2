"""One rank of one trial, started by a launcher as `deepspeed --module zerobench.rank.loop --trial-folder DIR`.

No other wing imports this package: it communicates through files (zerobench.records.folder.TrialFolder).
"""
