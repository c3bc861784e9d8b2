#!/usr/bin/env bash
# `mmlape train --slurm` by the name of MMDetection's script.
#
#   mmlape slurm_train PARTITION JOB CONFIG WORK_DIR [options of mmlape train ...]
#
#   GPUS           number of GPUs in all (default 8)
#   GPUS_PER_NODE  of them on one machine (default: 8, or GPUS if that is less)
# PYTHON names the interpreter (default: python).

set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/launch_parts/common.sh"
takes 4 "$@"
by_slurm "$1" "$2" train "$3" --work-dir "$4" "${@:5}"
