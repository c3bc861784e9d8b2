#!/usr/bin/env bash
# Evaluate a checkpoint with several GPUs of one machine, or of several machines.
#
#   mmlape dist_test CONFIG CHECKPOINT GPUS [options of mmlape test ...]
#
# The environment variables are those of dist_train.sh.

set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/launch_parts/common.sh"
takes 3 "$@"
config=$1
checkpoint=$2
gpus=$3
shift 3
run_by_torchrun "$gpus" test.py "$config" "$checkpoint" "$@"
