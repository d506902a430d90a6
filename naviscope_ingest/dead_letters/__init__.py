"""Dead letters: found, shown, edited, replayed, discarded, exported and imported."""

from naviscope_ingest.dead_letters.access import DeadLetters
from naviscope_ingest.dead_letters.filters import LetterFilter
from naviscope_ingest.dead_letters.records import (
    AuditEntry,
    DiscardReceipt,
    Letter,
    LetterGroup,
    ReplayReceipt,
    WholeLetter,
)

__all__ = [
    "AuditEntry",
    "DeadLetters",
    "DiscardReceipt",
    "Letter",
    "LetterFilter",
    "LetterGroup",
    "ReplayReceipt",
    "WholeLetter",
]
