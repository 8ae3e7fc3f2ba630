"""Tasks of images: classification and masked patch prediction."""
