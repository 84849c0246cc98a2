"""What is shown of trials as tables: one view a file, each from figures to a `Table`; documents/ sets it."""
