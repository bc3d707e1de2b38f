#!/bin/bash
#SBATCH --nodes=3 --ntasks-per-node=1
# Second phase, after the first: each rank's piece is brought to its node, from node to node, if it is not there already.
#NORNS stage_in nvme0://parts nvme0://run scatter:processor{rank}
#NORNS stage_in nvme0://case/system nvme0://run/system replicate
#NORNS stage_in nvme0://case/constant nvme0://run/constant replicate
#NORNS persist store nvme0://run
set -e
export WM_PROJECT_DIR=${WM_PROJECT_DIR:-/usr/share/openfoam}
cd "$NVME0/run"
# OpenFOAM's way to say that no node sees the others' pieces.
printf 'distributed yes;\nroots 2("%s" "%s");\n' "$NVME0" "$NVME0" >> system/decomposeParDict
mpirun -np 3 --map-by ppr:1:node --bind-to none icoFoam -parallel > log.icoFoam
