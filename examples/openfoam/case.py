"""Writes the lid-driven cavity, the smallest real OpenFOAM case, of a chosen size.

The case is described from scratch with OpenFOAM's own keywords; `cells` per edge and the
number of written time steps set how many files and bytes it makes.
"""

from __future__ import annotations

from pathlib import Path

HEAD = """FoamFile
{{
    version 2.0;
    format  {form};
    class   {cls};
    object  {name};
}}
"""

BLOCK_MESH = """scale 0.1;
vertices ((0 0 0) (1 0 0) (1 1 0) (0 1 0) (0 0 0.1) (1 0 0.1) (1 1 0.1) (0 1 0.1));
blocks (hex (0 1 2 3 4 5 6 7) ({cells} {cells} 1) simpleGrading (1 1 1));
edges ();
boundary
(
    lid   {{ type wall;  faces ((3 7 6 2)); }}
    walls {{ type wall;  faces ((0 4 7 3) (2 6 5 1) (1 5 4 0)); }}
    sides {{ type empty; faces ((0 3 2 1) (4 5 6 7)); }}
);
mergePatchPairs ();
"""

CONTROL = """application icoFoam;
startFrom startTime;
startTime 0;
stopAt endTime;
endTime {end};
deltaT {delta};
writeControl timeStep;
writeInterval {interval};
purgeWrite 0;
writeFormat ascii;
writePrecision 10;
writeCompression off;
timeFormat general;
timePrecision 6;
runTimeModifiable false;
"""

SCHEMES = """ddtSchemes { default Euler; }
gradSchemes { default Gauss linear; }
divSchemes { default none; div(phi,U) Gauss linear; }
laplacianSchemes { default Gauss linear orthogonal; }
interpolationSchemes { default linear; }
snGradSchemes { default orthogonal; }
"""

SOLUTION = """solvers
{
    p      { solver PCG; preconditioner DIC; tolerance 1e-06; relTol 0.05; }
    pFinal { $p; relTol 0; }
    U      { solver smoothSolver; smoother symGaussSeidel; tolerance 1e-05; relTol 0; }
}
PISO { nCorrectors 2; nNonOrthogonalCorrectors 0; pRefCell 0; pRefValue 0; }
"""

PRESSURE = """dimensions [0 2 -2 0 0 0 0];
internalField uniform 0;
boundaryField
{
    lid   { type zeroGradient; }
    walls { type zeroGradient; }
    sides { type empty; }
}
"""

VELOCITY = """dimensions [0 1 -1 0 0 0 0];
internalField uniform (0 0 0);
boundaryField
{
    lid   { type fixedValue; value uniform (1 0 0); }
    walls { type noSlip; }
    sides { type empty; }
}
"""


def write_case(folder: Path, *, cells: int, steps: int, writes: int, ranks: int) -> None:
    """Writes a case of `cells` x `cells` cells into `folder`.

    It runs `steps` time steps, writes `writes` of them, and is split for `ranks` ranks.
    """
    delta = 0.005 * 20 / cells
    files = {
        "system/blockMeshDict": BLOCK_MESH.format(cells=cells),
        "system/controlDict": CONTROL.format(
            end=f"{steps * delta:.9g}", delta=f"{delta:.9g}", interval=max(1, steps // writes)
        ),
        "system/fvSchemes": SCHEMES,
        "system/fvSolution": SOLUTION,
        "system/decomposeParDict": f"numberOfSubdomains {ranks};\nmethod simple;\n"
        f"simpleCoeffs {{ n ({ranks} 1 1); delta 0.001; }}\n",
        "constant/transportProperties": "nu [0 2 -1 0 0 0 0] 0.01;\n",
        "0/p": PRESSURE,
        "0/U": VELOCITY,
    }
    classes = {"0/p": "volScalarField", "0/U": "volVectorField"}
    for name, body in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        head = HEAD.format(form="ascii", cls=classes.get(name, "dictionary"), name=path.name)
        path.write_text(head + body)
