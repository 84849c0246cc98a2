"""The tests that `make test-fast` runs: those that start no process, open no browser and import no training framework.

A test is in the tier unless SLOWER names it, so that a new one is in it from its first day; and the guard below fails
each test of the tier that does what the tier is without, so that the list cannot become untrue.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

MARKER = "fast"

SLOWER = {
    "tests/benchmarks/test_emulated_speed.py::test_processor_seconds": "processes that are measured",
    "tests/benchmarks/timing/test_drawn.py::test_both_times": "a simulator",
    "tests/benchmarks/gpu_campaign/test_campaign.py": "parts of the campaign",
    "tests/benchmarks/test_loading.py": "torch",
    "tests/benchmarks/gpu_campaign/test_judgement.py": "git, which says of what commit a figure is",
    "tests/benchmarks/gpu_campaign/test_ladder.py::test_a_ladder_on_this": "ranks",
    "tests/benchmarks/gpu_campaign/test_peft_steps.py::test_a_simulated_rank": "a simulator",
    "tests/benchmarks/mutants/test_trial.py": "forks, each a mutant",
    "tests/benchmarks/test_overhead.py": "ranks",
    "tests/benchmarks/test_prediction.py::test_predictions_that_are_not_committed": "git",
    "tests/benchmarks/test_prediction.py::test_the_largest_process": "processes that are measured",
    "tests/test_linear_patterns.py": "seconds of searches, which are timed",
    "tests/common/test_training_python.py": "interpreters that are asked",
    "tests/test_training_beside.py": "environments of their own, and what runs in them",
    "tests/app/terminal/test_app.py": "the command as a process",
    "tests/docs/test_site.py": "mkdocs",
    "tests/app/test_api.py::test_a_": "plans and runs, which ask the machine's programs",
    "tests/app/test_api.py::test_what_": "plans, and torch",
    "tests/app/test_api.py::test_importing": "an interpreter of its own",
    "tests/app/test_api.py::test_tuning": "plans, which ask the machine's programs",
    "tests/app/terminal/test_completion.py::test_bash": "bash, and the command as a process",
    "tests/app/terminal/test_doctor.py::test_slurm": "Slurm's programs, played by a script",
    "tests/app/terminal/test_endings.py": "the command as a process",
    "tests/app/terminal/test_export.py::test_a_run_goes_to_each_tool": "TensorBoard, which imports TensorFlow",
    "tests/app/terminal/test_json.py": "plans and runs, which ask the machine's programs",
    "tests/app/terminal/test_memory_gate.py": "the action's steps, each a process",
    "tests/app/terminal/test_plan.py::test_what_a_plan_does_not_read": "a run, which asks the machine's programs",
    "tests/app/terminal/test_plan.py::test_a_sweep_is_planned_by_formula": "a run, which asks the machine's programs",
    "tests/app/terminal/test_plan.py::test_what_no_closed_form_knows": "a run, which asks the machine's programs",
    "tests/app/terminal/test_plan.py::test_a_global_batch": "runs, which ask the machine's programs",
    "tests/app/search/test_changes.py::test_without_page_locks": "a simulator",
    "tests/app/search/test_changes_on_cpu.py::test_each_change": "a simulator",
    "tests/app/search/test_changes_on_cpu.py::test_only_what": "a simulator",
    "tests/app/search/test_fastest.py::test_a_run_holds": "a run, which asks the machine's programs",
    "tests/app/search/test_fastest.py::test_a_world_where": "a run, which asks the machine's programs",
    "tests/app/search/test_fastest.py::test_rounds_join": "a run, which asks the machine's programs",
    "tests/config/deepspeed/test_written.py::test_trainer_fills_in": "transformers, which imports torch",
    "tests/config/deepspeed/test_written.py::test_deepspeed_reads_it": "DeepSpeed",
    "tests/app/terminal/test_report.py::test_a_page_and_json_are_written": "an interpreter of its own",
    "tests/app/terminal/test_status.py": "Slurm's programs, played by a script",
    "tests/app/terminal/test_strategies.py": "a compiler that is asked",
    "tests/app/terminal/test_submit.py": "Slurm's programs, played by a script",
    "tests/app/terminal/test_tune.py": "runs, which ask the machine's programs",
    "tests/app/terminal/test_validate.py::test_a_sweep_is_run_with": "a run, which asks the machine's programs",
    "tests/app/terminal/test_watch.py": "watched commands",
    "tests/config/deepspeed/test_facts.py": "DeepSpeed",
    "tests/config/deepspeed/test_keys.py::test_the_table_is_what": "DeepSpeed",
    "tests/config/deepspeed/test_shipped_run.py": "ranks",
    "tests/emulator/test_account.py": "torch's CUDA build, in processes of its own",
    "tests/emulator/test_allocator.py": "torch's CUDA build, in processes of its own",
    "tests/emulator/test_allocator_models.py": "torch's CUDA build, in a process of its own",
    "tests/emulator/inside/": "torch, on the emulated GPU",
    "tests/emulator/": "torch's CUDA build, in processes of its own, and compilers",
    "tests/extras/": "environments of their own",
    "tests/estimate/memory/test_activations.py::test_of_a_model_partly_frozen": "torch",
    "tests/estimate/memory/test_activations.py::test_the_tally": "torch",
    "tests/estimate/memory/test_allocator.py::test_in_both_steps": "processes",
    "tests/estimate/memory/test_allocator.py::test_of_states": "a simulator",
    "tests/config/models/test_tensors.py::test_the_tensors": "torch",
    "tests/estimate/memory/test_gathers.py::test_a_formula": "a simulator",
    "tests/estimate/clock/test_issued_step.py::test_a_scripts_step": "a simulator",
    "tests/estimate/clock/test_issued_step.py::test_the_order_alone": "a simulator",
    "tests/estimate/memory/test_gathers.py::test_its_step": "a simulator",
    "tests/estimate/memory/test_gathers.py::test_an_explanation": "a simulator",
    "tests/estimate/memory/test_agreement.py": "a simulator",
    "tests/estimate/memory/test_peaks.py": "a simulator",
    "tests/estimate/allocator/": "torch",
    "tests/rank/ledger/": "torch",
    "tests/rank/nvml/": "the sampler's process",
    "tests/report/export/test_tensorboard_events.py": "TensorBoard, which imports TensorFlow",
    "tests/report/export/test_memory_viz.py::test_torch_s_": "torch, and a browser",
    "tests/report/export/test_perfetto.py::test_the_viewer": "a browser",
    "tests/report/documents/page/test_compared_in_browser.py": "a browser",
    "tests/report/documents/page/test_comparison_in_browser.py": "a browser",
    "tests/estimate/time/test_replayed.py": "a simulator",
    "tests/report/figures/test_host_parameters.py::test_sixteen_bytes": "a simulator",
    "tests/report/documents/page/test_hostile.py": "a browser",
    "tests/report/documents/page/test_in_browser.py": "a browser",
    "tests/report/documents/page/test_kinds_in_browser.py": "a browser",
    "tests/launch/setup/test_doctor.py::test_gpus_are_told": "a stand-in driver, asked by a process",
    "tests/launch/setup/test_doctor.py::test_a_machine_whose_gpus": "a stand-in driver, asked by processes",
    "tests/launch/run/test_attempt.py": "ranks",
    "tests/launch/machine/test_compile_locks.py": "processes that hold locks",
    "tests/launch/machine/test_environment.py": "the machine's programs",
    "tests/launch/setup/test_environment_setup.py": "the setup's commands",
    "tests/common/test_environment_locks.py": "setups and programs that wait for each other",
    "tests/launch/run/test_kernels.py": "compilers",
    "tests/launch/run/test_launched.py": "ranks",
    "tests/launch/run/test_launcher.py::test_the_launcher_is": "torch",
    "tests/launch/run/test_launcher.py::test_the_written_command": "ranks",
    "tests/launch/run/test_logs.py": "ranks",
    "tests/launch/machine/test_this_machine.py": "the machine's programs",
    "tests/launch/run/test_namesakes.py": "processes of one number",
    "tests/launch/run/test_node_environment.py": "the machine's programs, and ssh",
    "tests/launch/run/test_ranks.py::test_a_death_is_seen": "ranks",
    "tests/launch/run/test_ranks.py::test_a_rank_that_died": "ranks",
    "tests/launch/run/test_ranks.py::test_a_process_of_another": "ranks",
    "tests/launch/run/test_ranks.py::test_the_latest_word": "ranks",
    "tests/launch/run/test_ranks.py::test_a_torn_progress": "ranks",
    "tests/launch/run/test_recovery.py::test_a_conversion": "a conversion that fails",
    "tests/launch/run/test_remote.py": "ranks",
    "tests/launch/run/test_run_beside_others.py": "ranks",
    "tests/launch/run/test_runner.py": "ranks",
    "tests/launch/run/test_room.py::test_a_small_and_a_read_only": "a mount of its own",
    "tests/launch/run/test_simulations.py": "a simulator",
    "tests/launch/run/test_simulators.py": "simulators",
    "tests/launch/slurm/": "Slurm's programs, real or played by a script",
    "tests/config/models/test_architecture.py::test_dropout_that_transformers": "transformers",
    "tests/config/models/test_architecture.py::test_what_a_config_leaves_out": "transformers",
    "tests/config/trial/test_backward.py": "torch",
    "tests/config/models/test_causal_models.py::test_all_causal_models": "transformers",
    "tests/config/models/test_causal_models.py::test_each_causal_model": "transformers",
    "tests/config/models/test_causal_models.py::test_types_of_rotary": "transformers",
    "tests/config/derived/test_flops.py::test_model_flops_are": "torch",
    "tests/config/models/test_parameters.py::test_a_preset_equals": "transformers",
    "tests/config/models/test_parameters.py::test_any_shape_written_out": "transformers",
    "tests/config/models/test_parameters.py::test_the_closed_form_equals": "transformers",
    "tests/config/models/test_presets.py::test_resolving_and_counting_start": "an interpreter of its own",
    "tests/common/test_environments.py": "an interpreter of its own",
    "tests/test_joined_compiler.py": "compilers",
    "tests/test_login_install.py": "pip",
    "tests/test_makefile.py": "make",
    "tests/test_package.py": "pip",
    "tests/common/test_rank_processes.py": "ranks",
    "tests/test_schedule.py::test_every_file": "pytest, as a process",
    "tests/test_schedule.py::test_an_order": "pytest, as a process",
    "tests/test_schedule.py::test_a_random": "pytest, as a process",
    "tests/launch/emulate/inside/": "torch, and users' scripts in processes",
    "tests/launch/tracking/": "torch, and watched commands",
    "tests/trials/": "ranks",
    "tests/rank/loop/": "torch",
    "tests/rank/optimizers/": "torch",
    "tests/rank/strategies/": "torch",
    "tests/rank/training/": "torch",
    "tests/rank/worlds/": "torch",
    "tests/rank/tensorflow/": "TensorFlow's environment",
}
"""What is not in the tier, and what it needs: the beginnings of test names."""

FRAMEWORKS = frozenset({"torch", "deepspeed", "transformers", "accelerate", "tensorflow", "keras", "horovod"})
PROCESSES = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"})
"""Audit events of Python that say that a process begins."""


class Guard(MetaPathFinder):
    """Hears what the interpreter does, and fails the test that does what the tier is without."""

    def __init__(self) -> None:
        self._watching = False

    @contextmanager
    def watches(self, wanted: bool) -> Iterator[None]:
        """Within, if `wanted`."""
        before, self._watching = self._watching, wanted
        try:
            yield
        finally:
            self._watching = before

    def hear_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Python calls this for each audit event, for the life of the process."""
        if self._watching and event in PROCESSES:
            _fail(f"starts a process ({event} {str(arguments[:2])[:200]})")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Python asks this first for each module that it has not loaded yet. To look where one lies is no import."""
        if not self._watching or fullname not in FRAMEWORKS:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            spec.loader = _Refusal()
        return spec


class _Refusal(Loader):
    """Loads nothing."""

    def exec_module(self, module: ModuleType) -> None:
        """Python calls this to import the module."""
        _fail(f"imports {module.__name__}")


def _fail(offence: str) -> NoReturn:
    pytest.fail(f"a test of the fast tier {offence}: see tests/fast_tier.py")


GUARD = Guard()
sys.addaudithook(GUARD.hear_event)
sys.meta_path.insert(0, GUARD)


def is_fast(name: str) -> bool:
    """Whether the test of this name is in the tier."""
    return not name.startswith(tuple(SLOWER))


def holds_fast_tests(path: Path, config: pytest.Config) -> bool:
    """Whether a file of tests, as far as its name tells, has some in the tier."""
    return is_fast(path.relative_to(config.rootpath).as_posix())


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Where the tier runs alone, its files are read under the guard too: what one imports, all its tests do."""
    alone = isinstance(collector, pytest.Module) and collector.config.option.markexpr == MARKER
    with GUARD.watches(alone and holds_fast_tests(collector.path, collector.config)):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Watch a test of the tier, whoever runs it, with the fixtures that are made for it."""
    with GUARD.watches(item.get_closest_marker(MARKER) is not None):
        return (yield)
