"""Word vectors: trained on plain text, compared, and written for other programs"""
