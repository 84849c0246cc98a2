"""Run predicted trials: formula trials in this process, simulated and emulated ones in a simulator, several at a time.

No launcher, no ranks, no GPU: less can go wrong than in a measured trial, and the record has the same types. A
simulator that is killed or hangs takes only its current trials with it; another one goes on.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zerobench.common.errors import UserError
from zerobench.common.training_python import training_python
from zerobench.config.deepspeed import file_notes
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.estimate.memory import formula_record
from zerobench.launch.run import simulator
from zerobench.launch.run.logs import redact_logs
from zerobench.launch.run.oom import OomCounters, read_oom_counters
from zerobench.launch.run.outcome import INTERRUPTED, Outcome, died, quiet_for, simulator_died
from zerobench.launch.run.quiet import Quiet
from zerobench.launch.run.simulator import Pair, Simulator, group_by_simulator, simulator_variables
from zerobench.launch.run.stop import Stop
from zerobench.launch.run.trial_record import skipped_record, trial_record, write_record
from zerobench.records.folder import TrialFolder, write_whole
from zerobench.records.progress import Progress, read_progress
from zerobench.records.records import RankRecord, TrialRecord, read_or_none

POLL_S = 0.25
_ANSWER_S = 5.0
"""Seconds the simulator may take to report the end of a fork."""
_MOST_BARREN = 2
"""Consecutive simulators that may end without starting a trial; then the remaining trials fail."""

Started = Callable[[TrialSpec], None]
Ended = Callable[[TrialRecord], None]
Playing = Callable[[Sequence[tuple[TrialSpec, Progress | None]]], None]
"""Called a few times a second with the current trials and the latest progress of each."""


def predict(
    trials: Sequence[Pair],
    run_id: str,
    num_cpus: int,
    stop: Stop,
    started: Started,
    ended: Ended,
    playing: Playing = lambda _: None,
) -> None:
    """Run predicted trials, whose specs are in their folders; each leaves its record there.

    Raises OSError if a folder cannot be written.
    """
    for trial, folder in trials:
        if stop.asked:
            return
        if trial.evidence is Evidence.FORMULA:
            started(trial)
            ended(_record_formula(trial, folder, run_id))
    for played in group_by_simulator([pair for pair in trials if pair[0].evidence.is_forked]):
        if stop.asked:
            return
        try:
            added = simulator_variables(played[0][0])
        except UserError as error:
            for trial, folder in played:
                started(trial)
                ended(_skipped(trial, folder, run_id, str(error), "emulator"))
        else:
            _Simulations(deque(played), run_id, min(num_cpus, len(played)), stop, started, ended, added, playing).run()


def _record_formula(trial: TrialSpec, folder: TrialFolder, run_id: str) -> TrialRecord:
    """Record the trial by formula; one without a known formula is skipped, and later ones go on."""
    begun_s = time.time()
    try:
        record = formula_record(trial)
    except UserError as error:
        return _skipped(trial, folder, run_id, str(error), "formula")
    write_whole(folder.rank_record(0), record.model_dump_json())
    return _record(trial, folder, run_id, 0, begun_s, (record.status, record.failure), 1)


def _skipped(trial: TrialSpec, folder: TrialFolder, run_id: str, reason: str, rule: str) -> TrialRecord:
    """Record a trial that cannot be predicted here."""
    return write_record(folder, skipped_record(trial, run_id, rule, reason, 1))


@dataclass
class _PlayedTrial:
    """A trial that was sent to the simulator."""

    trial: TrialSpec
    folder: TrialFolder
    begun_s: float
    """Unix time at which it was sent, then at which its fork began."""
    oom: OomCounters
    """The kernel's counters at its start."""
    quiet: Quiet = field(default_factory=Quiet)
    pid: int | None = None
    """Process id of its fork."""
    word: Progress | None = None
    given_up_at: float | None = None
    """Time on the monotonic clock at which it was ended for lack of progress."""

    @property
    def is_unanswered(self) -> bool:
        """True if it was ended and the simulator does not report it: the simulator hangs too."""
        patience_s = 0.0 if self.pid is None else _ANSWER_S
        return self.given_up_at is not None and time.monotonic() - self.given_up_at > patience_s

    def look(self) -> None:
        """Read the latest progress."""
        latest = map(read_progress, map(self.folder.progress, self.trial.played_ranks))
        words = [word for word in latest if word is not None]
        self.word = words[0] if words else self.word
        self.quiet.hear(words or ([] if self.word is None else [self.word]))


