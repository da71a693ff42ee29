"""What must be reached with workflows."""

from __future__ import annotations

from bench.peers.targets import Target
from bench.workflows.graphs import NAMES

TARGETS = {name: Target(0.3) for name in NAMES}
