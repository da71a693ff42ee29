"""What workflows cost: graphs of jobs against as many plain ones."""