@dataclass
class _Simulations:
    """Keeps a simulator busy with several trials at a time, and records how each ended."""

    _waiting: deque[Pair]
    _run_id: str
    _jobs: int
    _stop: Stop
    _started: Started
    _ended: Ended
    _added: Mapping[str, str]
    _playing: Playing
    _told: set[Path] = field(default_factory=set)
    _played: dict[str, _PlayedTrial] = field(default_factory=dict)
    _barren: int = 0
    _oom: OomCounters = field(default_factory=lambda: OomCounters({}))
    """The kernel's counters before the first of the simulators that started no trial."""
    _spent_s: float = 0.0
    """Processor time of the simulator at the last look."""

    def run(self) -> None:
        """Run all trials, in one simulator unless it is lost."""
        world = self._waiting[0][0].evidence
        while self._waiting and not self._stop.asked:
            if not self._barren:
                self._oom = read_oom_counters()
            self._barren += 1  # until it has begun a trial
            with Simulator(self._jobs, world, self._added) as process:
                self._serve(process)
                was_gone = process.is_gone
                code, words = process.end(), process.words()
            self._close(code, words, was_gone=was_gone)
        for trial, folder in self._waiting:  # someone stopped it
            self._tell(trial, folder)
            self._finish(_PlayedTrial(trial, folder, time.time(), read_oom_counters()), None, INTERRUPTED)

    def _serve(self, process: Simulator) -> None:
        """Serve until all is done, the runner is stopped, or the simulator is gone or hangs."""
        looked = time.monotonic()
        while (self._waiting or self._played) and not self._stop.asked:
            while self._waiting and len(self._played) < self._jobs:
                trial, folder = self._waiting.popleft()
                self._tell(trial, folder)
                write_whole(folder.command, f"{training_python().python} -m {simulator.MODULE}\n")
                self._played[str(folder.path)] = _PlayedTrial(trial, folder, time.time(), read_oom_counters())
                process.send(folder.path)
            for message in process.hear(POLL_S):
                played = self._played[message.path]
                if message.verb == "begun":
                    self._barren = 0
                    if played.pid is None:  # else it is played again, with more room
                        played.begun_s = time.time()
                    played.pid = message.number
                    played.quiet.end()
                else:
                    self._end(self._played.pop(message.path), message.number)
            if process.is_gone or any(trial.is_unanswered for trial in self._played.values()):
                return
            if time.monotonic() - looked >= POLL_S:
                looked = time.monotonic()
                self._end_quiet_ones(process)
                self._playing([(played.trial, played.word) for played in self._played.values()])

    def _tell(self, trial: TrialSpec, folder: TrialFolder) -> None:
        """Report a trial's start once."""
        # A second simulator may have to start the trial again.
        if folder.path not in self._told:
            self._told.add(folder.path)
            self._started(trial)

    def _end_quiet_ones(self, process: Simulator) -> None:
        """End forks without progress."""
        before, self._spent_s = self._spent_s, process.spent_s
        for played in self._played.values():
            played.look()
            # A fork that is not there yet is judged by its simulator's processor time: importing torch is progress.
            if played.pid is None and self._spent_s != before:
                played.quiet.end()
            if played.given_up_at is None and played.quiet.seconds > played.trial.timeout_s:
                played.given_up_at = time.monotonic()
                if played.pid is not None:
                    process.kill(played.pid)

    def _close(self, code: int, words: str, *, was_gone: bool) -> None:
        """Settle the current trials of a simulator that ended, with `code` if by itself."""
        for played in list(self._played.values()):
            if self._stop.asked:
                self._finish(played, None, INTERRUPTED)
            elif _rank_records(played) or played.given_up_at is not None:
                self._end(played, code)
            elif was_gone and played.pid is not None:
                self._keep_words(played.folder, words)
                self._finish(played, code, simulator_died(code, words, read_oom_counters().since(played.oom)))
            else:
                self._waiting.appendleft((played.trial, played.folder))
        self._played.clear()
        if self._barren and was_gone and (code >= 0 or self._barren >= _MOST_BARREN):
            # No simulator can be started: the trials that are left fail by what it said.
            for trial, folder in self._waiting:
                self._tell(trial, folder)
                self._keep_words(folder, words)
                self._end(_PlayedTrial(trial, folder, time.time(), self._oom), code)
            self._waiting.clear()

    @staticmethod
    def _keep_words(folder: TrialFolder, words: str) -> None:
        if words and not folder.stderr.exists():
            write_whole(folder.stderr, words)

    def _end(self, played: _PlayedTrial, code: int) -> None:
        """Record a trial whose fork is gone, from its rank records or from the remaining evidence."""
        records = _rank_records(played)
        if records:
            first = next((rank for rank in records if rank.failure is not None), records[0])
            self._finish(played, code, (first.status, first.failure), reported=len(records))
        elif played.given_up_at is not None:
            self._finish(played, code, quiet_for(played.trial, played.word))
        else:
            self._finish(played, code, died(code, played.folder, read_oom_counters().since(played.oom)))

    def _finish(self, played: _PlayedTrial, code: int | None, outcome: Outcome, reported: int = 0) -> None:
        record = _record(played.trial, played.folder, self._run_id, code, played.begun_s, outcome, reported)
        self._ended(record)


def _rank_records(played: _PlayedTrial) -> list[RankRecord]:
    """Return the trial's rank records; none if one is missing or torn."""
    found = [read_or_none(played.folder.rank_record(rank), RankRecord) for rank in played.trial.played_ranks]
    ranks = [rank for rank in found if rank is not None]
    return ranks if len(ranks) == len(found) else []


def _record(
    trial: TrialSpec,
    folder: TrialFolder,
    run_id: str,
    code: int | None,
    begun_s: float,
    outcome: Outcome,
    reported: int,
) -> TrialRecord:
    """Write and return the trial's record; `code` is None if the runner was stopped."""
    redact_logs(folder)
    record = trial_record(
        trial,
        run_id,
        outcome,
        len(trial.played_ranks),
        exit_code=code,
        ranks_reported=reported,
        started_at_s=begun_s,
        ended_at_s=time.time(),
        notes=file_notes(trial),
    )
    return write_record(folder, record)
