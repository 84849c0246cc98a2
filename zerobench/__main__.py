"""`python -m zerobench` is the same as the console script."""

from zerobench.app.terminal.app import main

main()
