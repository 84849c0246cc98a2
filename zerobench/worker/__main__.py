"""`python -m zerobench.worker`: older runs' commands start their ranks so."""

from zerobench.rank.loop.__main__ import main

if __name__ == "__main__":
    main()
