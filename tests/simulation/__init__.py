"""The real client, worker and store code on a virtual clock, with faults drawn by a seed."""
