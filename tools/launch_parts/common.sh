# What the launch scripts share; they source this file.
# shellcheck shell=bash

tools=$(CDPATH= cd -- "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# A clone need not be installed.
if [ -d "$tools/../mmlape" ]; then
    export PYTHONPATH="$tools/..${PYTHONPATH:+:$PYTHONPATH}"
fi

# takes COUNT [arguments of the script ...]: exits with the help text for --help, and with the usage if arguments are
# missing
takes() {
    local count=$1
    shift
    case ${1:-} in
        -h | --help)
            sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
            exit 0
            ;;
    esac
    if [ $# -lt "$count" ]; then
        sed -n 's/^#   \(mmlape [a-z_]* \)/usage: \1/p' "$0" >&2
        exit 2
    fi
}

# is_count NAME VALUE: a positive number, or an error that names it
is_count() {
    case $2 in
        '' | *[!0-9]* | 0)
            echo "error: $1 must be a positive number, got '$2'" >&2
            exit 2
            ;;
    esac
}

# mmlape [arguments ...]
mmlape() {
    exec "${PYTHON:-python}" -m mmlape "$@"
}

# by_slurm PARTITION JOB COMMAND [arguments ...]: with GPUS, GPUS_PER_NODE
by_slurm() {
    local gpus=${GPUS:-8} per_node
    is_count GPUS "$gpus"
    per_node=${GPUS_PER_NODE:-$((gpus < 8 ? gpus : 8))}
    is_count GPUS_PER_NODE "$per_node"
    if [ $((gpus % per_node)) -ne 0 ]; then
        echo "error: GPUS must be a multiple of GPUS_PER_NODE ($per_node), got '$gpus'" >&2
        exit 2
    fi
    SRUN_ARGS="--job-name=$(printf %q "$2") ${SRUN_ARGS:-}"
    export SRUN_ARGS
    mmlape "${@:3}" --slurm "$1" --gpus "$per_node" --nodes $((gpus / per_node))
}
