"""Code that runs inside a job: its runner (`__main__.py`) and the executor on its nodes."""
