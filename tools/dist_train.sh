#!/usr/bin/env bash
# Train with several GPUs of one machine, or of several machines.
#
#   mmlape dist_train CONFIG GPUS [options of mmlape train ...]
#
# GPUS is the number on this machine. Several machines: the same command on each, with
#   NNODES       number of machines (default 1)
#   NODE_RANK    0 on the machine that the others find at MASTER_ADDR, then 1, 2, ... (default 0)
#   MASTER_ADDR  address of machine 0 (default 127.0.0.1)
#   PORT         a free port of it (default 29500)
# PYTHON names the interpreter (default: python).

set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/launch_parts/common.sh"
takes 2 "$@"
config=$1
gpus=$2
shift 2
run_by_torchrun "$gpus" train.py "$config" "$@"
