#!/usr/bin/env bash
# Evaluate a checkpoint with several GPUs of one machine, or of several machines.
#
#   dist_test.sh CONFIG CHECKPOINT GPUS [options of test.py ...]
#
# The environment variables are those of dist_train.sh.

set -euo pipefail

if [ $# -lt 3 ]; then
    echo 'usage: dist_test.sh CONFIG CHECKPOINT GPUS [options of test.py ...]' >&2
    exit 2
fi
config=$1
checkpoint=$2
gpus=$3
shift 3
. "$(dirname "${BASH_SOURCE[0]}")/launch_parts/common.sh"
run_by_torchrun "$gpus" test.py "$config" "$checkpoint" "$@"
