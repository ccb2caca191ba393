"""Entry point of group `torch.backends`: called at the end of every `import torch` of the environment.

Acts in the workers of a heet job alone: the variables are there *and* the parent process is the agent that set them.
DataLoader workers, spawned helpers and a torchrun of another job inherit the variables, but have another parent.
Standard library only, no import when idle, and never an exception: it would make `import torch` itself raise.
TORCH_DEVICE_BACKEND_AUTOLOAD=0 (torch's own switch) turns it off.
"""

from __future__ import annotations

import os

# As in messages.py, whose import would cost every idle process more than all the rest (a test compares them).
ENV_SOCKET = "HEET_SAMPLE_SOCKET"
ENV_AGENT_PID = "HEET_AGENT_PID"


def is_worker() -> bool:
    """Whether this process is a worker of the agent named in its environment."""
    return bool(os.environ.get(ENV_SOCKET)) and os.environ.get(ENV_AGENT_PID) == str(os.getppid())


def start() -> None:
    """Install the sampler (and the writer of error files) in a worker of a heet job. Never raises."""
    if not is_worker():
        return
    try:
        from heet_elastic.agents import last_words

        last_words.install()
        from heet_elastic.agents.sampler import install

        install(os.environ)
    except Exception:  # the script must run whatever becomes of its sampler
        return
