"""Bytes to lines and rows: text, CSV, TSV, JSON, Parquet, archives."""
