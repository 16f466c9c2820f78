import asyncio
import os
import socket
import subprocess
import threading
from pathlib import Path

from perdure import workflow


def load() -> str:
    return Path("x").read_text()  # expect: I/O


def deeper() -> str:
    return further()


def further() -> str:
    return input()


@workflow
async def busy() -> None:
    print("hello")  # expect: I/O
    with open("x"):  # expect: I/O
        pass
    os.getenv("HOME")  # expect: I/O
    socket.create_connection(("localhost", 1))  # expect: I/O
    load()
    deeper()  # only one level is looked at
    subprocess.run(["ls"])  # expect: threads
    threading.Thread(target=load).start()  # expect: threads
    await asyncio.to_thread(load)  # expect: threads
    await asyncio.get_running_loop().run_in_executor(None, load)  # expect: threads
