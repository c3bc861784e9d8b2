#!/usr/bin/env bash
# `mmlape test --slurm` by the name of MMDetection's script.
#
#   mmlape slurm_test PARTITION JOB CONFIG CHECKPOINT [options of mmlape test ...]
#
# The environment variables are those of mmlape slurm_train.

set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/launch_parts/common.sh"
takes 4 "$@"
by_slurm "$1" "$2" test "$3" "$4" "${@:5}"
