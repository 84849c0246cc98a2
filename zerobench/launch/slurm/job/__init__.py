"""Inside a job: the runner that the batch script becomes, and the nodes of the job as its executor (`__main__.py`)."""
