"""N-gram models: counted, estimated, and written as ARPA text."""
