"""Images: files, preprocessing, stores, corrupted patches."""
