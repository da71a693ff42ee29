"""One file per competitor: nothing but its public API."""
