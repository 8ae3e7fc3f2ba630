"""What pretrained encoders are for without a head of their own: vectors of texts."""
