# What every task of a trial's step does: it becomes the rank that torch expects, and leaves its exit status behind.
#
#     srun --kill-on-bad-exit=1 bash slurm/rank.sh TRIAL_FOLDER PROGRAM ARGUMENT...
#
# Slurm numbers tasks node by node, as torch numbers ranks. MASTER_ADDR and MASTER_PORT come from whoever calls srun: a
# task does not know which node rank 0 is on by a name that the others can resolve.

folder=$1
shift

export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID
export WORLD_SIZE=${SLURM_STEP_NUM_TASKS:-$SLURM_NTASKS}

# Slurm sends a signal to all processes of a task. This shell must outlive the rank to tell how it ended.
trap : TERM USR1

"$@"
status=$?

# By rename: whoever looks sees all of it or nothing.
printf '%s\n' "$status" > "$folder/.exit_$RANK" && mv -f "$folder/.exit_$RANK" "$folder/exit_$RANK.txt"
exit "$status"
