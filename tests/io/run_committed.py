"""A generate stage as DVC runs it: take the last commit's answers, then ask for the rest. URL and dataset."""

import sys
from pathlib import Path

from pipeline.config import Api, GenerateSettings, Runtime, Sampling, Transport
from pipeline.io.store import Store
from pipeline.io.store_committed import import_committed
from pipeline.io.store_location import store_path
from pipeline.stages import generate

url, dataset = sys.argv[1:]
settings = GenerateSettings(
    provider="loopback", model="m", api=Api(identity="here"), sampling=Sampling(max_tokens=50)
)
with Store(store_path(Path(), None, simulator=False)) as store:
    new = import_committed(store, Path(), dataset, settings)
done = generate.run(
    Path(f"build/prompts/{dataset}.parquet"),
    settings,
    Transport(base_url=url, max_attempts=1),
    Runtime(concurrency=4),
    Path(f"build/responses/{dataset}.parquet"),
)
sys.stdout.write(f"{new} taken; {done}\n")
