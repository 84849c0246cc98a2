"""Tables of trials: one view a file, each from figures to a `Table`; documents/ sets it."""
