"""Twenty cells that are predicted before they are measured: held_out.yaml.

    python benchmarks/prediction/held_out.py predict    # simulates; writes held_out_predicted.csv, to be committed
    python benchmarks/prediction/held_out.py measure    # measures; joins with the committed predictions, prints the table

`predict` runs the simulated trials alone, `measure` the measured ones alone; figures meet by config_hash. `measure`
refuses predictions that are not committed, and `predict` new ones once there are measurements, so that nothing can be
tuned in between. It writes held_out_measured.csv and the printed table, unchanged, as held_out.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.prediction.figures import COLUMNS, Figure, as_csv, figures_of, from_csv
from benchmarks.prediction.held_out_table import error_lines
from benchmarks.prediction.simulated import origin
from zerobench.cli_live import PlainView
from zerobench.errors import UserError
from zerobench.folder import write_whole
from zerobench.run.attempt import Site
from zerobench.run.environment import capture_environment, git
from zerobench.run.runner import run_sweep
from zerobench.spec.expand import expand
from zerobench.spec.machine import detect_machine
from zerobench.spec.sweep import load_sweep
from zerobench.spec.trial import Evidence
from zerobench.store import load_run
