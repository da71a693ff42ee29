"""Old code beside a new schema: workers of the version before, while the schema is migrated."""
