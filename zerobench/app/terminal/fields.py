"""Fields of every command's `--json` document: a public interface, tested against the documents.

`[]` stands for each element of a list, `*` for each name of an object. A kind is `text`, `integer`, `number`, `boolean`
or `object`; with `?` it may be null if unknown or not applicable. Bytes are integers, seconds numbers. Fields are only
ever added.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Field(NamedTuple):
    kind: str
    words: str = ""


def _fields(text: str) -> Mapping[str, Field]:
    """Parse one field per line: path, kind, description."""
    split = (line.split(maxsplit=2) for line in text.strip().splitlines())
    return {path: Field(kind, " ".join(words)) for path, kind, *words in split}


EVERY = _fields("""
zerobench  text  version of zerobench
command    text  the command
""")
"""Fields of every document."""

FIELDS: Mapping[str, Mapping[str, Field]] = {
    "tune": _fields("""
run                                     text     folder of the predictions
best                                    text?    recommended configuration; null if none fits with room
reason                                  text?    reason for that choice
runner_up                               text?    next best, with its time and memory relative to that one
ds_config                               text?    file of its DeepSpeed configuration
search                                  text     file with everything tried
notes[]                                 text     caveats of the figures
"""),
    "plan": _fields("""
run                                     text     folder of the predictions
best                                    text?    recommended configuration; null if none fits with room
reason                                  text?    reason for that choice
runner_up                               text?    next best, with its time and memory relative to that one
ds_config                               text?    file of its DeepSpeed configuration
notes[]                                 text     caveats of the figures
configurations[].configuration          text     name
configurations[].fits                   boolean  on device and host, as far as known
configurations[].needed_bytes           integer? peak of one GPU, with slack, context and NCCL
configurations[].start_up_needed_bytes  integer? the same at start-up
configurations[].steady_needed_bytes    integer? the same in steps
configurations[].capacity_bytes         integer? usable memory of one GPU
configurations[].host_needed_bytes      integer? host memory of one node
configurations[].expected_step_s        number?  expected time of a step
configurations[].expected_step_low_s    number?  lower end of the 80% interval
configurations[].expected_step_high_s   number?  upper end of the 80% interval
configurations[].tokens_per_s           number?  expected, all GPUs together
configurations[].expected_mfu           number?  expected model FLOP/s over the peak of its precision
configurations[].step_bound_s           number?  lower bound of a step's time
configurations[].training               object?  days, GPU-hours, cost, energy of --tokens: low, expected, high
configurations[].categories.*           integer  bytes at the peak of a steady step, by category
without_figures[].trial_id              text     trial that was skipped or could not be predicted
without_figures[].status                text     its status
without_figures[].reason                text?    reason
search                                  text     with a global batch: file with everything tried
runs                                    text     with --frontier: folder of the search
axis                                    text     with --frontier: the axis searched
frontier[].configuration                text     name
frontier[].largest                      integer? largest fitting value
frontier[].too_large                    integer? smallest value known not to fit
frontier[].needed_bytes                 integer? of one GPU at `largest`
given_up.*                              text     reason that a search ended early, by configuration
"""),
    "compare": _fields("""
base                            text     folder of the base run
new                             text     folder of the new run
passed                          boolean  true if every limit holds
limits[].limit                  text     as written
limits[].passed                 boolean  true if it holds
limits[].trials_judged          integer  number of trials judged
limits[].failures[]             text     one sentence per trial that exceeds it
limits[].not_judged[]           text     one sentence per trial that cannot be judged
trials[].trial                  text     name
trials[].base_status            text     status of its repeats in BASE
trials[].new_status             text     status in NEW
trials[].memory[].place         text     device, host, nvme, reserved, used or resident
trials[].memory[].step          text     first (with start-up) or steady
trials[].memory[].base_bytes    integer  peak in BASE
trials[].memory[].new_bytes     integer  peak in NEW
trials[].memory[].more_bytes    integer  new minus base
trials[].memory[].fraction      number?  the same as a fraction of base
trials[].memory[].categories.*  integer  the same by category
trials[].speed                  object?  verdict, ratio (new over base, above 1 is slower), p_value
configuration_changed[].key     text     DeepSpeed key with another value in NEW, as a dotted path
configuration_changed[].base    text     its value in BASE, shortened; `default` if absent
configuration_changed[].new     text     its value in NEW
configuration_changed[].trials[]  text   trials in which it changed
causes[]                        text     causes of the largest increase
only_base[]                     text     trials only in BASE
only_new[]                      text     trials only in NEW
environment[].name              text     fact that differs
environment[].base              text?    in BASE
environment[].new               text?    in NEW
"""),
    "status": _fields("""
run                   text     folder
is_going              boolean  true if it still progresses by itself
slurm_answers         boolean  true if Slurm answers
counts.*              integer  number of trials by standing
trials[].trial_id     text     id
trials[].standing     text     completed, failed, skipped, running, queued or another of the screen's words
trials[].reason       text?    reason it failed or was skipped, or its job waits
trials[].job          text?    name of its job
trials[].task_id      integer? index of its task
trials[].silence_s    number?  seconds since any of its ranks reported
jobs[].name           text     name
jobs[].job_id         integer? Slurm's id
jobs[].tasks          integer  tasks of the array
jobs[].states.*       integer  number of tasks by Slurm's state
jobs[].time_left_s    number?  seconds until the time limit
next                  text?    command that continues the run
"""),
    "show": _fields("""
run             text     folder
schema_version  integer  of the records
decisions[]     object   recommendation for each kind of work: configuration, trial_id, reason, runner_up
runs[]          object   run_id, sweep, environment, nodes, submitted_from, not_ended
trials[]        object   the columns of trials.csv and more, with peaks, ranks and notes of the trial
errors[]        object   the columns of errors.csv
"""),
    "run": _fields("""
