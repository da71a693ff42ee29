"""What must be reached with gates."""

from __future__ import annotations

from bench.peers.targets import Target

TARGETS = {f"gates.{store}.at_capacity": Target(0.8) for store in ("postgres", "sqlite")}
