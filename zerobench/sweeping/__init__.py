"""From what somebody wrote (a sweep file, a plan, a DeepSpeed configuration) to trials, and which of them can run."""
