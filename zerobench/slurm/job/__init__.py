"""Inside a job: the runner that the batch script becomes, and the nodes of the job as its site (`__main__.py`)."""
