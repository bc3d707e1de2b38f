#!/bin/bash
#SBATCH --nodes=1
# First phase: the mesh is made and cut into pieces on one node's own storage, where they stay.
#NORNS workflow-start openfoam
#NORNS stage_in lustre://alice/case nvme0://case
#NORNS persist store nvme0://case
#NORNS persist store nvme0://parts
set -e
export WM_PROJECT_DIR=${WM_PROJECT_DIR:-/usr/share/openfoam}
cd "$NVME0/case"
blockMesh > log.blockMesh
decomposePar > log.decomposePar
mkdir "$NVME0/parts"
mv processor* "$NVME0/parts"
