#!/usr/bin/env bash
# Evaluate a checkpoint on a SLURM cluster.
#
#   mmlape slurm_test PARTITION JOB CONFIG CHECKPOINT [options of mmlape test ...]
#
# The environment variables are those of mmlape slurm_train.

set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/launch_parts/common.sh"
takes 4 "$@"
partition=$1
job=$2
config=$3
checkpoint=$4
shift 4
run_by_srun "$partition" "$job" test.py "$config" "$checkpoint" "$@"
