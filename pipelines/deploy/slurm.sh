#!/usr/bin/env bash
# A pipeline on N nodes of Slurm, one Ray node on each; what is preempted or runs out of time is queued again, and resumes.
#   sbatch --nodes 2 --gpus-per-node 8 pipelines/deploy/slurm.sh run byol-imagenet-200ep-sts --data.root /data/imagenet
# The folder it is started from must be seen by all nodes, with the environment in .venv; runs/ is made there.
#SBATCH --job-name=sts
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@180
set -euo pipefail

[ $# -gt 0 ] || { echo "usage: sbatch [options] slurm.sh run|sweep|evaluate NAME [flags]" >&2; exit 2; }
[ -d .venv ] && source .venv/bin/activate

port=${STS_RAY_PORT:-$((20000 + SLURM_JOB_ID % 20000))}  # two jobs may share a node
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${hosts%%$'\n'*}
gpus=${SLURM_GPUS_ON_NODE:-0}
workers=$((SLURM_JOB_NUM_NODES * (gpus > 0 ? gpus : 1)))
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=${RAY_AUTH_TOKEN:-$(python -c 'import secrets; print(secrets.token_hex(32))')}
export RAY_USAGE_STATS_ENABLED=0

node() { exec ray start --block --num-cpus "$SLURM_CPUS_PER_TASK" --num-gpus "$gpus" "$@"; }
export -f node
export gpus

srun --nodes 1 --ntasks 1 --overlap -w "$head" bash -c "node --head --node-ip-address $head --port $port" &
nodes=$!
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
  srun --nodes $((SLURM_JOB_NUM_NODES - 1)) --ntasks $((SLURM_JOB_NUM_NODES - 1)) --overlap --exclude "$head" \
    bash -c "sleep 10; node --address $head:$port" &
  nodes="$nodes $!"
fi

again=0
# Three minutes before the end: save a checkpoint, stop, and queue again. The same command resumes.
trap 'again=1; kill -USR1 "$sts" 2>/dev/null; sleep 60; kill -TERM "$sts" 2>/dev/null' USR1

for _ in $(seq 60); do
  ray status --address "$head:$port" >/dev/null 2>&1 && break
  sleep 2
done
srun --nodes 1 --ntasks 1 --overlap -w "$head" \
  sts "$@" --cluster.address "$head:$port" --cluster.num-workers "$workers" --cluster.use-gpu "$([ "$gpus" -gt 0 ] && echo true || echo false)" &
sts=$!
code=0
wait "$sts" || code=$?
while kill -0 "$sts" 2>/dev/null; do code=0; wait "$sts" || code=$?; done  # a signal ends wait, not what it waits for
kill $nodes 2>/dev/null || true
wait || true
if [ "$again" = 1 ] && [ "$code" -ne 0 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
