"""Names of modules in the commands (`cmd.txt`) of older runs, so that these start as they did."""
