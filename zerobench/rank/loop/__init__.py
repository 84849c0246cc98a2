"""One rank of one trial, started by a launcher as `deepspeed --module zerobench.rank.loop --trial-folder DIR`.

Nobody imports this package: it speaks to the rest of zerobench by files alone (zerobench.records.folder.TrialFolder).
"""
