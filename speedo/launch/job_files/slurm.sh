#!/bin/bash
# Slurm: trains on @{nodes} nodes, each with as many workers: @{workers}. Submit it from a folder that all nodes see:
#
#   sbatch THIS_FILE
#
# The run directory, the token of this job and the log come into that folder.
#SBATCH --job-name=@{name}
#SBATCH --nodes=@{nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=@{cpus_per_node}
#SBATCH --mem=@{memory}
#SBATCH --time=@{time}
@{partition_line}
#SBATCH --output=%x-%j.log
# Two minutes before the time is over the master is stopped: it writes a checkpoint, tests and exports what was merged.
#SBATCH --signal=B:TERM@120
set -euo pipefail

speedo=(@{command})
options=(@{options})

# Every job has ports of its own, as nodes may be shared.
port=$((20000 + SLURM_JOB_ID % 120 * 100))
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
first="${nodes[0]}" last="${nodes[-1]}"
# As the last node sees the first one: on the first itself its name may be a loopback address.
address="$(srun --nodes=1 --ntasks=1 --nodelist="$last" getent ahostsv4 "$first" | awk 'NR == 1 { print $1 }')"

# The secret of this job, readable for its user alone; only the file's name is handed on.
token="$PWD/.speedo-$SLURM_JOB_ID.token"
(umask 077 && head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$token")
export SPEEDO_TOKEN_FILE="$token"
trap 'rm -f -- "$token"' EXIT

srun --job-name=master --overlap --nodes=1 --ntasks=1 --nodelist="$first" @{srun_options}\
  "${speedo[@]}" master --host "$address" --port "$port" --workers @{total} --grace 100 "${options[@]}" &
master=$!
srun --job-name=workers --overlap --nodes=@{nodes} --ntasks-per-node=1 @{srun_options}\
  "${speedo[@]}" worker --master "$address:$port" --workers @{workers} --threads @{threads} @{worker_options}&
workers=$!

# srun itself would kill the step; the master alone is to hear of it.
# shellcheck disable=SC2317 # the trap calls it
stop_master() {
  local step
  step="$(squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format='%i %j' | awk '$2 == "master" { print $1 }')"
  [ -z "$step" ] || scancel --signal=TERM "$step" || true # some versions fail although they have sent it
}
trap stop_master TERM
status=0
wait "$master" || status=$?
while kill -0 "$master" 2>/dev/null; do # a signal has ended the wait, not the master
  status=0
  wait "$master" || status=$?
done
wait "$workers" || true
exit "$status"
