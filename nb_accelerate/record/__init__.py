"""What is known of a run: its messages, folded. No IO, no threads, no clock.

One thread folds; any other may read at the same time and sees a state between two messages.

Reading order: folding (RunRecord, which takes the messages, and what they make of a rank), metrics
(the table of what was logged), log (the lines that were written), formats (of numbers and ranks).
"""

from __future__ import annotations

from nb_accelerate.record.folding import RunRecord, Status, status_after
from nb_accelerate.record.formats import format_number, plain, rank_tag
from nb_accelerate.record.log import LOG_CHARACTERS, Log, LogLine
from nb_accelerate.record.metrics import MetricTable

__all__ = [
    "LOG_CHARACTERS",
    "Log",
    "LogLine",
    "MetricTable",
    "RunRecord",
    "Status",
    "format_number",
    "plain",
    "rank_tag",
    "status_after",
]
