"""What a trained model does with a text, to look at: one module for each picture"""
