"""This process -> a name that others can check: may the holder of a lease still be alive?"""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path


def new_owner() -> str:
    """Unique for each open store, also within one process."""
    return f"{_here()}/{os.getpid()}/{uuid.uuid4().hex}"


def _here() -> str:
    """This machine, or this container: where a process number means something."""
    try:
        space = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        space = ""
    return f"{socket.gethostname()}{space}"


def may_live(owner: str) -> bool:
    """False only if the owner surely is dead: then a killed run's leases need not run out first."""
    here, process, _ = owner.rsplit("/", 2)
    if here != _here() or os.name != "posix":
        return True
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
