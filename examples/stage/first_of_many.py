"""Work on whatever has arrived, with asyncio: first_of_many.py lustre:// nvme0:// a b c."""

import asyncio
import sys

from tidepool.aio import AsyncStager
from tidepool.errors import TidepoolError
from tidepool.stage import Op, TaskStatus


async def fetch(stager: AsyncStager, src: str, dst: str) -> TaskStatus:
    task = await stager.submit(Op.COPY, src, dst)
    return (await stager.wait(task)).check()


async def main(src: str, dst: str, *names: str) -> None:
    async with AsyncStager() as stager:
        copies = [fetch(stager, f"{src}{name}", f"{dst}{name}") for name in names]
        for copy in asyncio.as_completed(copies):
            try:
                print("here:", (await copy).dst)
            except TidepoolError as error:
                print("failed:", error)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
