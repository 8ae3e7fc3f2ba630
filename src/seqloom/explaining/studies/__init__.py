"""What a trained model does with one input, as numbers: no pictures"""
