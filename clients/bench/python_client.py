"""The Python client that `clients/bench/run` measures."""

import asyncio
import sys
import time

from exec_server import Machine


async def run(machine: Machine, count: int) -> float:
    await machine.run("true", cwd="/")
    start = time.perf_counter()
    for _ in range(count):
        await machine.run("true", cwd="/")
    return time.perf_counter() - start


async def output(machine: Machine, count: int) -> float:
    start = time.perf_counter()
    head = await machine.start(["head", "-c", str(count), "/dev/zero"], cwd="/")
    size = 0
    while chunk := await head.stdout.read(1 << 20):
        size += len(chunk)
    if size != count:
        raise RuntimeError(f"{size} of {count} bytes arrived")
    return time.perf_counter() - start


async def main() -> None:
    url, task, count = sys.argv[1:]
    async with Machine.connect(url) as machine:
        print(await {"run": run, "output": output}[task](machine, int(count)))


asyncio.run(main())
