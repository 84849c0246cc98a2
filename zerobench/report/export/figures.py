"""The figures of a trial that every export has, with the name that each tool's conventions give them.

Prometheus wants base units in the plural at the name's end (prometheus.io/docs/practices/naming); TensorBoard and
Weights & Biases group by what stands before the slash, and there a figure has its column's own name (schema.TRIALS).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A number of the table `trials` under the names that exports give it."""

    column: str
    group: str
    metric: str
    """The Prometheus name behind `zerobench_`."""
    help: str
    scale: float = 1.0
    """From the column's unit to Prometheus's base unit."""
    phase: str | None = None
    """The value of the label `phase`, where several figures share a metric."""

    @property
    def tag(self) -> str:
        """`speed/tokens_per_s`."""
        return f"{self.group}/{self.column}"


_PHASE_HELP = "Median phase time of a timed step, slowest rank."
_NVME = "in a steady step, over all ranks."

FIGURES = (
    Figure("step_time_s_median", "speed", "step_time_seconds", "Median time of a timed step, slowest rank."),
    Figure("forward_s", "speed", "step_phase_time_seconds", _PHASE_HELP, phase="forward"),
    Figure("backward_s", "speed", "step_phase_time_seconds", _PHASE_HELP, phase="backward"),
    Figure("step_s", "speed", "step_phase_time_seconds", _PHASE_HELP, phase="step"),
    Figure("samples_per_s", "speed", "samples_per_second", "Sequences per second, all ranks."),
    Figure("tokens_per_s", "speed", "tokens_per_second", "Tokens per second, all ranks."),
    Figure("tflops_per_gpu", "speed", "rank_flops_per_second", "Model FLOP/s of one rank.", scale=1e12),
    Figure("mfu", "speed", "model_flops_utilization_ratio", "Model FLOP/s over the device's peak, 0 to 1."),
    Figure("energy_joules", "speed", "timed_steps_energy_joules", "Energy of all devices over the timed steps."),
    Figure("nvme_read_bytes_per_s", "speed", "nvme_read_bytes_per_second", f"Bytes read from NVMe {_NVME}"),
    Figure("nvme_write_bytes_per_s", "speed", "nvme_written_bytes_per_second", f"Bytes written to NVMe {_NVME}"),
    Figure(
        "device_peak_bytes",
        "memory",
        "device_highest_peak_bytes",
        "Peak allocator memory of the largest rank, including start-up.",
    ),
    Figure(
        "host_peak_bytes",
        "memory",
        "host_highest_peak_bytes",
        "Peak host memory of the largest rank, including start-up.",
    ),
    Figure("nvml_peak_bytes", "memory", "nvml_used_peak_bytes", "Peak used memory by NVML, fullest GPU."),
    Figure("loss_first", "loss", "loss_first", "Mean loss of the first step's global batch."),
    Figure("loss_last", "loss", "loss_last", "Mean loss of the last step's global batch."),
    Figure("loss_parity", "loss", "loss_largest_difference", "Largest loss difference from the reference trial."),
    Figure(
        "norm_parity",
        "loss",
        "gradient_norm_largest_difference",
        "Largest relative gradient norm difference from the reference trial.",
    ),
    Figure("num_params", "model", "model_parameters", "Parameters of the whole model."),
)
