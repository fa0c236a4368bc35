"""Key of a shard's inputs -> what the stage made of them, kept outside DVC and bounded in size.

DVC empties a stage's outs before it runs, so a stage that makes hundreds of shards and has one changed
prompt would make them all again. A key is a hash over all that the shard is made of: its rows, the
settings, the code, the libraries and the tokenizer; a shard that is taken is what would be made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import diskcache
import platformdirs
import pyarrow as pa

from pipeline.config import Runtime
from pipeline.io.code import hash_of_stage
from pipeline.io.libraries import installed

_LENGTH = 8


class ShardCache:
    """Results of one stage under one set of settings. Several processes may share the folder."""

    def __init__(self, stage: str, made_of: Any, runtime: Runtime) -> None:
        named = Path(runtime.shard_cache).expanduser() if runtime.shard_cache else None
        folder = named or platformdirs.user_cache_path("exactok", appauthor=False) / "shards"
        limit = int(runtime.shard_cache_gb * 2**30)
        self._cache = diskcache.Cache(
            str(folder), size_limit=limit, eviction_policy="least-recently-used", disk_min_file_size=2**15
        )
        base = {"stage": stage, "code": hash_of_stage(stage), "libraries": installed(stage), "of": made_of}
        self._base = hashlib.sha256(json.dumps(base, sort_keys=True).encode()).digest()
        self.hits = 0

    def key(self, *inputs: pa.Table | bytes) -> str:
        """Names a shard by the bytes of what it is made of."""
        digest = hashlib.blake2b(self._base, digest_size=32)
        for item in inputs:
            sink = pa.BufferOutputStream()
            if isinstance(item, pa.Table):
                with pa.ipc.new_stream(sink, item.schema) as writer:
                    writer.write_table(item.combine_chunks())
                digest.update(sink.getvalue())
            else:
                digest.update(item)
        return digest.hexdigest()

    def get(self, key: str) -> list[bytes] | None:
        """The parts as they were put, or None."""
        value = self._cache.get(key)
        if value is None:
            return None
        self.hits += 1
        return _parts(value)

    def put(self, key: str, parts: Sequence[bytes]) -> None:
        """Keep a shard; the least recently used make room."""
        lengths = b"".join(len(part).to_bytes(_LENGTH, "little") for part in parts)
        self._cache.set(key, bytes([len(parts)]) + lengths + b"".join(parts))

    def close(self) -> None:
        """Close its file."""
        self._cache.close()


def _parts(value: bytes) -> list[bytes]:
    count, at = value[0], 1
    lengths = [
        int.from_bytes(value[at + n * _LENGTH : at + (n + 1) * _LENGTH], "little") for n in range(count)
    ]
    at += count * _LENGTH
    parts = []
    for length in lengths:
        parts.append(value[at : at + length])
        at += length
    return parts
