#!/usr/bin/env bash
# The phases that made the shipped tiny-llava: train_tiny_llava.sh FOLDER
# Each phase goes on from the checkpoint of the one before it. From step 2250 on the vision tower is
# also taught the place of a letter on its sign, which until then this model had not found out.
# The last three ask more multiple-choice questions, which were the weakest; the one before the last
# those about letters alone.
set -euo pipefail
here=$(dirname "$0") run=$1
mkdir -p "$run"
export OMP_NUM_THREADS=1 GOMP_SPINCOUNT=1000
train() {
    python "$here/train.py" --model tiny-llava --seed 1 \
        --log "$run/tiny-llava.log" --checkpoint "$run/tiny-llava.pt" "$@"
}
train --steps 4000 --stop-after 1000
train --steps 3400 --stop-after 2250
train --steps 3500 --stop-after 2500 --order-weight 1
train --steps 3400 --stop-after 3000 --order-weight 4 --scenes 9 --easy 2
train --steps 3650 --stop-after 3250 --order-weight 4 --scenes 9 --easy 2
train --steps 3550 --order-weight 4 --scenes 9 --easy 2
train --steps 4000 --order-weight 4 --scenes 9 --easy 2 --choices 5 --rate 2
train --steps 4800 --order-weight 4 --scenes 9 --easy 2 --choices 7 --letters --rate 2.5
train --steps 5200 --order-weight 4 --scenes 9 --easy 2 --choices 5 --rate 3
