"""Named crash points: SIGKILL around each statement of each operation, on both stores."""
