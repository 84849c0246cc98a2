"""Expected time of a step: closed forms and a replay, with rates fitted to published runs."""
