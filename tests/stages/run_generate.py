"""The generate stage in a process of its own, for tests that kill it: URL, prompts, output, concurrency."""

import sys
from pathlib import Path

from pipeline.config import Api, GenerateSettings, Runtime, Sampling, Transport
from pipeline.errors import ExactokError
from pipeline.stages import generate

url, prompts, out, concurrency = sys.argv[1:]
settings = GenerateSettings(
    provider="loopback", model="m", api=Api(identity="loopback"), sampling=Sampling(max_tokens=50)
)
try:
    summary = generate.run(
        Path(prompts),
        settings,
        Transport(base_url=url, max_attempts=2),
        Runtime(concurrency=int(concurrency)),
        Path(out),
    )
except ExactokError as error:
    sys.exit(str(error))
sys.stdout.write(summary + "\n")
