"""Run a sweep: the runner, the deepspeed launcher, and what each trial's folder holds. No torch here."""
