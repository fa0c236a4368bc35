"""What can go wrong, as a tree; every message is one line: what, where, how to mend.

ExactokError                 a user can mend it; the command line prints it without a traceback
├── ConfigError              a setting is unknown, missing, of the wrong type or unsafe (names file and key)
├── ContractError            a tokenizer does not behave as its target says (names expected and found)
├── SourceError              a prompt source or its pin can't be read or does not match
├── GenerationError          requests are left without an answer, or no request can pass
├── Interrupted              a person ended the run; all that was in flight is kept
└── StageError               a stage's input is missing or broken, counts do not add up, too many rejects

What concerns a single row is never an exception: it is a Reject (pipeline/records.py).
"""


class ExactokError(Exception):
    """Root of the tree; `str(error)` is the one line that the user reads."""

    exit_code = 1


class ConfigError(ExactokError):
    """A setting is unknown, missing, of the wrong type or unsafe."""


class ContractError(ExactokError):
    """A tokenizer does not behave as its target's contract says."""


class SourceError(ExactokError):
    """A prompt source or its pin can't be read or does not match."""


class Interrupted(ExactokError):
    """A person, or the machine's owner, ended the run; all that was in flight has been kept."""

    exit_code = 130


class GenerationError(ExactokError):
    """Requests are left without an answer, or no request can pass."""


class StageError(ExactokError):
    """A stage's input is missing or broken, or its row-count does not add up."""
