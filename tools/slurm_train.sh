#!/usr/bin/env bash
# Train on a SLURM cluster: by itself, or in a job script (then `#SBATCH --requeue` is enough to resume).
#
#   mmlape slurm_train PARTITION JOB CONFIG WORK_DIR [options of mmlape train ...]
#
#   GPUS           number of GPUs in all (default 8)
#   GPUS_PER_NODE  of them on one machine (default: 8, or GPUS if that is less)
#   CPUS_PER_TASK  CPU cores per GPU (default 5)
#   SRUN_ARGS      further options of srun, separated by spaces, e.g. '--time=24:00:00 --account=lab'
#   PORT           of the first machine (default: from the number of the job)
# PYTHON names the interpreter (default: python).

set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/launch_parts/common.sh"
takes 4 "$@"
partition=$1
job=$2
config=$3
work_dir=$4
shift 4
run_by_srun "$partition" "$job" train.py "$config" --work-dir "$work_dir" "$@"
