"""`python -m zerobench` is the same as the console script."""

from zerobench.cli import main

main()
