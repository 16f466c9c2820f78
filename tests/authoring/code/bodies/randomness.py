import os
import random
import secrets
import uuid
from random import choice

from perdure import workflow


@workflow(name="lucky", version="2")
async def lucky() -> None:
    random.random()  # expect: randomness
    choice([1])  # expect: randomness
    secrets.token_hex()  # expect: randomness
    uuid.uuid4()  # expect: randomness
    os.urandom(1)  # expect: randomness
