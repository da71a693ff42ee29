"""Gates under real workers: limits, order and fairness, whoever dies."""
