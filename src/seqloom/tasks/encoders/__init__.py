"""What pretrained encoders are for without a head of their own: filled masks, sentence vectors."""
