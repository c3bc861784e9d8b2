#!/usr/bin/env bash
# `mmlape test --gpus` by the name of MMDetection's script.
#
#   mmlape dist_test CONFIG CHECKPOINT GPUS [options of mmlape test ...]
#
# NNODES is the number of machines (default 1). PYTHON names the interpreter (default: python).

set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/launch_parts/common.sh"
takes 3 "$@"
mmlape test "$1" "$2" --gpus "$3" --nodes "${NNODES:-1}" "${@:4}"
