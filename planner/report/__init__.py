"""What people and programs read: tables, JSON, YAML, CSV, result folders, errors, progress."""
