# Functions of the launch scripts, which source this file.
# shellcheck shell=bash

tools=$(CDPATH= cd -- "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python}
# A clone need not be installed.
if [ -d "$tools/../mmlape" ]; then
    export PYTHONPATH="$tools/..${PYTHONPATH:+:$PYTHONPATH}"
fi

stop() {
    echo "error: $1" >&2
    exit 2
}

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
        '' | *[!0-9]* | 0) stop "$1 must be a positive number, got '$2'" ;;
    esac
}

# run_by_torchrun GPUS TOOL [arguments of the tool ...]
run_by_torchrun() {
    is_count GPUS "$1"
    is_count NNODES "${NNODES:-1}"
    # What torchrun sets for several processes, with a warning of five lines.
    [ "$1" = 1 ] || export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
    exec "$python" "$tools/launch_parts/torchrun.py" \
        --nnodes "${NNODES:-1}" \
        --node_rank "${NODE_RANK:-0}" \
        --master_addr "${MASTER_ADDR:-127.0.0.1}" \
        --master_port "${PORT:-29500}" \
        --nproc_per_node "$1" \
        "$tools/$2" "${@:3}" --launcher pytorch
}

# run_by_srun PARTITION JOB TOOL [arguments of the tool ...]
run_by_srun() {
    local gpus=${GPUS:-8} per_node cpus=${CPUS_PER_TASK:-5} extra=()
    is_count GPUS "$gpus"
    per_node=${GPUS_PER_NODE:-$((gpus < 8 ? gpus : 8))}
    is_count GPUS_PER_NODE "$per_node"
    is_count CPUS_PER_TASK "$cpus"
    # Jobs on one machine need different ports; upstream's default of 29500 collides.
    export MASTER_PORT=${PORT:-$((20000 + ${SLURM_JOB_ID:-$$} % 20000))}
    read -r -a extra <<<"${SRUN_ARGS:-}"
    exec srun \
        --partition="$1" \
        --job-name="$2" \
        --gres=gpu:"$per_node" \
        --ntasks="$gpus" \
        --ntasks-per-node="$per_node" \
        --cpus-per-task="$cpus" \
        --kill-on-bad-exit=1 \
        ${extra[@]+"${extra[@]}"} \
        "$python" -u "$tools/$3" "${@:4}" --launcher slurm
}
