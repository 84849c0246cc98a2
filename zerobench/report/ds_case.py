"""The DeepSpeed configuration that a trial ran with, as reports ask for it."""

from zerobench.ds_config import build_ds_config
from zerobench.ds_config.case import Case
from zerobench.errors import UserError
from zerobench.report.trials import Trial, num_params, num_trained


def case_of(trial: Trial) -> Case | None:
    """The configuration of `trial` with its sizes; None without DeepSpeed, or where the user's own file is gone."""
    try:
        config = build_ds_config(trial.spec)
    except UserError:
        return None
    return Case(config, trial.spec.world_size, num_params(trial) or 0, num_trained=num_trained(trial))
