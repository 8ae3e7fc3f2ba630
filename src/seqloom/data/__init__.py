"""Files to records, records to batches of ids."""