run                text     folder
runs               text     with --frontier: folder of the search; then the fields of frontier.json follow
interrupted        boolean  true if the user stopped it
trials[].trial_id  text     id
trials[].status    text?    its status
trials[].runs      boolean  with --dry-run: true if it would run
trials[].rule      text?    with --dry-run: rule that skips it
trials[].reason    text?    with --dry-run: reason
notes[]            text     with --dry-run: notes
"""),
    "validate": _fields("""
run          text     folder
predictions  integer  number of predictions with a measurement
has_failed   boolean  true if a trial failed
errors[]     object   the columns of errors.csv
"""),
    "explain": _fields("""
passages[].title        text    heading
passages[].sentences[]  text    as printed
*                       object? the figures behind the sentences
"""),
    "emulate": _fields("""
fits                    boolean? true if all ranks and the host fit
ranks[].rank            integer  its index
ranks[].fits            boolean? true if it fits its GPU
ranks[].peak_bytes      integer? peak of torch's allocated memory
ranks[].reserved_bytes  integer? peak of torch's reserved memory
ranks[].start_up_reserved_bytes  integer? at start-up
ranks[].steady_reserved_bytes    integer? in steps
ranks[].needed_bytes    integer? needed of its GPU: memory torch cannot release, CUDA context and NCCL
ranks[].start_up_needed_bytes  integer? at start-up
ranks[].steady_needed_bytes    integer? in steps
ranks[].nvml_bytes      integer? used memory as the driver would show it: reserved, CUDA context and NCCL
ranks[].compiled        boolean  true if also played compiled: then peaks are compiled, categories eager
ranks[].categories.*    integer  at the peak
host.node_bytes         integer? needed host memory of one node
host.fits               boolean? true if that fits
tries[].changes[]       text     one of the smallest changes tried
tries[].fits            boolean? true if it fits with them
tries[].needed_bytes    integer? needed of a GPU with them
expected_step_s         number?  expected time of the script's step, by replay of what was played
expected_step_low_s     number?  lower end of the 80% interval
expected_step_high_s    number?  upper end of the 80% interval
expected_mfu            number?  expected model FLOP/s over the peak of its precision
*                       object?  more figures; sizes end in _bytes
"""),
    "submit": _fields("""
run                    text     folder
jobs[].name            text     name
jobs[].job_id          integer? Slurm's id
jobs[].tasks           integer  tasks of the array
jobs[].task_id         integer  with --local: index of the task
jobs[].exit_code       integer  with --local: its exit status
arrays[].kind          text     with --dry-run: purpose of the array
arrays[].nodes         integer  with --dry-run: nodes per task
arrays[].tasks         integer  with --dry-run: tasks of the array
arrays[].trials        integer  with --dry-run: trials of the array
arrays[].time_limit_s  number   with --dry-run: per task
arrays[].node_hours    number   with --dry-run: node-hours requested at most
skipped                integer  with --dry-run: trials that rules skip
"""),
    "baseline": _fields("""
baselines[].baseline  text  name
baselines[].run_id    text  id of the stored run
baselines[].folder    text  folder of the copy
"""),
    "doctor": _fields("""
can_run.*          boolean  true for each kind of trial that can run here
checks[].what      text     subject of the check
checks[].standing  text     ok, limited or missing
checks[].finding   text     result
checks[].remedy    text     remedy; empty if nothing is wrong
"""),
    "models": _fields("""
models[].model          text     name of the preset
models[].family         text     architecture
models[].parameters     integer? exact count
models[].num_layers     integer? layers
models[].hidden_size    integer? width
models[].num_heads      integer? attention heads
models[].vocab_size     integer? tokens of the vocabulary
models[].max_positions  integer? context length; null if unlimited
model                   text     with MODEL: as given
components.*            integer  with MODEL: parameters by component, and total
gpus[].gpu              text     with --gpus: name in the hardware catalogue
gpus[].memory_bytes     integer? with --gpus: as NVML reports it
gpus[].usable_memory_bytes  integer? with --gpus: usable by CUDA; predictions must fit it
gpus[].usable_memory_rule   text?    with --gpus: rule that derives it; null if the catalogue has it
gpus[].bf16_tflops      number?  with --gpus: dense peak
gpus[].memory_gb_per_s  number?  with --gpus: bandwidth of its memory
gpus[].link             text?    with --gpus: fastest link to another GPU
gpus[].link_gb_per_s    number?  with --gpus: its bandwidth, both directions together
"""),
    "strategies": _fields("""
strategies[].strategy      text     name
strategies[].summary       text     summary
strategies[].can_run_here  boolean  true if this machine can measure it
strategies[].facts.*       text     as printed
optimizers[].optimizer     text     name
optimizers[].title         text     title
optimizers[].state_bytes   number   per parameter
optimizers[].facts.*       text     as printed
"""),
    "sweeps": _fields("""
sweeps[].sweep  text  name
sweeps[].file   text  path
sweeps[].about  text  description
axes[].axis     text  with --axes: name
axes[].example  text? with --axes: a value
axes[].about    text  with --axes: possible values
"""),
    "calibrate": _fields("""
file               text     path of the calibration
variable           text     environment variable that applies it to predictions
gpus[].gpu         text     name
gpus[].world_size  integer  world size of the trials
gpus[].ranks       integer  number of rank records used
"""),
    "watch": _fields("""
run        text     folder
status     text?    status of the command; null if no record could be written
exit_code  integer  exit status of the command
"""),
    "setup": _fields("""
environment  text  name
folder       text  path
"""),
    "export": _fields("""
exported[]  text  one line per tool
"""),
}
"""Fields by command."""
