"""What gates cost: jobs that pass one against jobs that have none."""
