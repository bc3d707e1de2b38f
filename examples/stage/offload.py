"""Write results while the next step is computed: offload.py nvme0://out 3 (after listing 2 of the paper)."""

import sys
from array import array

from tidepool.stage import Op, Stager


def compute(step: int) -> array:  # type: ignore[type-arg]
    return array("d", (step + n / 1000 for n in range(100_000)))


def main(directory: str, steps: str) -> None:
    with Stager() as stager:
        tasks = []
        for step in range(int(steps)):
            result = compute(step)
            # The stager reads the array from this process; it is kept until the task has ended.
            tasks.append(stager.submit(Op.COPY, result, f"{directory}/step{step}"))
        for status in stager.wait_many(tasks):
            print(status.check().dst, status.bytes_done)


if __name__ == "__main__":
    main(*sys.argv[1:])
