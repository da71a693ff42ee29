"""What must be reached with gates."""

from __future__ import annotations

from bench.peers.targets import Target

TARGETS = {
    f"gates.{store}.{scene}": target
    for store in ("postgres", "sqlite")
    for scene, target in (
        ("at_capacity", Target(0.8)),
        ("fairness", Target(1.5, at_most=True)),
    )
}
