"""Workflows as a whole: against a model, with kills and races, and what users build of them."""
