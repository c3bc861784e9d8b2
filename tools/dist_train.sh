#!/usr/bin/env bash
# `mmlape train --gpus` by the name of MMDetection's script.
#
#   mmlape dist_train CONFIG GPUS [options of mmlape train ...]
#
# NNODES is the number of machines (default 1). PYTHON names the interpreter (default: python).

set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/launch_parts/common.sh"
takes 2 "$@"
mmlape train "$1" --gpus "$2" --nodes "${NNODES:-1}" "${@:3}"
