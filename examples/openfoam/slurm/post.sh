#!/bin/bash
#SBATCH --nodes=1
# Third phase: the pieces come together on one node, and only the result goes to the shared file system.
#NORNS stage_in nvme0://run nvme0://run gather
#NORNS stage_out nvme0://result lustre://alice/result
#NORNS persist delete nvme0://case
#NORNS persist delete nvme0://parts
#NORNS persist delete nvme0://run
#NORNS workflow-end
set -e
export WM_PROJECT_DIR=${WM_PROJECT_DIR:-/usr/share/openfoam}
cd "$NVME0/run"
reconstructPar > log.reconstructPar
mkdir "$NVME0/result"
mv [0-9]* constant "$NVME0/result"
