#!/usr/bin/env bash
# The phases that made the shipped tiny-qwen2.5-vl: train_tiny_qwen2.5_vl.sh FOLDER
# Each phase goes on from the checkpoint of the one before it, with a shorter schedule.
set -euo pipefail
here=$(dirname "$0") run=$1
mkdir -p "$run"
export OMP_NUM_THREADS=1 GOMP_SPINCOUNT=1000
train() {
    python "$here/train.py" --model tiny-qwen2.5-vl --seed 1 \
        --log "$run/tiny-qwen2.5-vl.log" --checkpoint "$run/tiny-qwen2.5-vl.pt" "$@"
}
train --steps 4800 --stop-after 1000
train --steps 3600 --stop-after 3000
train --steps 3200
