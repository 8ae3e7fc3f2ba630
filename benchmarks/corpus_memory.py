"""Does memory grow with a corpus, and how fast is it read? Peak RssAnon of tokenising a text of some size and of making batches of it.

    python benchmarks/corpus_memory.py TEXT... [--megabytes 20 200] [--tokenizer bpe] [--document line]

The text is repeated with numbers put in between, so that it does not only repeat itself, up to each size. A process of its own tokenises it into
a store and reads a thousand batches of windows and as many of streams. Prints one JSON object. RssAnon is read from
/proc/PID/status (Linux).
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from benchmarks.memory import peak_anonymous

BATCHES = 1000
