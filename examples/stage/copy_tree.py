"""Stage a tree and say how far it is: copy_tree.py lustre://in nvme0://in."""

import sys

from tidepool.stage import Op, Stager


def main(src: str, dst: str) -> None:
    with Stager() as stager:
        plan = stager.plan(Op.COPY, src, dst)
        if plan.problems:
            sys.exit("; ".join(plan.problems))
        task = stager.submit(Op.COPY, src, dst, size_hint=plan.bytes)
        for status in stager.watch(task):
            print(f"{status.state.name}: {status.bytes_done} of {plan.bytes} bytes, {status.files_done} files")
        stager.status(task).check()


if __name__ == "__main__":
    main(*sys.argv[1:])
